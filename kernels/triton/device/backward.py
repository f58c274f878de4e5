"""Gradients of pairs in lists: sums of slopes over a list, weighted by pairs.

A list holds the pairs of a query, or of a row of the table, in the order of the index. Each pair
stands in two lists, and is computed for both. A pull of both sides at once (pull.py) would write as
much for the other side's rows as is gathered, and would have to sort this. Lists are cut into
pieces of bounded length, so that one hot id is many programs; add_parts adds the pieces of a row. A
sum stays in its lane to the end: no atomics, a fixed order. Slopes of the other side, and sums that
are never stored, are dropped by the compiler.

Cost model: limited by the gathered rows, 8 bytes per element of rotate, beside about 11 issue
slots.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import RowView, Views, plane_at, query_planes
from .pull import narrow
from .sweep import SUM_BLOCK
from .terms import (
    Candidate,
    Query,
    load_candidate,
    load_query,
    member_of,
    plus_candidate,
    plus_query,
    pointers_of,
    slopes_of_both,
)


class Side(NamedTuple):
    """Side with the gradients that a kernel sums, and a tile."""

    of_queries: bool  # else of candidates and factors
    rows: int  # pairs of a step
    features: int


class IndexLists(NamedTuple):
    """Pairs in lists that share a row, and lists in pieces."""

    order: Any  # [places] pair of each place of the lists; None: the place itself
    others: Any  # [places] row of the other side
    weight: Any  # [pairs]
    starts: Any  # [pieces + 1] first place of each piece
    owners: Any  # [pieces] the row that a piece's pairs share
    target: Any  # [pieces] row of the gradient, or -1 - extra row


class Sums(NamedTuple):
    """A gradient that lists are summed into; None: not needed."""

    grad: RowView | None
    extra: Any  # float32, with the strides of the gradient


@triton.jit
def new_sums(zero, OF_QUERIES: tl.constexpr):
    """Return the sums of nothing, of a query or of a candidate."""
    return Query(zero, zero, zero, zero, zero) if OF_QUERIES else Candidate(zero, zero, zero)


@triton.jit
def store_plane(sums, PLANE: tl.constexpr, target, k, total, mask):
    """Store a plane of a row, or of an extra row if the list has several pieces."""
    o_column = plane_at(sums.grad, PLANE) + k * sums.grad.step
    if target >= 0:
        value = narrow(total, sums.grad.ptr.dtype.element_ty)
        tl.store(sums.grad.ptr + target * sums.grad.row + o_column, value, mask=mask)
    else:
        tl.store(sums.extra + (-1 - target) * sums.grad.row + o_column, total, mask=mask)


@triton.jit(do_not_specialize=["first_feature", "last_feature"])
def backward_lists(
    views,
    lists,
    sums,  # gradients of the rows, and of the factor
    first_feature,
    last_feature,
    FORM: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Write the gradient of the row that a piece's pairs share, or the piece's part of that."""
    PAIRS: tl.constexpr = SIDE.rows
    FEATURES: tl.constexpr = SIDE.features
    views = Views(views.queries, views.table, views.factor, views.bias)
    of_rows = Sums(sums[0].grad, sums[0].extra)
    of_factor = Sums(sums[1].grad, sums[1].extra)
    piece = tl.program_id(0).to(tl.int64)
    feature = first_feature + tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    column = tl.minimum(feature, last_feature - 1).to(tl.int64)
    k = column[None, :]
    start = tl.load(lists.starts + piece)
    count = (tl.load(lists.starts + piece + 1) - start).to(tl.int32)
    p_others = lists.others + start
    owner = tl.load(lists.owners + piece)
    p_query, p_row, p_factor = pointers_of(views, owner, owner, FORM)
    if SIDE.of_queries:
        q = load_query(p_query, views.queries, k, None, FORM, tl.float32)
    else:
        c = load_candidate(p_row, p_factor, views, k, None, FORM, tl.float32)
    zero = tl.zeros((PAIRS, FEATURES), tl.float32)
    total = new_sums(zero, SIDE.of_queries)
    first = 0
    while first < count:
        stop = tl.minimum(first + SUM_BLOCK * PAIRS, count)
        part = new_sums(zero, SIDE.of_queries)
        spare = tl.load(p_others + first)  # a row of this list, to multiply by 0
        for step in range(first, stop, PAIRS):
            o_pair = step + tl.arange(0, PAIRS)
            m_pair = o_pair < count
            other = tl.load(p_others + o_pair, mask=m_pair, other=spare)[:, None]
            if lists.order is not None:
                pair = tl.load(lists.order + start + o_pair, mask=m_pair, other=0)
                p_weight = lists.weight + pair
            else:
                p_weight = lists.weight + start + o_pair
            weight = tl.load(p_weight, mask=m_pair, other=0.0)[:, None]
            if SIDE.of_queries:
                p_c = views.table.ptr + other * views.table.row + k * views.table.step
                p_f = p_c
                if FORM.has_factor:
                    p_f = views.factor.ptr + other * views.factor.row
                    p_f += k * views.factor.step
                c = load_candidate(p_c, p_f, views, 0, None, FORM, tl.float32)
            else:
                p_q = views.queries.ptr + other * views.queries.row
                p_q += k * views.queries.step
                q = load_query(p_q, views.queries, 0, None, FORM, tl.float32)
            by_query, by_row = slopes_of_both(weight, q, c, FORM)
            part = plus_query(part, by_query) if SIDE.of_queries else plus_candidate(part, by_row)
        total = plus_query(total, part) if SIDE.of_queries else plus_candidate(total, part)
        first = stop
    mask = feature < last_feature
    target = tl.load(lists.target + piece)
    if SIDE.of_queries:  # the sums are minus the gradient
        for plane in tl.static_range(query_planes(FORM)):
            of_plane = -tl.sum(total[member_of(FORM, plane)], 0)
            store_plane(of_rows, plane, target, column, of_plane, mask)
    else:
        if of_rows.grad is not None:
            store_plane(of_rows, 0, target, column, tl.sum(total.re, 0), mask)
            if FORM.planes == 2:
                store_plane(of_rows, 1, target, column, tl.sum(total.im, 0), mask)
        if of_factor.grad is not None:
            store_plane(of_factor, 0, target, column, tl.sum(total.b, 0), mask)
