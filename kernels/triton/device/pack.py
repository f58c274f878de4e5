"""Packing: rows of a table, transposed once into float32 panels ``[panel][feature][plane][lane]``.

A chunk of candidates is packed into bounded scratch and then swept by every query, so no
converted copy of a table exists and the sweep sees one layout, whatever the table's dtype, strides
and crop. A panel's stride is a multiple of 16 lanes: N = 14,541 is as fast as N = 14,592.

Cost model: a read and a write of every packed number, about 1/B of a sweep's work; limited by
memory. The transposition of a 16 x 32 tile goes through shared memory.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from .arguments import (
    EUCLIDEAN_NORM,
    FACTOR_NORM,
    NO_NORM,
    SUM_NORM,
    is_finite,
    load_as,
    note_bad_rows,
    widen,
)

PACK_ROWS, PACK_FEATURES = 16, 32  # of one program's tile
ROWS: tl.constexpr = tl.constexpr(PACK_ROWS)
FEATURES: tl.constexpr = tl.constexpr(PACK_FEATURES)


class Panel(NamedTuple):
    """How rows become lanes of a panel."""

    lanes: int
    planes: int  # of the rows
    total: int  # planes of the panel
    first: int = 0  # plane of the panel that the first of these is
    is_less_one: bool = False  # 1 is subtracted before rounding
    is_negated: bool = False


@triton.jit
def rows_of(lanes, count):
    """The rows that this program's lanes stand for; lanes past the last repeat it."""
    lane = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    position = tl.minimum(lane, count - 1).to(tl.int64)
    rows = lanes.first + position
    if lanes.ids is not None:
        rows = tl.load(lanes.ids + position)
    return rows


@triton.jit(do_not_specialize=["count", "num_features"])
def pack(
    lanes,
    count,
    num_features,
    p_out,
    p_status,  # [1] the least row with a number that is not finite; None: nothing is checked
    PANEL: tl.constexpr,
):
    """Pack ``ROWS`` rows by ``FEATURES`` features."""
    PLANES: tl.constexpr = PANEL.planes
    rows = rows_of(lanes, count)
    o_first = tl.program_id(0) * ROWS
    k = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    m_feature = (k < num_features)[None, :]
    size = num_features * (PANEL.total * PANEL.lanes)
    p_panel = p_out + (o_first // PANEL.lanes).to(tl.int64) * size
    o_lane = (o_first % PANEL.lanes) + tl.arange(0, ROWS)
    is_bad = tl.zeros((ROWS,), tl.int32)
    for plane in tl.static_range(PLANES):
        o_feature = (plane * lanes.rows.plane + k.to(tl.int64) * lanes.rows.step)[None]
        p_rows = lanes.rows.ptr + (rows[:, None] * lanes.rows.row + o_feature)
        values = widen(tl.load(p_rows, mask=m_feature, other=0.0))
        if p_status is not None:
            is_bad |= tl.max((is_finite(values.to(tl.float64)) == 0).to(tl.int32), 1)
        if PANEL.is_less_one:
            values = values.to(tl.float64) - 1.0
        packed = values.to(tl.float32)
        if PANEL.is_negated:
            packed = -packed
        o_plane = (k * PANEL.total + PANEL.first + plane)[None, :] * PANEL.lanes
        mask = m_feature & (o_lane >= 0)[:, None]
        tl.store(p_panel + o_plane + o_lane[:, None], packed, mask=mask)
    if p_status is not None:
        note_bad_rows(p_status, rows, is_bad > 0)


@triton.jit(do_not_specialize=["count", "num_features"])
def describe(
    lanes,
    bias,
    count,
    num_features,
    p_out,  # [panels][2][lanes of a panel] bias, norm
    NORM: tl.constexpr,  # of Norm
    PANEL: tl.constexpr,
):
    """The bias of ``ROWS`` rows, rounded, and an upper bound on their norm."""
    PLANES: tl.constexpr = PANEL.planes
    rows = rows_of(lanes, count)
    o_first = tl.program_id(0) * ROWS
    p_lanes = p_out + (o_first // PANEL.lanes).to(tl.int64) * (2 * PANEL.lanes)
    p_lanes += (o_first % PANEL.lanes) + tl.arange(0, ROWS)
    if bias is not None:
        tl.store(p_lanes, load_as(bias.ptr + rows * bias.step, None, tl.float32))
    if NORM != NO_NORM:
        total = tl.zeros((ROWS,), tl.float64)
        table = lanes.rows
        p_rows = table.ptr + rows[:, None] * table.row
        for feature in range(0, num_features, FEATURES):
            k = feature + tl.arange(0, FEATURES)
            m_feature = (k < num_features)[None, :]
            for plane in tl.static_range(PLANES):
                o_column = plane * table.plane + k.to(tl.int64) * table.step
                values = load_as(p_rows + o_column[None, :], m_feature, tl.float64)
                if NORM == FACTOR_NORM:
                    move = tl.where(m_feature, tl.abs(values - 1.0), 0.0)
                    total = tl.maximum(total, largest_of(move))
                else:
                    total += tl.sum(tl.abs(values) if NORM == SUM_NORM else values * values, 1)
        tl.store(p_lanes + PANEL.lanes, norm_above(total, NORM))


@triton.jit
def largest_of(moves):
    """The largest of each row of magnitudes, infinite where one is not a number."""
    return tl.max(tl.where(moves < float("inf"), moves, float("inf")), 1)


@triton.jit
def norm_above(total, NORM: tl.constexpr):
    """A float32 that is not below the norm whose float64 sum is ``total``."""
    norm = total
    if NORM == EUCLIDEAN_NORM:
        norm = tl.sqrt(norm)
    return (norm * (1.0 + 9.5367431640625e-07) + 7.888609052210118e-31).to(tl.float32)
