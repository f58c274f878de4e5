"""Rows of scores weighted by the softmax of the row, and slopes: one walk over scores each.

Cost model: scores are read once forward (4 bytes each), read and written once backward; about 25
issue slots per score forward, three exponentials among them, and 12 backward.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)


class WeightedRows(NamedTuple):
    """Rows of scores, weighted by the softmax of the row: each ``[R]``."""

    sums: Any  # sums of weights times softplus, over sums of weights; or the gradients of these
    peaks: Any  # highest scores
    masses: Any  # sums of weights, relative to the highest


@triton.jit
def log1p_of(e):
    """Return ``log(1 + e)`` of ``0 <= e <= 1``, to 3e-7 relative: a polynomial, nine slots."""
    tail = -0.029505213722586632 + e * 0.0052326880395412445
    tail = -0.13663242757320404 + e * (0.07822591066360474 + e * tail)
    tail = -0.2484298199415207 + e * (0.19106005132198334 + e * tail)
    tail = -0.4999949336051941 + e * (0.3331909775733948 + e * tail)
    return e * (0.9999999403953552 + e * tail)


@triton.jit
def softplus_of(x):
    """Return ``log(1 + exp(x))``; NaN for NaN."""
    return tl.where(x < 0.0, 0.0, x) + log1p_of(tl.exp(-tl.abs(x)))


@triton.jit
def weight_of(x, peak, alpha):
    """Return ``exp(alpha (x - peak))``; a difference below float32 is clamped, NaN stays."""
    below = x - peak
    return tl.exp(alpha * tl.where(below < LOWEST, LOWEST, below))


@triton.jit(do_not_specialize=["num_columns"])
def adversarial_rows(
    scores,  # RowView [R, num_columns] of one plane
    rows,  # WeightedRows
    num_columns,
    alpha,
    COLUMNS: tl.constexpr,
):
    """Sum one row of scores."""
    row = tl.program_id(0).to(tl.int64)
    p_row = scores.ptr + row * scores.row
    peak = tl.full((), LOWEST, tl.float32)
    mass = tl.zeros((COLUMNS,), tl.float32)
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, num_columns, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        mask = column < num_columns
        x = tl.load(p_row + column.to(tl.int64) * scores.step, mask=mask, other=float("-inf"))
        higher = tl.maximum(peak, tl.max(x, 0))
        fade = weight_of(peak, higher, alpha)
        weight = tl.where(mask, weight_of(x, higher, alpha), 0.0)
        mass = mass * fade + weight
        total = total * fade + weight * softplus_of(x)
        peak = higher
    whole = tl.sum(mass, 0)
    tl.store(rows.sums + row, tl.sum(total, 0) / whole)
    tl.store(rows.peaks + row, peak)
    tl.store(rows.masses + row, whole)


@triton.jit(do_not_specialize=["num_columns"])
def adversarial_slopes(
    scores,  # RowView [R, num_columns] of one plane
    p_slopes,  # [R, num_columns]
    rows,  # WeightedRows, with gradients in place of sums
    num_columns,
    alpha,
    COLUMNS: tl.constexpr,
):
    """Compute the gradient of a part of a row of scores; no gradient flows through weights."""
    parts = (num_columns + COLUMNS - 1) // COLUMNS
    row = (tl.program_id(0) // parts).to(tl.int64)
    column = ((tl.program_id(0) % parts) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    mask = column < num_columns
    x = tl.load(scores.ptr + row * scores.row + column * scores.step, mask=mask, other=0.0)
    scale = tl.load(rows.sums + row) / tl.load(rows.masses + row)
    slope = scale * weight_of(x, tl.load(rows.peaks + row), alpha) / (1.0 + tl.exp(-x))
    tl.store(p_slopes + row * num_columns + column, slope, mask=mask)
