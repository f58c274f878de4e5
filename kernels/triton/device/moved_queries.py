"""Queries that a factor moves, packed for a sweep as if moved by 1, near which factors lie.

``q e^{iab} = (q e^{ia}) e^{ia(b-1)}`` and ``q + a b = (q + a) + a (b - 1)``; both are computed in
float64 and rounded once. The module also computes the sizes of every query for bounds.py.

Cost model: a canonical sine and cosine for every number of a query, 1/N of a sweep's work.
"""

import triton
import triton.language as tl

from .arguments import note_bad_rows
from .pack import FEATURES, ROWS, rows_at
from .terms import (
    LEAST_NORMAL,
    SQUARE,
    Query,
    is_finite_query,
    load_query,
    member_of,
    moved,
    stored_move,
)


@triton.jit(do_not_specialize=["count", "num_features"])
def pack_moved(
    lanes,  # lanes of queries
    count,
    num_features,
    p_out,  # [tiles][num_features][planes][lanes of a panel]
    PANEL: tl.constexpr,
    FORM: tl.constexpr,
):
    """Pack ``ROWS`` rows by ``FEATURES`` features; lanes past the last row repeat the row."""
    TOTAL: tl.constexpr = PANEL.total
    LANES: tl.constexpr = PANEL.lanes
    o_first = tl.program_id(0) * ROWS
    rows = rows_at(lanes, o_first + tl.arange(0, ROWS), count)
    o_lane = (o_first % LANES) + tl.arange(0, ROWS)
    k = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    mask = (k < num_features)[None, :]
    p_rows = lanes.rows.ptr + rows[:, None] * lanes.rows.row
    q = load_query(p_rows, lanes.rows, k.to(tl.int64)[None, :], mask, FORM, tl.float64)
    if lanes.status is not None:
        is_bad = tl.max((is_finite_query(q) == 0).to(tl.int32), 1)
        note_bad_rows(lanes.status, rows, is_bad > 0)
    re, im, _, _ = moved(q, 1.0, FORM, stored_move(FORM))
    packed = Query(re, im, q.w_re, q.w_im, q.a)
    p_tile = p_out + (o_first // LANES).to(tl.int64) * num_features * (TOTAL * LANES)
    p_tile += (k * (TOTAL * LANES))[None, :] + o_lane[:, None]
    for plane in tl.static_range(TOTAL):
        values = packed[member_of(FORM, plane)].to(tl.float32)
        tl.store(p_tile + plane * LANES, values, mask=mask)


@triton.jit(do_not_specialize=["count", "num_features"])
def describe_moves(
    queries,
    count,
    num_features,
    p_sizes,  # [panels][5][ROWS] float64, after the place of a bias
    FORM: tl.constexpr,
):
    """Store for each query the sizes of ``q``, of ``a`` and of ``w``, and the largest ``|a|``.

    Sizes are sums of magnitudes (Euclidean norms for squares); if the move is a phase, the size of
    ``a`` is that of ``|q a|``. A ``w`` that float32 would flush makes its size infinite.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_row = row < count
    of_q = tl.zeros((ROWS,), tl.float64)
    of_a = tl.zeros((ROWS,), tl.float64)
    of_w = tl.zeros((ROWS,), tl.float64)
    reach = tl.zeros((ROWS,), tl.float64)
    for feature in range(0, num_features, FEATURES):
        k = feature + tl.arange(0, FEATURES)
        mask = m_row[:, None] & (k < num_features)[None, :]
        p_rows = queries.ptr + row[:, None] * queries.row
        q = load_query(p_rows, queries, k.to(tl.int64)[None, :], mask, FORM, tl.float64)
        a = tl.abs(q.a)
        w = tl.abs(q.w_re)
        vanishes = (w > 0.0) & (w < LEAST_NORMAL)
        if FORM.planes == 2:
            w_im = tl.abs(q.w_im)
            vanishes |= (w_im > 0.0) & (w_im < LEAST_NORMAL)
            w += w_im
            size = tl.abs(q.re) + tl.abs(q.im)
            move = size * a
        else:
            size = tl.abs(q.re + q.a if FORM.has_factor else q.re)
            move = a
            if FORM.term == SQUARE:
                size = size * size
                move = move * move
        of_q += tl.sum(size, 1)
        of_a += tl.sum(move, 1)
        of_w += tl.sum(tl.where(vanishes, float("inf"), w), 1)
        reach = tl.maximum(reach, tl.max(tl.where(a < float("inf"), a, float("inf")), 1))
    if FORM.is_root:
        of_q = tl.sqrt(of_q)
        of_a = tl.sqrt(of_a)
    p_sizes += tl.program_id(0) * (5 * ROWS) + tl.arange(0, ROWS)
    tl.store(p_sizes + ROWS, of_q)
    tl.store(p_sizes + 2 * ROWS, of_a)
    tl.store(p_sizes + 3 * ROWS, of_w)
    tl.store(p_sizes + 4 * ROWS, reach)
