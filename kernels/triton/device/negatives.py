"""Losses of rows of scores of sampled negatives, and slopes of these losses.

Scores before the bias are in memory, ``[B, K]`` of a pool that all queries share, or ``[B, 1 + K]``
of lists, with the positive first. One launch turns a row of scores into the loss of the row, and
keeps what the slopes need: of softmax weights the highest score and the sum of weights. The program
that finishes last reduces the losses, if needed. Another launch turns scores into slopes, divided
by roots for a pull of gradients.

Cost model (sm_90): memory alone beside the scores, which read 8 bytes per feature of rotate: the
rows read 4 bytes per pair twice. The slopes read 4 and write 4, and take 61 issue slots per pair of
nssa.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import load_as
from .finish import LOWEST, is_last, sum_of_programs
from .losses import log1p_of


class RowScores(NamedTuple):
    """Scores of negatives, and results of their rows, which the slopes need.

    No views, since Triton 3.6 loses the members of nested tuples.
    """

    raw: Any  # [B][row] before the bias
    row: int
    bias: Any  # bias of the pool, or of the table; None: there is none
    bias_step: int
    index: Any  # [B, 1 + K] rows of the table, for lists; None: a pool
    mask: Any  # [B, K] bool: negatives that take part; None: all
    mask_row: int
    mask_step: int
    parameter: float  # alpha, or the margin
    positive: Any  # [B] scores of the positives
    peaks: Any  # [B] highest scores; for a margin the number of negatives over it
    masses: Any  # [B] sums of weights, or numbers of negatives
    scale: Any  # [1] factor of the sum of the rows; None: rows are not reduced
    weights: Any  # [B] factors of the rows; None: all are 1


class Ends(NamedTuple):
    """Loss, and the data from which it is made, beside rows."""

    loss: Any  # loss of each row, or one
    parts: Any  # [2][programs] float64: parts of the sum, and of the count; None: not reduced
    finished: Any  # [1] int64: programs that have finished, 0 before
    status: Any  # [programs] int64: 1 if a program met a number that is not finite
    base: float  # base of the divisor


class ScoreGradients(NamedTuple):
    """Gradient of scores, and the data from which it is made."""

    ptr: Any  # [B][row]
    row: int
    bias_sums: Any  # [tiles of rows][K]; None: not needed
    grad: Any  # gradient of the losses of rows, or of one loss
    grad_step: int
    grad_positive: Any  # [B], for a pool; None for lists, where the positives are the first column


@triton.jit
def softplus_of(x):
    """Return ``log(1 + exp(x))``; NaN for NaN."""
    return tl.where(x < 0.0, 0.0, x) + log1p_of(tl.exp(-tl.abs(x)))


@triton.jit
def weight_of(x, peak, alpha):
    """Return ``exp(alpha (x - peak))``; a difference below float32 is clamped, NaN stays."""
    below = x - peak
    return tl.exp(alpha * tl.where(below < LOWEST, LOWEST, below))


@triton.jit
def load_scores(scores, row, column, num_queries, num_columns):
    """Load a tile of scores: before the bias, with it; masks of pairs, and of negatives used."""
    m_row = (row < num_queries)[:, None]
    m_column = column < num_columns
    valid = m_row & m_column[None, :]
    wide = row.to(tl.int64)[:, None]
    lane = column.to(tl.int64)[None, :]
    raw = tl.load(scores.raw + wide * scores.row + lane, mask=valid, other=0.0)
    x = raw
    if scores.bias is not None:
        if scores.index is None:
            p_bias = scores.bias + column.to(tl.int64) * scores.bias_step
            x += load_as(p_bias, m_column, tl.float32)[None, :]
        else:
            id = tl.load(scores.index + wide * num_columns + lane, mask=valid, other=0)
            x += load_as(scores.bias + id * scores.bias_step, valid, tl.float32)
    used = valid
    if scores.index is not None:
        used &= lane > 0
        lane -= 1
    if scores.mask is not None:
        p_mask = scores.mask + wide * scores.mask_row + lane * scores.mask_step
        used &= tl.load(p_mask, mask=used, other=0) != 0
    return raw, x, valid, used


@triton.jit(do_not_specialize=["num_queries", "num_columns"])
def negative_rows(
    scores,
    ends,
    num_queries,
    num_columns,  # of a list with the positive
    COUNTS: tl.constexpr,  # the divisor has the weights, or else the negatives that take part
    FORMULA: tl.constexpr,
    TILE: tl.constexpr,
):
    """Make the losses of some rows, and reduce them."""
    ROWS: tl.constexpr = TILE.rows
    COLUMNS: tl.constexpr = TILE.lanes
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    m_row = row < num_queries
    if scores.index is None:
        positive = tl.load(scores.positive + row, mask=m_row, other=0.0)
    else:
        first = tl.arange(0, 1)
        own = load_scores(scores, row, first, num_queries, num_columns)
        positive = tl.sum(own[1], 1)
        tl.store(scores.positive + row, positive, mask=m_row)
    peak = tl.zeros((ROWS,), tl.float32)
    if FORMULA == "nssa":
        peak += LOWEST
        for start in range(0, num_columns, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            loaded = load_scores(scores, row, column, num_queries, num_columns)
            peak = tl.maximum(peak, tl.max(tl.where(loaded[3], loaded[1], LOWEST), 1))
    mass = tl.zeros((ROWS,), tl.float64)
    total = tl.zeros((ROWS,), tl.float64)
    linear = tl.zeros((ROWS,), tl.float64)
    for start in range(0, num_columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        raw, x, valid, used = load_scores(scores, row, column, num_queries, num_columns)
        told = tl.where(x == float("-inf"), raw, x)  # a bias of -inf is no mistake
        linear += tl.sum(tl.where(valid, told, 0.0), 1)
        x = tl.where(used, x, float("-inf"))
        weight = used.to(tl.float32)
        if FORMULA == "nssa":
            weight = weight_of(x, peak[:, None], scores.parameter)
            weight = tl.where(x == float("-inf"), 0.0, weight)
            term = weight * softplus_of(x)
        elif FORMULA == "margin":
            over = scores.parameter - positive[:, None] + x
            term = tl.where(over < 0.0, 0.0, over)
            peak += tl.sum((over > 0.0).to(tl.float32), 1)
        else:
            term = softplus_of(x)
        mass += tl.sum(weight, 1)
        total += tl.sum(term, 1)
    loss = total
    if FORMULA == "nssa":
        mass = tl.where(mass == 0.0, 1.0, mass)  # no negative takes part
        loss = total / mass
    is_bad = m_row & ((tl.abs(linear) < float("inf")) == 0)
    tl.store(scores.peaks + row, peak, mask=m_row)
    tl.store(scores.masses + row, mass.to(tl.float32), mask=m_row)
    tl.store(ends.status + tl.program_id(0), tl.max(is_bad.to(tl.int64), 0))
    if FORMULA != "margin":
        loss += softplus_of(-positive)
    if FORMULA == "nssa":
        loss *= 0.5
    counted = mass
    if scores.weights is not None:
        counted = tl.load(scores.weights + row, mask=m_row, other=0.0).to(tl.float64)
        loss *= counted
    if ends.parts is None:
        tl.store(ends.loss + row, loss.to(tl.float32), mask=m_row)
    else:
        num_programs = tl.num_programs(0)
        p_part = ends.parts + tl.program_id(0)
        tl.store(p_part, tl.sum(tl.where(m_row, loss, 0.0), 0))
        if COUNTS:
            tl.store(p_part + num_programs, tl.sum(tl.where(m_row, counted, 0.0), 0))
        if is_last(ends.finished, num_programs):
            divisor = tl.zeros((), tl.float64) + ends.base
            if COUNTS:
                divisor += sum_of_programs(ends.parts + num_programs, num_programs)
                divisor = tl.where(divisor == 0.0, 1.0, divisor)  # a mean over nothing is 0
            scale = 1.0 / divisor
            mean = scale * sum_of_programs(ends.parts, num_programs)
            tl.store(ends.loss, mean.to(tl.float32))
            tl.store(scores.scale, scale.to(tl.float32))


@triton.jit(do_not_specialize=["num_queries", "num_columns"])
def negative_slopes(
    scores,
    slopes,
    num_queries,
    num_columns,
    IS_ROOT: tl.constexpr,
    FORMULA: tl.constexpr,
    TILE: tl.constexpr,
):
    """Compute the slopes of a tile of scores; no gradient flows through weights."""
    per_row = tl.cdiv(num_columns, TILE.lanes)
    i_rows = tl.program_id(0) // per_row
    i_columns = tl.program_id(0) % per_row
    row = i_rows * TILE.rows + tl.arange(0, TILE.rows)
    column = i_columns * TILE.lanes + tl.arange(0, TILE.lanes)
    m_row = row < num_queries
    raw, x, valid, used = load_scores(scores, row, column, num_queries, num_columns)
    grad = load_as(slopes.grad + row.to(tl.int64) * slopes.grad_step, m_row, tl.float32)
    if scores.weights is not None:
        grad *= tl.load(scores.weights + row, mask=m_row, other=0.0)
    if scores.scale is not None:
        grad *= tl.load(scores.scale)
    positive = tl.load(scores.positive + row, mask=m_row, other=0.0)
    if FORMULA == "nssa":
        grad *= 0.5
    if FORMULA == "margin":
        is_over = scores.parameter - positive[:, None] + x > 0.0
        slope = tl.where(is_over, grad[:, None], 0.0)
        own = -grad * tl.load(scores.peaks + row, mask=m_row, other=0.0)
    else:
        scale = grad[:, None]
        if FORMULA == "nssa":
            peak = tl.load(scores.peaks + row, mask=m_row, other=0.0)
            share = grad / tl.load(scores.masses + row, mask=m_row, other=1.0)
            scale = share[:, None] * weight_of(x, peak[:, None], scores.parameter)
        slope = scale / (1.0 + tl.exp(-x))
        own = -grad / (1.0 + tl.exp(positive))
    slope = tl.where(used, slope, 0.0)
    if slopes.grad_positive is None:
        slope = tl.where(column[None, :] == 0, own[:, None], slope)
    elif i_columns == 0:
        tl.store(slopes.grad_positive + row, own, mask=m_row)
    if slopes.bias_sums is not None:
        p_sums = slopes.bias_sums + i_rows.to(tl.int64) * num_columns + column
        tl.store(p_sums, tl.sum(tl.where(valid, slope, 0.0), 0), mask=column < num_columns)
    if IS_ROOT:
        slope = tl.where(raw < 0.0, slope / -raw, 0.0)
    p_row = slopes.ptr + row.to(tl.int64)[:, None] * slopes.row
    tl.store(p_row + column.to(tl.int64)[None, :], slope, mask=valid)
