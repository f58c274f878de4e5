"""Losses of sampled negatives, reduced as scores are computed, and slopes of these losses.

A pool that all queries share is scored in tiles (fused_losses.py); negatives of each row are
gathered here. The sums of a row stay in registers. For softmax weights these are the highest score,
the relative sum of weights, and the relative sum of weights times terms. Tiles, or stripes of a
row, leave four numbers per row. One launch adds these numbers in order to losses of rows; the
program that finishes last reduces the losses, if needed. If gradients will be needed, scores before
the bias are written, once. One launch turns these scores into slopes, divided by roots for a pull
of gradients.

Cost model (sm_90): the loops of score_tiles.py, fused_losses.py and gather.py, for rotate with 70
issue slots per pair for all code around the loops. Forward, 4 bytes per pair are written. The
slopes read 4 and write 4, and take 61 slots per pair of nssa.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import RowView, Vector, Views, load_as
from .finish import is_last, sum_of_programs
from .gather import as_row
from .losses import (
    by_lane,
    by_row,
    finite_or_bad,
    lanes_in_tile,
    max_rows,
    rows_of_tile,
    sum_rows,
)
from .softplus import LOWEST, softplus_of, weight_of
from .sweep import SUM_BLOCK
from .terms import add_term, load_candidate, load_query, score_of, stored_move

PARTS = 4  # numbers of a row: those of RowState, and the sum of scores
FINISHED_ROWS = 32  # rows of a program that finishes
_ROWS: tl.constexpr = tl.constexpr(FINISHED_ROWS)
_PARTS: tl.constexpr = tl.constexpr(PARTS)


class RowInputs(NamedTuple):
    """Inputs of a loss beside scores; ``first`` and ``row`` are those of ``losses.RowLabels``."""

    positive: Any  # [B] scores of the positives; None: the formula needs none
    # [B, K] bool: negatives that take part; None: all. No RowView, since Triton 3.6 loses the
    # members of a tuple within a tuple argument of a function.
    mask: Any
    mask_row: int
    mask_step: int
    parameter: float  # alpha, or the margin
    first: int
    row: int


class RowLists(NamedTuple):
    """Candidates of each row."""

    targets: Vector  # [B]
    negatives: RowView  # [B, K]
    index: Any  # [B, 1 + K]: both, clamped to rows of the table
    num_rows: int  # rows of the table
    pairs: int  # pairs of a stripe: a multiple of the tile's rows and of 16


class ForwardState(NamedTuple):
    """Results of a forward, which the backward needs."""

    raw: Any  # [B][row] scores before the bias
    row: int
    positive: Any  # [B] scores of the positives
    peaks: Any  # [B] each
    masses: Any
    scale: Any  # [1] factor of the sum of the rows; None: rows are not reduced
    weights: Any  # [B] factors of the rows; None: all are 1
    sums: Any = None  # [tiles][PARTS][B], in a forward
    # [programs] int64, in a forward: 1 if a program met a number that is not finite
    status: Any = None


class Ends(NamedTuple):
    """Loss, and the data from which it is made, beside rows."""

    loss: Any  # loss of each row, or one
    parts: Any  # [2][programs] float64: parts of the sum, and of the count; None: not reduced
    finished: Any  # [1] int64: programs that have finished, 0 before
    base: float  # base of the divisor


class ScoreGradients(NamedTuple):
    """Gradient of scores, and the data from which it is made."""

    ptr: Any  # [B][row]
    row: int
    bias_sums: Any  # [tiles of rows][K]; None: not needed
    grad: Vector  # gradient of the losses of rows, or of one loss
    grad_positive: Any  # [B], for a pool; None for lists, where the positives are the first column
    bias: Vector | None  # bias of the pool, or of the table
    index: Any  # [B, 1 + K] for lists; else None


class RowState(NamedTuple):
    """Sums of rows so far."""

    peak: Any
    mass: Any
    total: Any


@triton.jit
def weights_and_terms(x, positive, peak, parameter, FORMULA: tl.constexpr):
    """Return the weights of negatives ``x``, and their part of ``RowState.total``; 0 at -inf."""
    if FORMULA == "nssa":
        weight = tl.where(x == float("-inf"), 0.0, weight_of(x, peak, parameter))
        term = weight * softplus_of(x)
    else:
        weight = x
        if FORMULA == "margin":
            over = parameter - positive + x
            term = tl.where(over < 0.0, 0.0, over)
        else:
            term = softplus_of(x)
    return weight, term


@triton.jit
def is_over(x, positive, margin):
    """Return a mask of the negatives of a margin that have a slope."""
    return margin - positive + x > 0.0


@triton.jit
def store_parts(p_sums, tile, row, num_queries, parts, linear, mask):
    p_row = p_sums + tile.to(tl.int64) * _PARTS * num_queries + row
    tl.store(p_row, parts.peak, mask=mask)
    tl.store(p_row + num_queries, parts.mass, mask=mask)
    tl.store(p_row + 2 * num_queries.to(tl.int64), parts.total, mask=mask)
    tl.store(p_row + 3 * num_queries.to(tl.int64), linear, mask=mask)


@triton.jit
def reduce_negatives(raw, bias, given, result, sizes, VARIANT: tl.constexpr):
    """Store the states of the rows of a tile of a pool; see :func:`losses.reduce_tile`."""
    FORM: tl.constexpr = VARIANT.form
    TILE: tl.constexpr = VARIANT.tile
    LOSS: tl.constexpr = VARIANT.loss
    FORMULA: tl.constexpr = LOSS.formula
    num_queries, num_candidates = sizes
    row = rows_of_tile(given, TILE)
    lane = tl.program_id(1) * TILE.lanes + lanes_in_tile(TILE)
    m_row = row < num_queries
    m_lane = lane < num_candidates
    part = by_lane(m_lane, TILE)
    valid = by_row(m_row, TILE) & part
    wide = row.to(tl.int64)
    linear = sum_rows(tl.where(part, raw, 0.0), TILE)
    if LOSS.has_slopes:
        p_row = result.slopes + wide * result.row
        tl.store(by_row(p_row, TILE) + by_lane(lane, TILE), raw, mask=valid)
    x = raw
    if FORM.has_bias:
        own = load_as(bias.ptr + lane.to(tl.int64) * bias.step, m_lane, tl.float32)
        linear += tl.sum(tl.where(m_lane, finite_or_bad(own), 0.0))
        x += by_lane(own, TILE)
    if given.mask is not None:
        o_mask = (given.first + lane).to(tl.int64) * given.mask_step
        p_row = given.mask + wide * given.mask_row
        p_mask = by_row(p_row, TILE) + by_lane(o_mask, TILE)
        part &= tl.load(p_mask, mask=valid, other=0) != 0
    parameter = given.parameter
    positive = 0.0
    if given.positive is not None:
        positive = by_row(tl.load(given.positive + row, mask=m_row, other=0.0), TILE)
    mass = sum_rows(part.to(tl.float32) + tl.zeros_like(x), TILE)
    x = tl.where(part, x, float("-inf"))  # none from here on
    if FORMULA == "nssa":
        peak = tl.maximum(max_rows(x, TILE), LOWEST)
    elif FORMULA == "margin":
        peak = sum_rows(is_over(x, positive, parameter).to(tl.float32), TILE)
    else:
        peak = tl.zeros_like(linear)
    weight, term = weights_and_terms(x, positive, by_row(peak, TILE), parameter, FORMULA)
    if FORMULA == "nssa":
        mass = sum_rows(weight, TILE)
    parts = RowState(peak, mass, sum_rows(term, TILE))
    store_parts(result.sums, tl.program_id(1), row, num_queries, parts, linear, m_row)


@triton.jit
def gathered(p_q, views, id, num_features, FORM: tl.constexpr, FEATURES: tl.constexpr):
    """Return scores before the bias of a query with the rows ``id``."""
    p_c = (views.table.ptr + id * views.table.row)[:, None]
    p_f = p_c
    if FORM.has_factor:
        p_f = (views.factor.ptr + id * views.factor.row)[:, None]
    total = tl.zeros((id.shape[0], FEATURES), tl.float32)
    for feature in range(0, num_features, FEATURES):
        k = feature + tl.arange(0, FEATURES)
        mask = k < num_features
        k = k.to(tl.int64)
        q = load_query(p_q, views.queries, k, mask, FORM, tl.float32)
        k = k[None, :]
        c = load_candidate(p_c, p_f, views, k, mask[None, :], FORM, tl.float32)
        total = add_term(total, as_row(q), c, FORM, stored_move(FORM))
    return score_of(tl.sum(total, 1), FORM)


@triton.jit
def bias_at(views, id, FORM: tl.constexpr):
    """Return the biases of rows."""
    bias = tl.zeros_like(id).to(tl.float32)
    if FORM.has_bias:
        bias = load_as(views.bias.ptr + id * views.bias.step, None, tl.float32)
    return bias


@triton.jit
def forced(id, count):
    """Return a row of a table of ``count``, and NaN if the id had to be clamped, else 0."""
    safe = tl.minimum(tl.maximum(id, 0), count - 1)
    return safe, tl.where(id == safe, 0.0, float("nan"))


@triton.jit(do_not_specialize=["num_negatives", "num_features"])
def gather_negatives(
    views,
    lists,
    given,
    kept,
    num_negatives,
    num_features,
    VARIANT: tl.constexpr,  # the tile: pairs, features
):
    """Reduce a stripe of the negatives of a row; the first stripe scores the positive, too."""
    FORM: tl.constexpr = VARIANT.form
    TILE: tl.constexpr = VARIANT.tile
    LOSS: tl.constexpr = VARIANT.loss
    FORMULA: tl.constexpr = LOSS.formula
    # Made anew, since Triton 3.6 loses the members of nested tuples that are arguments in a loop.
    views = Views(views.queries, views.table, views.factor, views.bias)
    PAIRS: tl.constexpr = TILE.rows
    query = tl.program_id(0).to(tl.int64)
    stripe = tl.program_id(1)
    pairs = lists.pairs
    num_rows = lists.num_rows
    p_q = views.queries.ptr + query * views.queries.row
    p_ids = lists.negatives.ptr + query * lists.negatives.row
    p_index = lists.index + query * (num_negatives + 1)
    step_of_ids = lists.negatives.step
    raw_of_row = kept.raw
    if kept.raw is not None:
        raw_of_row += query * kept.row
    linear = 0.0
    positive = tl.zeros((1,), tl.float32)
    if (stripe == 0) | (FORMULA == "margin"):
        id, bad = forced(
            tl.load(lists.targets.ptr + query * lists.targets.step + tl.arange(0, 1)), num_rows
        )
        raw = gathered(p_q, views, id, num_features, FORM, TILE.lanes)
        bias = bias_at(views, id, FORM)
        positive = raw + bias
        linear += tl.sum(raw + finite_or_bad(bias) + bad, 0)
        if stripe == 0:
            tl.store(kept.positive + query + tl.arange(0, 1), positive)
            tl.store(p_index + tl.arange(0, 1), id)
            if kept.raw is not None:
                tl.store(raw_of_row + tl.arange(0, 1), raw)
    positive = tl.sum(positive, 0)
    p_mask = p_ids
    step_of_mask = step_of_ids
    if given.mask is not None:
        p_mask = given.mask + query * given.mask_row
        step_of_mask = given.mask_step
    parameter = given.parameter
    peak = tl.full((), LOWEST if FORMULA == "nssa" else 0.0, tl.float32)
    mass = 0.0
    total = 0.0
    stop = tl.minimum((stripe + 1) * pairs, num_negatives)
    for first in range(stripe * pairs, stop, PAIRS):
        place = first + tl.arange(0, PAIRS)
        valid = place < stop
        o = tl.minimum(place, num_negatives - 1).to(tl.int64)
        id, bad = forced(tl.load(p_ids + o * step_of_ids), num_rows)
        raw = gathered(p_q, views, id, num_features, FORM, TILE.lanes)
        bias = bias_at(views, id, FORM)
        tl.store(p_index + 1 + place, id, mask=valid)
        if kept.raw is not None:
            tl.store(raw_of_row + 1 + place, raw, mask=valid)
        linear += tl.sum(tl.where(valid, raw + finite_or_bad(bias) + bad, 0.0), 0)
        part = valid
        if given.mask is not None:
            part &= tl.load(p_mask + o * step_of_mask) != 0
        x = tl.where(part, raw + bias, float("-inf"))
        if FORMULA == "nssa":
            higher = tl.maximum(peak, tl.max(x, 0))
            fade = weight_of(peak, higher, parameter)
            mass *= fade
            total *= fade
            peak = higher
        elif FORMULA == "margin":
            peak += tl.sum(is_over(x, positive, parameter).to(tl.float32), 0)
        weight, term = weights_and_terms(x, positive, peak, parameter, FORMULA)
        if FORMULA != "nssa":
            weight = part.to(tl.float32)
        mass += tl.sum(weight, 0)
        total += tl.sum(term, 0)
    parts = RowState(peak, mass, total)
    store_parts(kept.sums, stripe, query, tl.num_programs(0), parts, linear, stripe >= 0)


@triton.jit(do_not_specialize=["num_tiles", "num_queries"])
def finish_negatives(
    kept,
    ends,
    alpha,
    num_tiles,
    num_queries,
    COUNTS: tl.constexpr,  # the divisor has the weights, or else the negatives that take part
    FORMULA: tl.constexpr,
):
    """Add the tiles' numbers of rows, in the order of the tiles, and make the loss."""
    row = tl.program_id(0) * _ROWS + tl.arange(0, _ROWS)
    m_row = row < num_queries
    wide = num_queries.to(tl.int64)
    p_row = kept.sums + row
    peak = tl.zeros((_ROWS,), tl.float32)
    if FORMULA == "nssa":
        peak += LOWEST
        for _ in range(num_tiles):
            peak = tl.maximum(peak, tl.load(p_row, mask=m_row, other=0.0))
            p_row += _PARTS * wide
    mass = tl.zeros((_ROWS,), tl.float32)
    total = tl.zeros((_ROWS,), tl.float32)
    linear = tl.zeros((_ROWS,), tl.float32)
    p_row = kept.sums + row
    tile = 0
    while tile < num_tiles:
        stop = tl.minimum(tile + SUM_BLOCK, num_tiles)
        part_mass = tl.zeros((_ROWS,), tl.float32)
        part = tl.zeros((_ROWS,), tl.float32)
        for _ in range(tile, stop):
            here = tl.load(p_row, mask=m_row, other=0.0)
            fade = tl.full((_ROWS,), 1.0, tl.float32)
            if FORMULA == "nssa":
                fade = weight_of(here, peak, alpha)
            else:
                peak += here
            part_mass += fade * tl.load(p_row + wide, mask=m_row, other=0.0)
            part += fade * tl.load(p_row + 2 * wide, mask=m_row, other=0.0)
            linear += tl.load(p_row + 3 * wide, mask=m_row, other=0.0)
            p_row += _PARTS * wide
        mass += part_mass
        total += part
        tile = stop
    if FORMULA == "nssa":
        loss = total / mass
        loss = tl.where(mass == 0.0, 0.0, loss)  # no negative takes part
    else:
        loss = total
    is_bad = m_row & ((tl.abs(linear) < float("inf")) == 0)
    tl.store(kept.peaks + row, peak, mask=m_row)
    tl.store(kept.masses + row, mass, mask=m_row)
    tl.store(kept.status + tl.program_id(0), tl.max(is_bad.to(tl.int64), 0))
    if FORMULA != "margin":
        loss += softplus_of(-tl.load(kept.positive + row, mask=m_row, other=0.0))
    if FORMULA == "nssa":
        loss *= 0.5
    counted = mass
    if kept.weights is not None:
        counted = tl.load(kept.weights + row, mask=m_row, other=0.0)
        loss *= counted
    if ends.parts is None:
        tl.store(ends.loss + row, loss, mask=m_row)
    else:
        num_programs = tl.num_programs(0)
        p_part = ends.parts + tl.program_id(0)
        tl.store(p_part, tl.sum(tl.where(m_row, loss, 0.0).to(tl.float64), 0))
        if COUNTS:
            tl.store(p_part + num_programs, tl.sum(tl.where(m_row, counted, 0.0).to(tl.float64), 0))
        if is_last(ends.finished, num_programs):
            divisor = tl.zeros((), tl.float64) + ends.base
            if COUNTS:
                divisor += sum_of_programs(ends.parts + num_programs, num_programs)
                divisor = tl.where(divisor == 0.0, 1.0, divisor)  # a mean over nothing is 0
            scale = 1.0 / divisor
            mean = scale * sum_of_programs(ends.parts, num_programs)
            tl.store(ends.loss, mean.to(tl.float32))
            tl.store(kept.scale, scale.to(tl.float32))


@triton.jit(do_not_specialize=["num_queries", "num_columns"])
def negative_slopes(
    kept,
    given,
    slopes,
    num_queries,
    num_columns,  # number of columns of a list, with the positive
    VARIANT: tl.constexpr,
):
    """Compute the slopes of a tile of scores; no gradient flows through weights."""
    FORM: tl.constexpr = VARIANT.form
    TILE: tl.constexpr = VARIANT.tile
    LOSS: tl.constexpr = VARIANT.loss
    FORMULA: tl.constexpr = LOSS.formula
    bias = slopes.bias
    p_index = slopes.index
    row = tl.program_id(1) * TILE.rows + tl.arange(0, TILE.rows)
    column = tl.program_id(0) * TILE.lanes + tl.arange(0, TILE.lanes)
    m_row = row < num_queries
    m_column = column < num_columns
    valid = m_row[:, None] & m_column[None, :]
    wide = row.to(tl.int64)[:, None]
    lane = column.to(tl.int64)[None, :]
    raw = tl.load(kept.raw + wide * kept.row + lane, mask=valid, other=0.0)
    x = raw
    if bias is not None:
        if p_index is None:
            own = load_as(bias.ptr + column.to(tl.int64) * bias.step, m_column, tl.float32)
            x += own[None, :]
        else:
            id = tl.load(p_index + wide * num_columns + lane, mask=valid, other=0)
            x += load_as(bias.ptr + id * bias.step, valid, tl.float32)
    part = valid
    if given.mask is not None:
        place = lane
        if p_index is not None:
            part &= lane > 0
            place = lane - 1
        p_mask = given.mask + wide * given.mask_row + place * given.mask_step
        part &= tl.load(p_mask, mask=part, other=0) != 0
    grad = load_as(slopes.grad.ptr + row.to(tl.int64) * slopes.grad.step, m_row, tl.float32)
    if kept.weights is not None:
        grad *= tl.load(kept.weights + row, mask=m_row, other=0.0)
    if kept.scale is not None:
        grad *= tl.load(kept.scale)
    positive = tl.load(kept.positive + row, mask=m_row, other=0.0)
    if FORMULA == "nssa":
        grad *= 0.5
        peak = tl.load(kept.peaks + row, mask=m_row, other=0.0)
        scale = grad / tl.load(kept.masses + row, mask=m_row, other=1.0)
        weight = weight_of(x, peak[:, None], given.parameter)
        slope = scale[:, None] * weight / (1.0 + tl.exp(-x))
    elif FORMULA == "margin":
        is_over = given.parameter - positive[:, None] + x > 0.0
        slope = tl.where(is_over, grad[:, None], 0.0)
    else:
        slope = grad[:, None] / (1.0 + tl.exp(-x))
    slope = tl.where(part, slope, 0.0)
    if FORMULA == "margin":
        own = -grad * tl.load(kept.peaks + row, mask=m_row, other=0.0)
    else:
        own = -grad / (1.0 + tl.exp(positive))
    if slopes.grad_positive is None:
        slope = tl.where(lane == 0, own[:, None], slope)
    elif tl.program_id(0) == 0:
        tl.store(slopes.grad_positive + row, own, mask=m_row)
    if slopes.bias_sums is not None:
        p_sums = slopes.bias_sums + tl.program_id(1).to(tl.int64) * num_columns + column
        tl.store(p_sums, tl.sum(tl.where(valid, slope, 0.0), 0), mask=m_column)
    if FORM.is_root:
        slope = tl.where(raw < 0.0, slope / -raw, 0.0)
    tl.store(slopes.ptr + wide * slopes.row + lane, slope, mask=valid)
