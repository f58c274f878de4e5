"""Loss of nested sub-models, on the scores of all: one walk over scores each way.

Let ``x`` be the scores of one kind, positives negated, and ``y`` the scores of the next smaller
sub-model (0 for the smallest). A sub-model adds the mean of ``huber(x - y)``, and the mean of
``softplus(x)`` weighted by ``softmax(w y)``. Programs leave parts of both, which one program adds
up in order.

Cost model: two scores are read forward, for some 40 issue slots; three backward, and one written.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .adversarial import LOWEST, softplus_of

PARTS: tl.constexpr = tl.constexpr(8)  # numbers of a program, and of a sub-model and kind


class KindOfScores(NamedTuple):
    """Scores ``[crops, number]`` of positives or of negatives."""

    ptr: Any
    p_mask: Any  # bool [number]: scores that take part; None: all
    number: int
    kind: int  # 0: positives, 1: negatives


class MedSums(NamedTuple):
    """Memory for parts ``[2, crops, blocks, PARTS]`` and sums ``[2, crops, PARTS]``."""

    p_parts: Any
    p_whole: Any
    blocks: Any  # programs of positives, and of negatives


@triton.jit
def load_scores(scores, crop, i, mask):
    """Load scores of a crop, positives negated."""
    x = tl.load(scores.ptr + crop * tl.cast(scores.number, tl.int64) + i, mask, 0.0)
    return tl.where(scores.kind == 0, -x, x)


@triton.jit
def places_of(scores, SIZE: tl.constexpr):
    """Return the places of a program and a mask."""
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    there = i < scores.number
    takes_part = there
    if scores.p_mask is not None:
        takes_part = there & tl.load(scores.p_mask + i, there, False)
    return i, there, takes_part


@triton.jit
def huber_of(x):
    """Return the Huber loss of a difference, threshold 1."""
    size = tl.abs(x)
    return tl.where(size < 1.0, 0.5 * x * x, size - 0.5)


@triton.jit
def sum_crops(scores, p_scales, sums, most, SIZE: tl.constexpr):
    """Sum a part of the scores of one sub-model."""
    crop = tl.program_id(1)
    i, _, mask = places_of(scores, SIZE)
    x = load_scores(scores, crop, i, mask)
    y = load_scores(scores, crop - 1, i, mask & (crop > 0))
    hardness = tl.load(p_scales + scores.kind) * y
    peak = tl.max(tl.where(mask, hardness, LOWEST), 0)
    weight = tl.where(mask, tl.exp(hardness - peak), 0.0)
    value = softplus_of(x)
    huber = tl.where(mask & (crop > 0), huber_of(x - y), 0.0)
    slot = (scores.kind * tl.num_programs(1) + crop) * most + tl.program_id(0)
    p = sums.p_parts + slot.to(tl.int64) * PARTS
    tl.store(p, peak)
    tl.store(p + 1, tl.sum(weight, 0))
    tl.store(p + 2, tl.sum(weight * value, 0))
    tl.store(p + 3, tl.sum(weight * y, 0))
    tl.store(p + 4, tl.sum(weight * y * value, 0))
    tl.store(p + 5, tl.sum(huber, 0))
    tl.store(p + 6, tl.sum(mask.to(tl.float32), 0))


@triton.jit
def load_part(p, block, mask, peak, PART: tl.constexpr):
    """Load sums of weights of several programs, relative to a peak."""
    fade = tl.exp(tl.where(mask, tl.load(p + block * PARTS, mask, 0.0) - peak, 0.0))
    return fade * tl.load(p + block * PARTS + PART, mask, 0.0)


@triton.jit
def add_parts(p, blocks, LANES: tl.constexpr):
    """Add up the parts of one sub-model and kind: peak, four sums of weights, huber, count."""
    tops = tl.full((LANES,), LOWEST, tl.float32)
    for first in range(0, blocks, LANES):
        block = first + tl.arange(0, LANES)
        tops = tl.maximum(tops, tl.load(p + block * PARTS, block < blocks, LOWEST))
    peak = tl.max(tops, 0)
    mass = tl.zeros((LANES,), tl.float32)
    value, along, both, huber, count = mass, mass, mass, mass, mass
    for first in range(0, blocks, LANES):
        block = first + tl.arange(0, LANES)
        mask = block < blocks
        mass += load_part(p, block, mask, peak, 1)
        value += load_part(p, block, mask, peak, 2)
        along += load_part(p, block, mask, peak, 3)
        both += load_part(p, block, mask, peak, 4)
        huber += tl.load(p + block * PARTS + 5, mask, 0.0)
        count += tl.load(p + block * PARTS + 6, mask, 0.0)
    weighted = tl.sum(mass, 0), tl.sum(value, 0), tl.sum(along, 0), tl.sum(both, 0)
    return peak, weighted, tl.sum(huber, 0), tl.sum(count, 0)


@triton.jit
def finish_crops(
    p_loss,
    p_of_scales,  # [3]: gradients of the scales
    p_scales,  # [3]
    sums,
    most,
    fractions,  # fraction of each sub-model
    CROPS: tl.constexpr,
    IS_EXP: tl.constexpr,
    LANES: tl.constexpr,
):
    """Write the loss, and the sums that slopes of scores and scales need."""
    loss = 0.0
    of_w3 = 0.0
    for kind in tl.static_range(2):
        of_scale = 0.0
        for crop in tl.static_range(CROPS):
            slot = kind * CROPS + crop
            p = sums.p_parts + tl.cast(most, tl.int64) * slot * PARTS
            peak, weighted, huber, count = add_parts(p, sums.blocks[kind], LANES)
            share = tl.load(p_scales + 2) * fractions[crop]
            if IS_EXP:
                importance = tl.exp(share)
                slope = fractions[crop] * importance
            else:
                centre = fractions[crop] - 0.5
                importance = 1.0 / (1.0 + tl.exp(-tl.load(p_scales + 2) * centre))
                slope = centre * importance * (1.0 - importance)
            mass = tl.where(weighted[0] == 0.0, 1.0, weighted[0])
            mean = weighted[1] / mass
            part = 1.0 / tl.maximum(count, 1.0)
            loss += huber * part + importance * mean
            of_scale += importance * (weighted[3] - mean * weighted[2]) / mass
            of_w3 += slope * mean
            tl.store(sums.p_whole + slot * PARTS, peak)
            tl.store(sums.p_whole + slot * PARTS + 1, importance / mass)
            tl.store(sums.p_whole + slot * PARTS + 2, part)
        tl.store(p_of_scales + kind, of_scale)
    tl.store(p_of_scales + 2, of_w3)
    tl.store(p_loss, loss)


@triton.jit
def crop_slopes(scores, p_slopes, p_grad, p_scales, p_whole, SIZE: tl.constexpr):
    """Write the gradient of a part of the scores of one sub-model."""
    crop = tl.program_id(1)
    i, there, mask = places_of(scores, SIZE)
    has_less, has_more = crop > 0, crop + 1 < tl.num_programs(1)
    x = load_scores(scores, crop, i, mask)
    y = load_scores(scores, crop - 1, i, mask & has_less)
    wider = load_scores(scores, crop + 1, i, mask & has_more)
    p = p_whole + (scores.kind * tl.num_programs(1) + crop) * PARTS
    weight = tl.load(p + 1) * tl.exp(tl.load(p_scales + scores.kind) * y - tl.load(p))
    slope = weight / (1.0 + tl.exp(-x))
    part = tl.load(p + 2)
    slope += tl.where(has_less, part * clamped(x - y), 0.0)
    slope -= tl.where(has_more, part * clamped(wider - x), 0.0)
    slope = tl.where(mask, tl.where(scores.kind == 0, -slope, slope) * tl.load(p_grad), 0.0)
    tl.store(p_slopes + crop * tl.cast(scores.number, tl.int64) + i, slope, there)


@triton.jit
def clamped(x):
    """Return the slope of the Huber loss; NaN for NaN."""
    return tl.where(x > 1.0, 1.0, tl.where(x < -1.0, -1.0, x))
