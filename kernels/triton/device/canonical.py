"""Canonical scores: the definition of a rank, in float64, features in order, no fusion, bias last.

Every kernel here is launched with ``enable_fp_fusion=False``. Kernels then consist of ``mul.rn``,
``add.rn`` and ``sqrt.rn``, and flush no denormal.

Cost model: a lane owns a pair, so a feature costs up to four gathered loads, 5 float64 operations
and a correctly rounded float64 square root (about 20 float64 instructions). Only targets and the
pairs that a sweep leaves open come here: of ranks few, of the best k about k (1 + log(N / stripe))
a query. Sums of monotone scores stop once they are past a limit; this changes no result.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import Views, find_last_not_above, is_finite, load_as, note_bad_rows
from .terms import (
    PRODUCT,
    canonical_score,
    canonical_term,
    is_finite_query,
    load_candidate,
    load_query,
    pointers_of,
)

# features between two tests of which pairs can still win
STOP_BLOCK: tl.constexpr = tl.constexpr(64)
CANONICAL_LANES = 32  # pairs of a program
_LANES: tl.constexpr = tl.constexpr(CANONICAL_LANES)


class Targets(NamedTuple):
    """Targets of the queries, and counts of candidates."""

    ids: Any  # [B]
    scores: Any  # [B] float64
    greater: Any  # [B]
    equal: Any  # [B]


class BandPairs(NamedTuple):
    """Open pairs, and the meaning of their positions and lanes."""

    pairs: Any  # [capacity] position << 32 | lane
    cursor: Any  # [1]
    capacity: int
    order: Any  # query of each position; None: positions are queries
    ids: Any  # candidate of each lane; None: lanes are candidates


class Survivors(NamedTuple):
    """Pairs that may be among the best."""

    pairs: Any  # [count] position << 32 | lane
    cursor: Any  # [1] number of pairs; None: all
    order: Any  # [positions] query
    ids: Any  # [lanes] candidate; None: lanes are candidates
    limits: Any  # [positions] float64
    scores: Any  # [count] float64
    excluded: Any = None  # rising query << 32 | lane; such pairs get a lane of all ones


@triton.jit
def score_pairs(views, query, candidate, limit, m_pair, num_features, FORM: tl.constexpr):
    """Return canonical scores of pairs ``[P]``, and whether numbers of each operand were finite.

    Flags are those of query, candidate and factor, as far as these were read. A score that is
    certain to be below ``limit`` may be any number below ``limit``. A limit of NaN asks for all
    scores.
    """
    p_q, p_c, p_f = pointers_of(views, query, candidate, FORM)
    total = tl.zeros((_LANES,), tl.float64)
    bias = total
    if FORM.has_bias:
        bias = load_as(views.bias.ptr + candidate * views.bias.step, m_pair, tl.float64)
    q_finite = m_pair
    c_finite = m_pair
    f_finite = m_pair
    feature = 0
    while feature < num_features:
        stop = tl.minimum(feature + STOP_BLOCK, num_features)
        for _ in range(feature, stop):
            q = load_query(p_q, views.queries, 0, m_pair, FORM, tl.float64)
            c = load_candidate(p_c, p_f, views, 0, m_pair, FORM, tl.float64)
            total += canonical_term(q, c, FORM)
            q_finite &= is_finite_query(q)
            c_finite &= is_finite(c.re) & is_finite(c.im)
            if FORM.has_factor:
                f_finite &= is_finite(c.b)
                p_f += views.factor.step
            p_q += views.queries.step
            p_c += views.table.step
        feature = stop
        if FORM.term != PRODUCT:
            lost = canonical_score(total, bias, FORM) < limit
            if tl.min((lost | (m_pair == 0)).to(tl.int32), 0) > 0:
                feature = num_features
    return canonical_score(total, bias, FORM), (q_finite, c_finite, f_finite)


@triton.jit
def note_bad_pairs(p_status, query, candidate, m_pair, finite, FORM: tl.constexpr):
    """Lower ``p_status [3]`` to the least query, candidate and row of the factor that is bad."""
    note_bad_rows(p_status, query, m_pair & (finite[0] == 0))
    note_bad_rows(p_status + 1, candidate, m_pair & (finite[1] == 0))
    if FORM.has_factor:
        note_bad_rows(p_status + 2, candidate, m_pair & (finite[2] == 0))


@triton.jit
def pair_at(band, place, m_pair):
    """Return positions, queries and candidates of the pairs at some places of a band."""
    pair = tl.load(band.pairs + place, mask=m_pair, other=0)
    position = pair >> 32
    query = position
    if band.order is not None:
        query = tl.load(band.order + position, mask=m_pair, other=0)
    candidate = pair & 4294967295
    if band.ids is not None:
        candidate = tl.load(band.ids + candidate, mask=m_pair, other=0)
    return position, query, candidate


@triton.jit(do_not_specialize=["count", "num_features"])
def score_targets(
    views,
    targets,
    p_status,  # [3] see note_bad_pairs; None: nothing is checked
    count,
    num_features,
    FORM: tl.constexpr,
):
    """Store the canonical score of every query's target; check every query row on the way."""
    query = tl.program_id(0).to(tl.int64) * _LANES + tl.arange(0, _LANES)
    m_pair = query < count
    target = tl.load(targets.ids + query, mask=m_pair, other=0)
    limit = tl.full((_LANES,), float("nan"), tl.float64)
    score, finite = score_pairs(views, query, target, limit, m_pair, num_features, FORM)
    tl.store(targets.scores + query, score, mask=m_pair)
    if p_status is not None:
        note_bad_pairs(p_status, query, target, m_pair, finite, FORM)


@triton.jit(do_not_specialize=["num_features"])
def rescore(
    views,
    targets,
    band,
    num_features,
    FORM: tl.constexpr,
):
    """Decide the pairs of a band that did not overflow; a query's own target never counts."""
    # Made anew, since Triton 3.6 loses the members of nested tuples that are arguments in a loop.
    views = Views(views.queries, views.table, views.factor, views.bias)
    appended = tl.load(band.cursor)
    size = tl.where(appended <= band.capacity, appended, 0).to(tl.int32)
    for first in range(tl.program_id(0) * _LANES, size, tl.num_programs(0) * _LANES):
        slot = first + tl.arange(0, _LANES)
        m_pair = slot < size
        _, query, candidate = pair_at(band, slot, m_pair)
        m_pair &= candidate != tl.load(targets.ids + query, mask=m_pair, other=0)
        threshold = tl.load(targets.scores + query, mask=m_pair, other=0.0)
        score, _ = score_pairs(views, query, candidate, threshold, m_pair, num_features, FORM)
        one = tl.full((_LANES,), 1, tl.int64)
        p_greater = targets.greater + query
        tl.atomic_add(p_greater, one, mask=m_pair & (score > threshold), sem="relaxed")
        p_equal = targets.equal + query
        tl.atomic_add(p_equal, one, mask=m_pair & (score == threshold), sem="relaxed")


@triton.jit(do_not_specialize=["count", "num_excluded", "num_features"])
def score_survivors(
    views,
    survivors,
    p_status,  # [3] see note_bad_pairs; None: nothing is checked
    count,
    num_excluded,
    num_features,
    FORM: tl.constexpr,
):
    """Store canonical scores of pairs; a score below the query's limit may be any number below."""
    first = tl.program_id(0).to(tl.int64) * _LANES
    place = first + tl.arange(0, _LANES)
    size = tl.full((), count, tl.int64)
    if survivors.cursor is not None:
        size = tl.minimum(size, tl.load(survivors.cursor))
    m_pair = place < size
    num_features = tl.where(first < size, num_features, 0)
    position, query, candidate = pair_at(survivors, place, m_pair)
    limit = tl.load(survivors.limits + position, mask=m_pair, other=0.0)
    if p_status is not None:  # every number is checked
        limit = tl.full((_LANES,), float("nan"), tl.float64)
    score, finite = score_pairs(views, query, candidate, limit, m_pair, num_features, FORM)
    tl.store(survivors.scores + place, score, mask=m_pair)
    if survivors.excluded is not None:
        pair = tl.load(survivors.pairs + place, mask=m_pair, other=0)
        pair_of_query = (query << 32) | (pair & 4294967295)
        nearest = find_last_not_above(survivors.excluded, num_excluded, pair_of_query)
        known = tl.load(survivors.excluded + nearest, mask=nearest >= 0, other=-1)
        is_known = m_pair & (known == pair_of_query)
        tl.store(survivors.pairs + place, pair | 4294967295, mask=is_known)
    if p_status is not None:
        note_bad_pairs(p_status, query, candidate, m_pair, finite, FORM)
