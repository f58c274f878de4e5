"""Packing: rows of a table, transposed once into float32 panels ``[panel][feature][plane][lane]``.

A chunk of candidates is packed into bounded scratch and then swept by every query, so no converted
copy of a table exists, and the sweep sees one layout for any dtype, strides and crop of the table.
A panel's stride is a multiple of 16 lanes: N = 14,541 is as fast as N = 14,592.

Cost model: a read and a write of every packed number, about 1/B of a sweep's work; limited by
memory. The transposition of a 16 x 32 tile goes through shared memory. Biases and norms are written
on the way: packed rows are read once.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import (
    EUCLIDEAN_NORM,
    FACTOR_NORM,
    NO_NORM,
    SUM_NORM,
    Lanes,
    Vector,
    is_finite,
    load_as,
    note_bad_rows,
    plane_at,
    widen,
)

PACK_ROWS, PACK_FEATURES = 16, 32  # rows and features of one program's tile
ROWS: tl.constexpr = tl.constexpr(PACK_ROWS)
FEATURES: tl.constexpr = tl.constexpr(PACK_FEATURES)


class Panel(NamedTuple):
    """Layout of rows as lanes of a panel."""

    lanes: int
    planes: int  # planes of the rows
    total: int  # planes of the panel; 0: nothing is stored
    norm: int = 0  # a value of Norm; a program then takes all features
    first: int = 0  # first plane of the panel that the rows fill
    is_less_one: bool = False  # 1 is subtracted before rounding
    is_negated: bool = False


@triton.jit
def rows_at(lanes, place, count):
    """Return rows ``lanes.ids``, or else from ``lanes.first`` on; past the last the row repeats."""
    place = tl.minimum(place, count - 1).to(tl.int64)
    rows = lanes.first + place
    if lanes.ids is not None:
        rows = tl.load(lanes.ids + place)
    return rows


class LaneFacts(NamedTuple):
    """Biases and norms of lanes, ``[panels][2][lanes of a panel]``."""

    ptr: Any  # None: not needed
    bias: Vector | None  # bias of the rows


NO_FACTS = LaneFacts(None, None)


@triton.jit(do_not_specialize=["count", "num_features"])
def pack(
    lanes,
    count,
    num_features,
    p_out,  # [panels][num_features][planes][lanes of a panel]
    facts,  # LaneFacts; Triton 3.6 cannot test whether a tuple that has a None is None
    PANEL: tl.constexpr,
):
    """Pack ``ROWS`` rows; write the bias, rounded, and an upper bound on the norm of each."""
    lanes = Lanes(lanes.rows, lanes.ids, lanes.first, lanes.status)
    facts = LaneFacts(facts.ptr, facts.bias)
    NORM: tl.constexpr = PANEL.norm
    PLANES: tl.constexpr = PANEL.planes
    o_first = tl.program_id(0) * ROWS
    rows = rows_at(lanes, o_first + tl.arange(0, ROWS), count)
    i_panel = (o_first // PANEL.lanes).to(tl.int64)
    o_lane = (o_first % PANEL.lanes) + tl.arange(0, ROWS)
    p_panel = p_out + i_panel * (num_features * (PANEL.total * PANEL.lanes))
    total = tl.zeros((ROWS,), tl.float64)
    is_bad = tl.zeros((ROWS,), tl.int32)
    first = tl.program_id(1) * FEATURES
    stop = tl.minimum(first + FEATURES, num_features) if NORM == NO_NORM else num_features
    for feature in range(first, stop, FEATURES):
        k = feature + tl.arange(0, FEATURES)
        m_feature = (k < num_features)[None, :]
        for plane in tl.static_range(PLANES):
            o_feature = (plane_at(lanes.rows, plane) + k.to(tl.int64) * lanes.rows.step)[None]
            p_rows = lanes.rows.ptr + (rows[:, None] * lanes.rows.row + o_feature)
            values = widen(tl.load(p_rows, mask=m_feature, other=0.0))
            wide = values.to(tl.float64)
            is_bad |= tl.max((is_finite(wide) == 0).to(tl.int32), 1)
            if NORM == FACTOR_NORM:
                moves = tl.where(m_feature, tl.abs(wide - 1.0), 0.0)
                moves = tl.where(moves < float("inf"), moves, float("inf"))  # NaN, too
                total = tl.maximum(total, tl.max(moves, 1))
            elif NORM != NO_NORM:
                total += tl.sum(tl.abs(wide) if NORM == SUM_NORM else wide * wide, 1)
            if PANEL.total:
                packed = (wide - 1.0 if PANEL.is_less_one else values).to(tl.float32)
                o_plane = (k * PANEL.total + PANEL.first + plane)[None, :] * PANEL.lanes
                p_packed = p_panel + o_plane + o_lane[:, None]
                tl.store(p_packed, -packed if PANEL.is_negated else packed, mask=m_feature)
    if facts.ptr is not None:  # noqa: SIM102
        if tl.program_id(1) == 0:
            p_lane = facts.ptr + i_panel * (2 * PANEL.lanes) + o_lane
            if facts.bias is not None:
                bias = load_as(facts.bias.ptr + rows * facts.bias.step, None, tl.float32)
                tl.store(p_lane, bias)
            if NORM != NO_NORM:
                tl.store(p_lane + PANEL.lanes, norm_above(total, NORM))
    if lanes.status is not None:
        note_bad_rows(lanes.status, rows, is_bad > 0)


@triton.jit
def norm_above(total, NORM: tl.constexpr):
    """Return a float32 not below the norm with the float64 sum ``total``."""
    norm = total
    if NORM == EUCLIDEAN_NORM:
        norm = tl.sqrt(norm)
    return (norm * (1.0 + 9.5367431640625e-07) + 7.888609052210118e-31).to(tl.float32)
