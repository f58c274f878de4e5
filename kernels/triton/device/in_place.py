"""Sweep of few queries: rows of the table in place, read once for all queries.

Packing pays if many queries use the packed rows. A batch of 16 or fewer queries is limited by
reading the table, so nothing is copied here: lanes are features of rows in place, and a program
takes ``TILE.lanes`` candidates and ``TILE.rows`` queries.

Cost model (sm_90): the table's bytes, once, and 4 bytes per candidate for a bias. Beside that,
rotate takes 13.8 issue slots per element for one query and 7.75 for eight, one square root among
them. One query needs a fifth of the time that its bytes take, eight need about that time, and
sixteen, in two groups, twice that time. Sums are not compared before the last feature.

Order of summation: a lane adds every 64th feature, at most ``ceil(D / 64)`` of them, and the 64
lanes are then added up: the roundings that bounds.py counts.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import (
    EUCLIDEAN_NORM,
    FACTOR_NORM,
    NO_NORM,
    Views,
    is_finite,
    load_as,
    note_bad_rows,
    num_norms,
    threshold_rows,
)
from .pack import rows_at
from .sweep import HUGE, SUM_BLOCK, take
from .terms import (
    PRODUCT,
    distance_of,
    is_finite_query,
    load_candidate,
    load_query,
    pointers_of,
    stored_move,
    term_of,
)


class Decider(NamedTuple):
    """Candidates of a sweep, and numbers that decide their pairs."""

    thresholds: Any  # [tiles][rows of thresholds][rows of a tile], see thresholds.py
    rel: float
    queries: float  # as an integer, 1 and multiples of 16 would be compiled anew
    ids: Any  # rows of the candidates; None: the rows from ``first`` on
    first: int
    status: Any  # [3] see note_bad_in_place; None: rows are not checked


@triton.jit
def note_bad_in_place(
    views, p_status, query, row, num_features, FORM: tl.constexpr, TILE: tl.constexpr
):
    """Lower ``p_status [3]`` to the least query, candidate and row of the factor that is bad."""
    p_q, p_c, p_f = pointers_of(views, query[:, None], row[:, None], FORM)
    Q: tl.constexpr = TILE.rows
    C: tl.constexpr = TILE.lanes
    bad_query = tl.zeros((Q,), tl.int32)
    bad_row = tl.zeros((C,), tl.int32)
    bad_factor = tl.zeros((C,), tl.int32)
    for feature in range(0, num_features, SUM_BLOCK):
        k = feature + tl.arange(0, SUM_BLOCK)
        mask = (k < num_features)[None, :]
        k = k.to(tl.int64)[None, :]
        q = load_query(p_q, views.queries, k, mask, FORM, tl.float64)
        c = load_candidate(p_c, p_f, views, k, mask, FORM, tl.float64)
        bad_query |= tl.max((is_finite_query(q) == 0).to(tl.int32), 1)
        bad_row |= tl.max(((is_finite(c.re) & is_finite(c.im)) == 0).to(tl.int32), 1)
        if FORM.has_factor:
            bad_factor |= tl.max((is_finite(c.b) == 0).to(tl.int32), 1)
    note_bad_rows(p_status, query, bad_query > 0)
    note_bad_rows(p_status + 1, row, bad_row > 0)
    if FORM.has_factor:
        note_bad_rows(p_status + 2, row, bad_factor > 0)


@triton.jit
def sum_in_place(places, views, zeros, m_pair, num_features, FORM: tl.constexpr):
    """Return float32 distances of pairs from unchanged rows, and bounds on the candidates' norms.

    ``places`` are pointers to rows of queries, candidates and factors; ``zeros`` have the shapes of
    sums of pairs ``[Q, C, SUM_BLOCK]`` and of candidates. Pairs without ``m_pair`` read nothing.
    """
    p_q, p_c, p_f = places
    total, norm = zeros
    for feature in range(0, num_features, SUM_BLOCK):
        k = feature + tl.arange(0, SUM_BLOCK)
        mask = m_pair & (k < num_features)[None, None, :]
        k = k.to(tl.int64)[None, None, :]
        q = load_query(p_q, views.queries, k, mask, FORM, tl.float32)
        c = load_candidate(p_c, p_f, views, k, mask, FORM, tl.float32)
        total += term_of(q, c, FORM, stored_move(FORM))
        if FORM.has_factor and FORM.planes == 2:  # the sine of a missing angle is a number
            total = tl.where(is_finite(q.a * c.b), total, float("inf"))
        if FORM.norm == FACTOR_NORM:
            move = tl.abs(c.b - 1.0)
            move = tl.where(move < float("inf"), move, float("inf"))
            norm = tl.maximum(norm, tl.where(mask, move, 0.0))
        elif FORM.norm != NO_NORM:
            size = c.re * c.re if FORM.norm == EUCLIDEAN_NORM else tl.abs(c.re)
            if FORM.planes == 2:
                size += c.im * c.im if FORM.norm == EUCLIDEAN_NORM else tl.abs(c.im)
            norm += size
    distance = distance_of(tl.sum(total, 2), FORM)
    if FORM.term == PRODUCT:
        distance = -distance
    # rows are unchanged: a query moves by ``a b``, so 1 is added to the factor's norm
    above = tl.max(norm, 2) + 1.0 if FORM.norm == FACTOR_NORM else tl.sum(norm, 2)
    if FORM.norm != NO_NORM:
        if FORM.norm == EUCLIDEAN_NORM:
            above = tl.sqrt(above)
        count = num_features.to(tl.float32)
        above *= 1.0 + (9.5367431640625e-07 + 1.1920928955078125e-07 * (68.0 + count * 0.015625))
        above += count * 2.168404344971009e-19
    return distance, above


@triton.jit(do_not_specialize=["num_candidates", "num_features"])
def sweep_in_place(
    views, decider, tally, num_candidates, num_features, FORM: tl.constexpr, TILE: tl.constexpr
):
    """Count certain winners and append open pairs, or append all pairs that may be best."""
    Q: tl.constexpr = TILE.rows
    C: tl.constexpr = TILE.lanes
    views = Views(views.queries, views.table, views.factor, views.bias)
    lane = tl.program_id(1) * C + tl.arange(0, C)
    row = rows_at(decider, lane, num_candidates)
    query = tl.program_id(0) * Q + tl.arange(0, Q)
    num_queries = tl.full((), decider.queries, tl.int32)
    m_pair = (query < num_queries)[:, None] & (lane < num_candidates)[None, :]
    query = tl.minimum(query, num_queries - 1).to(tl.int64) + tally.first_query
    places = pointers_of(views, query[:, None, None], row[None, :, None], FORM)
    bias = tl.zeros((C,), tl.float32)
    if FORM.has_bias:
        bias = load_as(views.bias.ptr + row * views.bias.step, None, tl.float32)
    zeros = tl.zeros((Q, C, SUM_BLOCK), tl.float32), tl.zeros((1, C, SUM_BLOCK), tl.float32)
    all_pairs = tl.full((1, 1, 1), True, tl.int1)
    distance, norm = sum_in_place(places, views, zeros, all_pairs, num_features, FORM)
    above = tl.reshape(norm, (C,))
    p_threshold = decider.thresholds + tl.program_id(0) * (threshold_rows(FORM) * Q)
    decided, facts = (p_threshold, decider.rel), (bias, (above,))
    take(distance, facts, decided, tally, num_candidates, FORM, num_norms(FORM), TILE)
    if decider.status is not None:
        suspect = m_pair & ((tl.abs(distance) <= HUGE) == 0)
        if tl.max(tl.max(suspect.to(tl.int32), 1), 0) > 0:
            note_bad_in_place(views, decider.status, query, row, num_features, FORM, TILE)
