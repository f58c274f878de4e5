"""Gradients of rows: each is pulled by every row of the other side, weighted by its pair.

``d score / d row = - c (row - other) / norm``: the kernel adds ``- coefficient * direction`` over
the other side. Both gradients are this kernel with the sides swapped, so each recomputes its
differences, and a sum never leaves its lane: no reduction an element, no atomics, a fixed order.

Cost model (rotate, sm_90, 16 x 32 tile, 1 warp): 8 arithmetic slots an element (two subtractions,
two multiply-adds for the square, ``MUFU.RSQ``, a product, two multiply-adds), 9.6 with loads and
the loop, so issue is the limit and the square root unit hides behind it. A lane owns a feature of
every row of its tile: rows and their sums stay in registers (128), the other side's row is read
in place, coalesced over features, once for 16 rows, and 16 coefficients are four uniform vectors.

A modulus below 2**-54 fades: the square has 2**-126 added, which makes the direction 0 at 0
without a select.
"""

import triton
import triton.language as tl

from .operands import widen
from .sweep import SUM_BLOCK
from .terms import L1, ROTATE

LEAST_NORMAL: tl.constexpr = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def add_pull(re, im, weight, x, y, SCORE: tl.constexpr):
    """``re, im`` plus ``weight`` times the direction of a difference; ``l2`` divides elsewhere."""
    if SCORE == L1:
        return re + tl.where(x > 0, weight, tl.where(x < 0, -weight, 0.0)), im
    if SCORE != ROTATE:  # l2, and dot: there x is minus the other row
        return re + weight * x, im
    scaled = weight * tl.rsqrt(x * x + (y * y + LEAST_NORMAL))
    return re + scaled * x, im + scaled * y


@triton.jit(
    do_not_specialize=[
        "split_stride",
        "num_rows",
        "num_others",
        "others_per_split",
        "first_feature",
        "last_feature",
    ]
)
def pull(
    p_row,
    r_row_stride,
    r_plane_stride,
    r_step,
    p_other,
    c_row_stride,
    c_plane_stride,
    c_step,
    p_coefficient,  # [tiles of rows][num_others][ROWS]
    p_grad,  # [splits][num_rows, PLANES * features] float32, added to
    split_stride,
    g_row_stride,
    g_plane_stride,
    g_step,
    num_rows,
    num_others,
    others_per_split,
    first_feature,
    last_feature,
    SCORE: tl.constexpr,
    PLANES: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
):
    """Subtract the pull of one split of the other side from a tile of gradients."""
    i_tile = tl.program_id(0)
    i_split = tl.program_id(2)
    o_row = tl.arange(0, ROWS)
    row = i_tile * ROWS + o_row
    feature = first_feature + tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    k = tl.minimum(feature, last_feature - 1).to(tl.int64)
    o_table = tl.minimum(row, num_rows - 1).to(tl.int64)[:, None] * r_row_stride
    p_row += o_table + k[None, :] * r_step
    r_re = widen(tl.load(p_row)).to(tl.float32)
    r_im = r_re
    if PLANES == 2:
        r_im = widen(tl.load(p_row + r_plane_stride)).to(tl.float32)
    first = i_split * others_per_split
    last = tl.minimum(first + others_per_split, num_others)
    p_other += first.to(tl.int64) * c_row_stride
    p_coefficient += (i_tile.to(tl.int64) * num_others + first) * ROWS
    o_other = k * c_step
    total_re = tl.zeros((ROWS, FEATURES), tl.float32)
    total_im = tl.zeros((ROWS, FEATURES), tl.float32)
    other = first
    while other < last:
        stop = tl.minimum(other + SUM_BLOCK, last)
        re = tl.zeros((ROWS, FEATURES), tl.float32)
        im = tl.zeros((ROWS, FEATURES), tl.float32)
        for _ in range(other, stop):
            c_re = widen(tl.load(p_other + o_other)).to(tl.float32)[None, :]
            c_im = c_re
            if PLANES == 2:
                c_im = widen(tl.load(p_other + c_plane_stride + o_other)).to(tl.float32)
                c_im = c_im[None, :]
            weight = tl.load(p_coefficient + o_row)[:, None]
            re, im = add_pull(re, im, weight, r_re - c_re, r_im - c_im, SCORE)
            p_other += c_row_stride
            p_coefficient += ROWS
        total_re += re
        total_im += im
        other = stop
    p_grad += i_split.to(tl.int64) * split_stride
    p_grad += row.to(tl.int64)[:, None] * g_row_stride + feature.to(tl.int64)[None, :] * g_step
    mask = (row < num_rows)[:, None] & (feature < last_feature)[None, :]
    tl.store(p_grad, tl.load(p_grad, mask=mask, other=0.0) - total_re, mask=mask)
    if PLANES == 2:
        p_im = p_grad + g_plane_stride
        tl.store(p_im, tl.load(p_im, mask=mask, other=0.0) - total_im, mask=mask)
