"""Canonical scores: the definition of a rank, in float64, features in order, no fusion, bias last.

Every kernel here is launched with ``enable_fp_fusion=False``. Kernels then consist of ``mul.rn``,
``add.rn`` and ``sqrt.rn``, and flush no denormal.

Cost model: only targets and the pairs that a sweep leaves open come here: of ranks few, of the best
k about k (1 + log(N / sample)) a query. So latency counts, and a warp has four pairs. Its lanes
share out 32 features at a time: 16 loads of a lane (rotate) stand before the first of its 4 roots,
each about 20 float64 instructions in a row. Only the 32 additions of a pair wait for each other:
286 instructions of a warp for 128 terms. Sums of monotone scores stop once they are past a limit;
this changes no result.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import Views, find_last_not_above, is_finite, load_as, note_bad_rows
from .terms import (
    PRODUCT,
    canonical_score,
    is_finite_query,
    load_candidate,
    load_query,
    pointers_of,
    stored_move,
    term_of,
)

CANONICAL_LANES, CANONICAL_FEATURES = 4, 32  # pairs of a program, and features of a block
_LANES: tl.constexpr = tl.constexpr(CANONICAL_LANES)
FEATURES: tl.constexpr = tl.constexpr(CANONICAL_FEATURES)


class Pairs(NamedTuple):
    """Pairs that are scored, in one band or several, and the meaning of their lanes."""

    pairs: Any  # [bands][capacity] query << 32 | lane; None: each query with the lane of its number
    # [bands] number of pairs, or more if there was no room, plus the places of earlier bands unless
    # pairs are counted; None: all pairs
    cursor: Any
    ids: Any  # [lanes] candidate; None: lanes are candidates
    limits: Any = None  # [queries] float64; None: every score is needed
    scores: Any = None  # [bands][capacity] float64; None: not needed
    excluded: Any = None  # rising query << 32 | lane: such pairs get a lane of all ones
    status: Any = None  # [3] least bad query, candidate and factor; None: nothing is checked


class Counted(NamedTuple):
    """Counts of candidates by the limit, which is the score of a query's target."""

    targets: Any
    counts: Any  # [queries][4] greater and equal; in the second band, of known answers


@triton.jit
def add_in_order(total, terms):
    """Return ``total [P]`` plus terms ``[P, F]``, feature by feature."""
    if terms.shape[1] == 1:
        total += tl.reshape(terms, total.shape)
    else:
        halves = tl.reshape(terms, (terms.shape[0], 2, terms.shape[1] // 2))
        first, second = tl.split(tl.permute(halves, (0, 2, 1)))
        total = add_in_order(add_in_order(total, first), second)
    return total


@triton.jit
def score_pairs(views, query, candidate, limit, m_pair, num_features, FORM: tl.constexpr):
    """Return canonical scores of pairs ``[P]``, and whether numbers of each operand were finite.

    Flags ``[P, F]`` are those of query, candidate and factor, as far as these were read. A score
    that is certain to be below ``limit`` may be any number below ``limit``. A limit of NaN asks for
    all scores.
    """
    p_q, p_c, p_f = pointers_of(views, query[:, None], candidate[:, None], FORM)
    total = tl.zeros((_LANES,), tl.float64)
    bias = total
    if FORM.has_bias:
        bias = load_as(views.bias.ptr + candidate * views.bias.step, m_pair, tl.float64)
    q_finite = tl.full((_LANES, FEATURES), 1, tl.int1)
    c_finite = q_finite
    f_finite = q_finite
    feature = 0
    while feature < num_features:
        k = feature + tl.arange(0, FEATURES)
        mask = m_pair[:, None] & (k < num_features)[None, :]
        k = k.to(tl.int64)[None, :]
        q = load_query(p_q, views.queries, k, mask, FORM, tl.float64)
        c = load_candidate(p_c, p_f, views, k, mask, FORM, tl.float64)
        total = add_in_order(total, term_of(q, c, FORM, stored_move(FORM)))
        q_finite &= is_finite_query(q)
        c_finite &= is_finite(c.re) & is_finite(c.im)
        if FORM.has_factor:
            f_finite &= is_finite(c.b)
        feature += FEATURES
        if FORM.term != PRODUCT:
            lost = canonical_score(total, bias, FORM) < limit
            if tl.min((lost | (m_pair == 0)).to(tl.int32), 0) > 0:
                feature = num_features
    return canonical_score(total, bias, FORM), (q_finite, c_finite, f_finite)


@triton.jit(do_not_specialize=["capacity", "num_excluded", "num_features"])
def decide(
    views,
    band,  # Pairs
    counted,  # None: nothing is counted
    capacity,
    num_excluded,
    num_features,
    FORM: tl.constexpr,
):
    """Score pairs; a score below the limit may be any number below.

    Pairs of a band that did not overflow are counted; a query's own target never counts.
    """
    views = Views(views.queries, views.table, views.factor, views.bias)
    size = tl.full((), capacity, tl.int64)
    o_band = tl.program_id(1).to(tl.int64) * capacity
    if band.cursor is not None:
        appended = tl.load(band.cursor + tl.program_id(1)).to(tl.int64)
        if counted is None:
            appended -= o_band
        size = tl.minimum(size, appended)
        if counted is not None:
            size = tl.where(appended <= capacity, appended, 0)
    size = size.to(tl.int32)
    for first in range(tl.program_id(0) * _LANES, size, tl.num_programs(0) * _LANES):
        place = first + tl.arange(0, _LANES)
        m_pair = place < size
        pair = place.to(tl.int64) * 4294967297
        if band.pairs is not None:
            pair = tl.load(band.pairs + o_band + place, mask=m_pair, other=0)
        query = pair >> 32
        candidate = pair & 4294967295
        if band.ids is not None:
            candidate = tl.load(band.ids + candidate, mask=m_pair, other=0)
        limit = tl.full((_LANES,), float("nan"), tl.float64)
        if band.limits is not None:
            limit = tl.load(band.limits + query, mask=m_pair, other=0.0)
        if counted is not None:
            m_pair &= candidate != tl.load(counted.targets + query, mask=m_pair, other=0)
        score, finite = score_pairs(views, query, candidate, limit, m_pair, num_features, FORM)
        if band.status is not None:
            for i in tl.static_range(2 + FORM.has_factor):
                is_bad = m_pair & (tl.min(finite[i].to(tl.int32), 1) == 0)
                note_bad_rows(band.status + i, query if i == 0 else candidate, is_bad)
        if band.scores is not None:
            tl.store(band.scores + o_band + place, score, mask=m_pair)
        if counted is not None:
            one = tl.full((_LANES,), 1, tl.int64)
            p_counts = counted.counts + query * 4 + tl.program_id(1) * 2
            tl.atomic_add(p_counts, one, mask=m_pair & (score > limit), sem="relaxed")
            tl.atomic_add(p_counts + 1, one, mask=m_pair & (score == limit), sem="relaxed")
        if band.excluded is not None:
            of_query = (query << 32) | (pair & 4294967295)
            nearest = find_last_not_above(band.excluded, num_excluded, of_query)
            known = tl.load(band.excluded + nearest, mask=nearest >= 0, other=-1)
            tl.store(
                band.pairs + o_band + place, pair | 4294967295, mask=m_pair & (known == of_query)
            )
