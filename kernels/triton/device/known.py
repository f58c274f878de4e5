"""Known answers: the pairs of a CSR index, each once, swept in float32 and classified.

Filtered counts are raw counts minus these, so no mask over candidates exists.

Cost model: lanes are features, rows are read in place: 4 bytes per real of both rows, coalesced,
and 6 issue slots per element for rotate. Limited by the gathered rows: FB15k-237's test set has 9.7
million known answers, 1.6 % of its pairs. Each pair also takes two binary searches.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import NO_NORM, Views, find_last_not_above, load_as
from .in_place import sum_in_place
from .sweep import SUM_BLOCK, classify
from .terms import pointers_of
from .thresholds import Limits, limits_of, margin_of, norms_of

KNOWN_PAIRS = 8  # pairs of a program
_PAIRS: tl.constexpr = tl.constexpr(KNOWN_PAIRS)


class KnownRows(NamedTuple):
    """Known answers, and the data that decide their pairs."""

    indptr: Any  # [num_queries + 1]
    indices: Any  # [nnz]
    start: int  # the first entry to be counted
    targets: Any  # [num_queries]
    subset: Any  # [num_subset] sorted ids that take part; None: all
    num_subset: int
    limits: Limits  # of targets' scores
    rel: float
    unsorted: Any  # [1] set to 1 if a row's ids do not rise


@triton.jit(do_not_specialize=["stop", "num_queries", "num_features"])
def count_known(
    views,
    index,
    tally,  # with a band that holds all pairs
    stop,
    num_queries,
    num_features,
    FORM: tl.constexpr,
):
    """Count entries ``index.start .. stop - 1`` that certainly beat the target."""
    views = Views(views.queries, views.table, views.factor, views.bias)
    entry = index.start + tl.program_id(0).to(tl.int64) * _PAIRS + tl.arange(0, _PAIRS)
    m_entry = entry < stop
    entry = tl.minimum(entry, stop - 1)
    query = find_last_not_above(index.indptr, num_queries + 1, entry)
    candidate = tl.load(index.indices + entry)
    has_previous = entry > tl.load(index.indptr + query)
    previous = tl.load(index.indices + entry - 1, mask=has_previous, other=-1)
    if tl.max((m_entry & (previous > candidate)).to(tl.int32), 0) > 0:
        tl.store(index.unsorted, 1)
    keep = m_entry & (previous != candidate) & (candidate != tl.load(index.targets + query))
    lane = candidate
    if index.subset is not None:
        lane = find_last_not_above(index.subset, index.num_subset, candidate)
        nearest = tl.load(index.subset + lane, mask=lane >= 0, other=-1)
        keep &= nearest == candidate

    p_q, p_c, p_f = pointers_of(views, query, candidate, FORM)
    places = p_q[:, None, None], p_c[:, None, None], p_f[:, None, None]
    zero = tl.zeros((_PAIRS, 1, SUM_BLOCK), tl.float32)
    m_pair = keep[:, None, None]
    sums = sum_in_place(places, views, (zero, zero), m_pair, num_features, FORM)
    distance = tl.reshape(sums[0], (_PAIRS,))
    norm = tl.reshape(sums[1], (_PAIRS,))
    limits = Limits(
        index.limits.scores, index.limits.norms, index.limits.bias, index.limits.margins
    )
    score, size = limits_of(limits, query)
    ranked = score == score
    tau = -score.to(tl.float32)
    absolute = margin_of(limits, size, query, 0, norms_of(FORM))
    if FORM.norm != NO_NORM:
        absolute += margin_of(limits, size, query, 1, norms_of(FORM)) * norm
    if FORM.has_bias:
        p_bias = views.bias.ptr + candidate * views.bias.step
        tau += load_as(p_bias, None, tl.float32)
    beats, loses = classify(distance, tau, index.rel, absolute)
    one = tl.full((_PAIRS,), 1, tl.int64)
    counts = keep & (beats | (ranked == 0))  # a target without a score loses to every candidate
    tl.atomic_add(tally.counts + query * 4 + 2, one, mask=counts, sem="relaxed")
    is_open = keep & ranked & ((beats | loses) == 0)
    flag = is_open.to(tl.int32)
    num_open = tl.sum(flag, 0)
    if num_open > 0:
        first = tl.atomic_add(tally.cursor, num_open.to(tl.int64), sem="relaxed")
        p_pair = tally.band + first + tl.cumsum(flag, 0) - flag
        tl.store(p_pair, (query << 32) | lane, mask=is_open)
