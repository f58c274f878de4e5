"""Symmetric pull: slopes of scores carried to queries and candidates at once.

The difference of a pair, and the direction that it makes, serve both of its sides. A lane owns a
feature of the rows of its tile. Numbers and sums of the rows stay in registers, while queries pass
by. Each query adds to the rows' sums in the lane. The contributions of the tile's rows to the query
are added up within the lane, then over the lanes that share the feature. They join the program's
own partial sums of queries in memory, which no other program touches. In the end partial sums are
added over programs, in a fixed order (:func:`add_parts`): no atomics, two runs are bit-equal.

Cost model (rotate, sm_90, 256 x 4 tile, 1 warp): 10 arithmetic slots per element (two subtractions,
two multiply-adds for the square, ``MUFU.RSQ``, a product, two multiply-adds for each side), 11.8
with loads, the three exchanges between lanes for 32 elements and the loop. A separate pull for each
side takes 2 x 9.6. Registers are full (255): the bound on warps is the memory for partial sums, ``4
planes FEATURES`` bytes per query and program. Coefficients are read in place, in rows that are
coalesced over the tile and exchanged through shared memory; 1.2 words per element.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import RowView, Views, plane_at, query_planes
from .sweep import SUM_BLOCK
from .terms import (
    Candidate,
    load_candidate,
    load_query,
    member_of,
    plus_candidate,
    pointers_of,
    slopes_of_both,
)


class PullTile(NamedTuple):
    """Rows and features of a program, and the needed gradients."""

    rows: int
    features: int
    of_queries: bool
    adds: bool  # adds to the gradients of rows; else writes them


class Pulled(NamedTuple):
    """Slopes, and the gradients into which slopes are pulled."""

    slopes: Any  # [num_queries, num_rows] of column stride 1
    partial: Any  # float32 [ranges][tiles of features][num_queries][planes][FEATURES]; or None
    # ``num_rows`` rows of a split of the queries after the rows of the last split
    grad: RowView | None
    grad_factor: RowView | None


class PartTile(NamedTuple):
    """Planes of a row, columns of a program, and whether sums are added to the gradient."""

    planes: int
    columns: int
    adds: bool


@triton.jit
def narrow(values, DTYPE: tl.constexpr):
    """Return float32 values in the type of a gradient, rounded to nearest."""
    if DTYPE.primitive_bitwidth < 32:
        return values.to(DTYPE, fp_downcast_rounding="rtne")
    return values.to(DTYPE)


@triton.jit
def put(p_plane, total, mask, ADDS: tl.constexpr):
    """Write a plane of a gradient, or add to the plane."""
    if ADDS:
        total += tl.load(p_plane, mask=mask, other=0.0).to(tl.float32)
    tl.store(p_plane, narrow(total, p_plane.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=[
        *("row_of_slopes", "num_queries", "num_rows", "first_feature", "last_feature"),
    ]
)
def pull(
    views,
    pulled,
    # row stride, unaligned to the compiler, which then loads the numbers to exchange best
    row_of_slopes,
    num_queries,
    num_rows,
    first_feature,
    last_feature,
    FORM: tl.constexpr,
    TILE: tl.constexpr,
):
    """Pull a range of tiles of candidates and a split of the queries; features of one tile."""
    ROWS: tl.constexpr = TILE.rows
    FEATURES: tl.constexpr = TILE.features
    PLANES: tl.constexpr = query_planes(FORM)
    views = Views(views.queries, views.table, views.factor, views.bias)
    grad = pulled.grad
    grad_factor = pulled.grad_factor
    i_features = tl.program_id(0)
    i_range = tl.program_id(1)
    i_split = tl.program_id(2)
    feature = first_feature + i_features * FEATURES + tl.arange(0, FEATURES)
    m_feature = feature < last_feature
    k = tl.minimum(feature, last_feature - 1).to(tl.int64)[None, :]
    per_split = (num_queries + tl.num_programs(2) - 1) // tl.num_programs(2)
    first = i_split * per_split
    last = tl.minimum(first + per_split, num_queries)
    tiles = (num_rows + ROWS - 1) // ROWS
    first_tile = (i_range.to(tl.int64) * tiles // tl.num_programs(1)).to(tl.int32)
    last_tile = ((i_range + 1).to(tl.int64) * tiles // tl.num_programs(1)).to(tl.int32)
    o_mine = (i_range * tl.num_programs(0) + i_features).to(tl.int64) * num_queries + first
    for i_tile in range(first_tile, last_tile):
        first_row = i_tile * ROWS
        place = first_row + tl.arange(0, ROWS)
        row = tl.minimum(place, num_rows - 1).to(tl.int64)[:, None]
        p_q, p_c, p_f = pointers_of(views, first.to(tl.int64), row, FORM)
        c = load_candidate(p_c, p_f, views, k, None, FORM, tl.float32)
        p_slope = pulled.slopes + first.to(tl.int64) * row_of_slopes + first_row
        m_slope = place < num_rows
        m_earlier = m_feature & (i_tile > first_tile)
        if TILE.of_queries:
            p_partial = pulled.partial + o_mine * (PLANES * FEATURES)
            own = RowView(pulled.partial, PLANES * FEATURES, FEATURES, 1)
            o_feature = tl.arange(0, FEATURES)
        zero = tl.zeros((ROWS, FEATURES), tl.float32)
        total = Candidate(zero, zero, zero)
        query = first
        while query < last:
            stop = tl.minimum(query + SUM_BLOCK, last)
            part = Candidate(zero, zero, zero)
            for _ in range(query, stop):
                weight = tl.load(p_slope + tl.arange(0, ROWS), mask=m_slope, other=0.0)[:, None]
                q = load_query(p_q, views.queries, k, None, FORM, tl.float32)
                if TILE.of_queries:
                    earlier = load_query(p_partial, own, o_feature, m_earlier, FORM, tl.float32)
                by_query, by_row = slopes_of_both(weight, q, c, FORM)
                part = plus_candidate(part, by_row)
                if TILE.of_queries:
                    for plane in tl.static_range(PLANES):  # the terms of slopes are negated
                        of_tile = tl.sum(by_query[member_of(FORM, plane)], 0)
                        sums = earlier[member_of(FORM, plane)] - of_tile
                        tl.store(p_partial + plane * FEATURES + o_feature, sums, mask=m_feature)
                    p_partial += PLANES * FEATURES
                p_slope += row_of_slopes
                p_q += views.queries.row
            total = plus_candidate(total, part)
            query = stop
        # Made anew from the loop's results, so that no addresses fill registers within the loop.
        place = first_row + (query - last) + tl.arange(0, ROWS)
        mask = (place < num_rows)[:, None] & m_feature[None, :]
        row = place.to(tl.int64) + i_split.to(tl.int64) * num_rows
        if grad is not None:
            p_grad = grad.ptr + row[:, None] * grad.row + k * grad.step
            put(p_grad, total.re, mask, TILE.adds)
            if FORM.planes == 2:
                put(p_grad + grad.plane, total.im, mask, TILE.adds)
        if grad_factor is not None:
            p_grad = grad_factor.ptr + row[:, None] * grad_factor.row + k * grad_factor.step
            put(p_grad, total.b, mask, TILE.adds)


@triton.jit(do_not_specialize=["num_parts", "num_features", "features"])
def add_parts(
    p_parts,  # float32 [num_parts][tiles of features][rows][planes][features]
    p_first,  # [rows + 1] first part of each row, if parts have one row each; None: all rows
    grad,  # RowView
    num_parts,
    num_features,
    features,  # of a tile
    TILE: tl.constexpr,
):
    """Write the sum of the parts of a row, or add to the row; a row without parts is left alone.

    Cost model: memory alone. Parts are read once, the gradient is written once.
    """
    PLANES: tl.constexpr = TILE.planes
    COLUMNS: tl.constexpr = TILE.columns
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < num_features
    first = tl.zeros((), tl.int64)
    last = first + num_parts
    place = row
    num_rows = tl.num_programs(0).to(tl.int64)
    if p_first is not None:
        first = tl.load(p_first + row)
        last = tl.load(p_first + row + 1)
        place = row * 0
        num_rows = place + 1
    plane_of_part = features.to(tl.int64)
    numbers = plane_of_part * PLANES  # of a row of a tile
    per_part = tl.cdiv(num_features, features) * num_rows * numbers
    o_tile = (column // features).to(tl.int64) * num_rows + place
    p_columns = p_parts + first * per_part + (o_tile * numbers + column % features)
    p_grad = grad.ptr + row * grad.row + column.to(tl.int64) * grad.step
    if first < last:
        for plane in tl.static_range(PLANES):
            p_part = p_columns + plane * plane_of_part
            total = tl.zeros((COLUMNS,), tl.float32)
            start = first
            while start < last:
                stop = tl.minimum(start + SUM_BLOCK, last)
                block = tl.zeros((COLUMNS,), tl.float32)
                for _ in range(start, stop):
                    block += tl.load(p_part, mask=mask, other=0.0)
                    p_part += per_part
                total += block
                start = stop
            put(p_grad + plane_at(grad, plane), total, mask, TILE.adds)
