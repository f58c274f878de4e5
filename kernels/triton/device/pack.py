"""Packing: rows of a table, transposed once into float32 panels ``[panel][feature][plane][lane]``.

A chunk of candidates is packed into bounded scratch and then swept by every query, so no
converted copy of a table exists and the sweep sees one layout, whatever the table's dtype, strides
and crop. A panel's stride is a multiple of 16 lanes: N = 14,541 is as fast as N = 14,592.

Cost model: a read and a write of every packed number, about 1/B of a sweep's work; limited by
memory. The transposition of a 16 x 32 tile goes through shared memory.
"""

import triton
import triton.language as tl

from .operands import is_finite, note_bad_rows, widen

PACK_ROWS, PACK_FEATURES = 16, 32  # of one program's tile


@triton.jit(do_not_specialize=["first_row", "count", "num_features"])
def pack(
    p_table,
    row_stride,
    plane_stride,
    step,
    p_ids,  # [count] rows to pack, read if HAS_IDS
    first_row,  # else they are first_row ...
    count,
    num_features,
    p_out,
    p_status,  # [2] second: the least row that holds a number that is not finite
    PLANES: tl.constexpr,
    FIRST: tl.constexpr,  # plane of the panel that the first of these is
    TOTAL: tl.constexpr,  # planes of the panel
    LESS: tl.constexpr,  # 1 is subtracted before rounding
    LANES: tl.constexpr,
    HAS_IDS: tl.constexpr,
    NEGATE: tl.constexpr,
    CHECK: tl.constexpr,
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
):
    """Pack ``ROWS`` rows by ``FEATURES`` features; lanes past the last row repeat it."""
    o_first = tl.program_id(0) * ROWS
    lane = o_first + tl.arange(0, ROWS)
    k = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    position = tl.minimum(lane, count - 1).to(tl.int64)
    rows = first_row + position
    if HAS_IDS:
        rows = tl.load(p_ids + position)
    m_feature = (k < num_features)[None, :]
    p_panel = p_out + (o_first // LANES).to(tl.int64) * num_features * (TOTAL * LANES)
    o_lane = (o_first % LANES) + tl.arange(0, ROWS)
    is_bad = tl.zeros((ROWS,), tl.int32)
    for plane in tl.static_range(PLANES):
        offsets = rows[:, None] * row_stride + (plane * plane_stride + k.to(tl.int64) * step)[None]
        values = widen(tl.load(p_table + offsets, mask=m_feature, other=0.0))
        if CHECK:
            is_bad |= tl.max((is_finite(values.to(tl.float64)) == 0).to(tl.int32), 1)
        if LESS:
            values = values.to(tl.float64) - 1.0
        packed = values.to(tl.float32)
        if NEGATE:
            packed = -packed
        p_lanes = p_panel + (k * TOTAL + FIRST + plane)[None, :] * LANES + o_lane[:, None]
        tl.store(p_lanes, packed, mask=m_feature & (lane >= 0)[:, None])
    if CHECK:
        note_bad_rows(p_status + 1, rows, is_bad > 0)


@triton.jit(do_not_specialize=["first_row", "count", "num_features"])
def describe(
    p_table,
    row_stride,
    plane_stride,
    step,
    p_bias,
    bias_stride,
    p_ids,
    first_row,
    count,
    num_features,
    p_lane,  # [panels][2][LANES] bias, norm
    PLANES: tl.constexpr,
    LANES: tl.constexpr,
    HAS_IDS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NORM: tl.constexpr,  # as bounds.ErrorBound.norm
    ROWS: tl.constexpr,
    FEATURES: tl.constexpr,
):
    """The bias of ``ROWS`` rows, rounded, and an upper bound on their norm."""
    o_first = tl.program_id(0) * ROWS
    position = tl.minimum(o_first + tl.arange(0, ROWS), count - 1).to(tl.int64)
    rows = first_row + position
    if HAS_IDS:
        rows = tl.load(p_ids + position)
    p_lanes = p_lane + (o_first // LANES).to(tl.int64) * (2 * LANES)
    p_lanes += (o_first % LANES) + tl.arange(0, ROWS)
    if HAS_BIAS:
        tl.store(p_lanes, widen(tl.load(p_bias + rows * bias_stride)).to(tl.float32))
    if NORM > 0:
        total = tl.zeros((ROWS,), tl.float64)
        for feature in range(0, num_features, FEATURES):
            k = feature + tl.arange(0, FEATURES)
            for plane in tl.static_range(PLANES):
                o_column = plane * plane_stride + k.to(tl.int64) * step
                values = tl.load(
                    p_table + rows[:, None] * row_stride + o_column[None, :],
                    mask=(k < num_features)[None, :],
                    other=0.0,
                )
                values = widen(values).to(tl.float64)
                if NORM == 3:
                    move = tl.where((k < num_features)[None, :], tl.abs(values - 1.0), 0.0)
                    total = tl.maximum(total, largest_of(move))
                else:
                    total += tl.sum(tl.abs(values) if NORM == 1 else values * values, 1)
        tl.store(p_lanes + LANES, norm_above(total, NORM))


@triton.jit
def largest_of(moves):
    """The largest of each row of magnitudes, infinite where one is not a number."""
    return tl.max(tl.where(moves < float("inf"), moves, float("inf")), 1)


@triton.jit
def norm_above(total, NORM: tl.constexpr):
    """A float32 that is not below the norm whose float64 sum is ``total``."""
    norm = total
    if NORM == 2:
        norm = tl.sqrt(norm)
    return (norm * (1.0 + 9.5367431640625e-07) + 7.888609052210118e-31).to(tl.float32)
