"""Losses over all candidates, reduced where scores arise: tiles of scores that never leave a chip.

A tile's scores become, in registers, the sums of its rows and, where gradients are asked for, the
slope of the loss by each score, which is the one thing that is written for every pair. Row sums of
a tile are float32; finish.py adds those of all tiles in float64, in the order of the tiles,
whatever order programs ran in.

Labels come as ascending keys ``row N + id``: a row of a tile finds its first positive by a binary
search and walks on while positives lie in the tile, so that a repeated one counts once.

Cost model (sm_90, d features): the loop of score_tiles.py, 7.1 d slots a pair for rotate, and 130
of all code around it for bce with slopes; about six an element more for each positive that the
fullest row of a tile has there. A product takes tensor cores
(:mod:`.products`).
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .adversarial import LOWEST, log1p_of
from .arguments import Vector, find_last_not_above, load_as
from .score_tiles import sum_tile
from .terms import distance_of, score_of

LABELS = 1024  # of a program
FACTS = (
    4  # words of a status before those of programs: positives, candidates, programs that finished
)
_FACTS: tl.constexpr = tl.constexpr(FACTS)
_NO_KEY: tl.constexpr = tl.constexpr(9223372036854775807)


class Loss(NamedTuple):
    """What a kernel makes of scores; a constant."""

    is_softmax: bool
    has_sums: bool
    has_slopes: bool
    has_bias_sums: bool = False


class Labels(NamedTuple):
    """What a loss knows of rows. A label is ``every``, and ``positive`` more of positives."""

    keys: Any  # [positives] int64 ascending ``row N + id``; softmax: [B] the targets
    status: Any  # of make_keys; softmax: None
    positive: float
    every: float
    weight: float  # times the gradient of a row
    grad: Vector | None  # of the rows; None: 1
    logsumexp: Any  # [B] float64, for slopes of a softmax
    first: int  # candidate of the chunk
    row: int  # that the launch begins at


class Result(NamedTuple):
    """Where a tile's results go."""

    sums: Any  # [tiles][2, or 3 of a softmax][B] loss, linear; peak, mass, linear
    picked: Any  # [B] scores of the targets of a softmax
    slopes: Any  # [B][row]
    row: int
    bias_sums: Any  # [tiles of rows][row]


@triton.jit
def rows_of_tile(labels, TILE: tl.constexpr):
    """The rows of this program's tile."""
    return labels.row + tl.program_id(0) * TILE.rows + tl.arange(0, TILE.rows)


@triton.jit
def first_positive(labels, row, first, num_queries, TILE: tl.constexpr):
    """Of each row of a tile, whose first candidate is ``first``: where to look for positives.

    The place of the first key that is not before the tile, the key of candidate 0, and the first
    key that is past the tile.
    """
    num_keys = tl.load(labels.status)
    count = tl.load(labels.status + 1)
    start = row.to(tl.int64) * count
    stop = tl.where(row < num_queries, start + tl.minimum(first + TILE.lanes, count), -1)
    place = find_last_not_above(labels.keys, num_keys, start + first - 1) + 1
    return place, start, stop, num_keys


@triton.jit
def key_at(p_keys, place, num_keys):
    """The key at each place, past the last a number that is past every key."""
    return tl.load(p_keys + place, mask=place < num_keys, other=_NO_KEY)


@triton.jit
def is_positive(p_keys, place, key, start, stop, lane):
    """Which elements ``[M, N]`` of a tile are the positives at ``place``.

    A key that stands there twice is none the second time.
    """
    before = tl.load(p_keys + place - 1, mask=(place > 0) & (key < stop), other=-1)
    id = tl.where((key < stop) & (before != key), key - start, -1)
    return lane[None, :] == id[:, None]


@triton.jit
def weights_of(labels, row, m_row):
    """What slopes of rows are multiplied by."""
    weight = tl.zeros_like(row).to(tl.float32) + labels.weight
    if labels.grad is not None:
        p_grad = labels.grad.ptr + row.to(tl.int64) * labels.grad.step
        weight *= load_as(p_grad, m_row, tl.float32)
    return weight


@triton.jit
def store_sums(p_sums, row, num_queries, place, values, PARTS: tl.constexpr):
    """Store a sum of each row of a tile."""
    tile = tl.program_id(1).to(tl.int64) * PARTS + place
    tl.store(p_sums + tile * num_queries + row, values, mask=row < num_queries)


@triton.jit
def logistic_of(x, labels, result, num_queries, valid, TILE: tl.constexpr, LOSS: tl.constexpr):
    """Sums of a tile's binary cross entropies; the slopes by its scores, 0 if not asked for.

    Positives are walked twice, as their labels would take as many registers as the scores.
    """
    row = rows_of_tile(labels, TILE)
    first = labels.first + tl.program_id(1).to(tl.int64) * TILE.lanes
    lane = first + tl.arange(0, TILE.lanes)
    p_keys = labels.keys
    place, start, stop, num_keys = first_positive(labels, row, first, num_queries, TILE)
    every = labels.every
    positive = labels.positive
    if LOSS.has_sums:
        term = tl.maximum(x, 0.0) + log1p_of(tl.exp(-tl.abs(x)))
        if every != 0.0:
            term -= every * x
        total = tl.sum(tl.where(valid, term, 0.0), 1)
        linear = tl.sum(tl.where(valid, x, 0.0), 1)
        here = place
        key = key_at(p_keys, here, num_keys)
        while tl.max((key < stop).to(tl.int32), 0) > 0:
            hit = is_positive(p_keys, here, key, start, stop, lane)
            total -= positive * tl.sum(tl.where(hit, x, 0.0), 1)
            here += 1
            key = key_at(p_keys, here, num_keys)
        store_sums(result.sums, row, num_queries, 0, total, 2)
        store_sums(result.sums, row, num_queries, 1, linear, 2)
    slope = x
    if LOSS.has_slopes:
        weight = weights_of(labels, row, row < num_queries)
        e = tl.exp(-tl.abs(x))
        slope = weight[:, None] * (tl.where(x >= 0.0, 1.0, e) / (1.0 + e) - every)
        weight *= positive
        key = key_at(p_keys, place, num_keys)
        while tl.max((key < stop).to(tl.int32), 0) > 0:
            hit = is_positive(p_keys, place, key, start, stop, lane)
            slope = tl.where(hit, slope - weight[:, None], slope)
            place += 1
            key = key_at(p_keys, place, num_keys)
    return slope


@triton.jit
def softmax_of(x, labels, result, num_queries, valid, TILE: tl.constexpr, LOSS: tl.constexpr):
    """As :func:`logistic_of`, of the softmax: peaks, masses and sums, and scores of targets."""
    row = rows_of_tile(labels, TILE)
    m_row = row < num_queries
    first = labels.first + tl.program_id(1).to(tl.int64) * TILE.lanes
    target = tl.load(labels.keys + row, mask=m_row, other=-1)
    is_target = (first + tl.arange(0, TILE.lanes))[None, :] == target[:, None]
    slope = x
    if LOSS.has_sums:
        peak = tl.max(tl.where(valid, x, float("-inf")), 1)
        peak = tl.maximum(peak, LOWEST)  # of scores that are all -inf
        mass = tl.sum(tl.where(valid, tl.exp(x - peak[:, None]), 0.0), 1)
        store_sums(result.sums, row, num_queries, 0, peak, 3)
        store_sums(result.sums, row, num_queries, 1, mass, 3)
        linear = tl.sum(tl.where(valid, x, 0.0), 1)
        store_sums(result.sums, row, num_queries, 2, linear, 3)
        picked = tl.sum(tl.where(is_target, x, 0.0), 1)
        has_target = (target >= first) & (target < first + TILE.lanes)
        tl.store(result.picked + row, picked, mask=m_row & has_target)
    if LOSS.has_slopes:
        # exp(x - logsumexp) in two factors: a difference of large numbers is exact in few bits.
        whole = tl.load(labels.logsumexp + row, mask=m_row, other=0.0)
        near = whole.to(tl.float32)
        weight = weights_of(labels, row, m_row)
        rest = (near.to(tl.float64) - whole).to(tl.float32)  # at most 2**-24 of it
        scale = weight * (1.0 + rest * (1.0 + rest * (0.5 + rest * 0.16666667)))
        slope = scale[:, None] * tl.exp(x - near[:, None]) - (weight * labels.every)[:, None]
        slope = tl.where(is_target, slope - (weight * labels.positive)[:, None], slope)
    return slope


@triton.jit
def reduce_tile(
    distance,
    bias,
    labels,
    result,
    sizes,
    FORM: tl.constexpr,
    TILE: tl.constexpr,
    LOSS: tl.constexpr,
):
    """Sums and slopes of a tile, whose scores before the bias are minus ``distance``.

    ``sizes``: queries, and candidates of the chunk. A slope by a score that is a root is divided by
    it, which the pull of gradients wants.
    """
    num_queries, num_candidates = sizes
    row = rows_of_tile(labels, TILE)
    lane = tl.program_id(1) * TILE.lanes + tl.arange(0, TILE.lanes)
    m_row = row < num_queries
    m_lane = lane < num_candidates
    valid = m_row[:, None] & m_lane[None, :]
    x = score_of(distance, FORM)
    if FORM.has_bias:
        p_bias = bias.ptr + lane.to(tl.int64) * bias.step
        x += load_as(p_bias, m_lane, tl.float32)[None, :]
    if LOSS.is_softmax:
        slope = softmax_of(x, labels, result, num_queries, valid, TILE, LOSS)
    else:
        slope = logistic_of(x, labels, result, num_queries, valid, TILE, LOSS)
    if LOSS.has_bias_sums:
        by_lane = tl.sum(tl.where(valid, slope, 0.0), 0)
        tile = labels.row // TILE.rows + tl.program_id(0)
        p_sums = result.bias_sums + tile.to(tl.int64) * result.row
        tl.store(p_sums + lane, by_lane, mask=m_lane)
    if LOSS.has_slopes:
        if FORM.is_root:
            length = distance_of(distance, FORM)
            slope = tl.where(length > 0.0, slope / length, 0.0)
        p_tile = result.slopes + (row.to(tl.int64) * result.row)[:, None] + lane[None, :]
        tl.store(p_tile, slope, mask=valid)


@triton.jit(do_not_specialize=["num_queries", "num_candidates", "num_features"])
def distance_losses(
    packed,  # Panels
    labels,
    result,
    num_queries,
    num_candidates,
    num_features,
    FORM: tl.constexpr,
    TILE: tl.constexpr,
    LOSS: tl.constexpr,
):
    """One tile of a chunk, whose packed operands are those of score_tiles.py."""
    sizes = num_queries, num_candidates
    total = sum_tile(packed.queries, packed.panels, num_features, FORM, TILE)
    reduce_tile(total, packed.bias, labels, result, sizes, FORM, TILE, LOSS)


@triton.jit(do_not_specialize=["num_queries", "num_positives", "num_candidates"])
def make_keys(
    positives,  # indptr [B + 1], indices [positives]
    bias,
    p_keys,  # [positives]
    p_status,  # [FACTS + programs] int64: what is a label; 1 where a program met what is wrong
    num_queries,
    num_positives,
    num_candidates,
    LABELS: tl.constexpr,
):
    """A key of every positive, and whether all are as labels must be: safe keys in any case."""
    p_indptr, p_indices = positives
    i_program = tl.program_id(0)
    if i_program == 0:
        tl.store(p_status, num_positives.to(tl.int64))
        tl.store(p_status + 1, num_candidates.to(tl.int64))
        tl.store(p_status + 2, tl.zeros((), tl.int64))
    o = i_program.to(tl.int64) * LABELS + tl.arange(0, LABELS)
    m_row = o < num_queries
    low = tl.load(p_indptr + o, mask=m_row, other=0)
    high = tl.load(p_indptr + o + 1, mask=m_row, other=1)
    is_bad = m_row & ((low >= high) | ((o == 0) & (low != 0)))
    is_bad |= m_row & (o == num_queries - 1) & (high != num_positives)
    m_place = o < num_positives
    id = tl.load(p_indices + o, mask=m_place, other=0)
    safe = tl.minimum(tl.maximum(id, 0), num_candidates - 1)
    is_bad |= m_place & (id != safe)
    if bias is not None:
        value = load_as(bias.ptr + safe * bias.step, m_place, tl.float32)
        is_bad |= m_place & (value == float("-inf"))
    row = tl.maximum(find_last_not_above(p_indptr, num_queries, o), 0)
    tl.store(p_keys + o, row * num_candidates + safe, mask=m_place)
    tl.store(p_status + _FACTS + i_program, tl.max(is_bad.to(tl.int64), 0))
