"""The best k of each query: chosen from a row of scores, and merged by score, then lowest lane.

Cost model: an entry's place is the number of better entries of its query. A new entry is compared
with the best so far and with all new entries: ``n (n + k)`` comparisons for ``n`` new entries, some
100 at most in a usual span, in blocks of 32 x 16. Nothing depends on the order of the new entries.
The choice reads a row of scores once, and finds the k-th in 32 steps of counting.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import find_last_not_above

ENTRIES = 32  # entries of a program
NO_LANE = 0xFFFFFFFF  # lane of no candidate
_ENTRIES: tl.constexpr = tl.constexpr(ENTRIES)
_OTHERS: tl.constexpr = tl.constexpr(16)  # entries that these are compared with at once
_NO_LANE: tl.constexpr = tl.constexpr(NO_LANE)
_LARGEST: tl.constexpr = tl.constexpr(2**63 - 1)
# keys below the key of every number
_OF_NO_LANE: tl.constexpr = tl.constexpr(-(2**63))
_OF_NAN: tl.constexpr = tl.constexpr(1 - 2**63)
_LEAST: tl.constexpr = tl.constexpr(-(2**31))
_KNOWN: tl.constexpr = tl.constexpr(128)  # known answers that are left out at once


class Best(NamedTuple):
    """Entries ``[positions][k]``, from best to worst."""

    lanes: Any  # NO_LANE: there are fewer than k
    scores: Any  # float64; -inf where there is no lane


class BestOut(NamedTuple):
    """Results ``[queries][k]``, in the dtype of scores, and what lanes stand for."""

    scores: Any
    ids: Any  # -1: there are fewer than k
    of_lanes: Any  # [lanes] candidate; None: lanes are candidates
    largest: Any  # [1] raised to the number of new entries of a query


@triton.jit(do_not_specialize=["num_excluded", "width", "k"])
def choose_best(
    p_scores,  # [positions][width] float32; known answers get minus infinity
    excluded,  # rising query << 32 | lane; None: there are none
    tally,  # empty bands for the chosen pairs, k or fewer
    num_excluded,
    width,
    k,
    BLOCK: tl.constexpr,
):
    """Append the best k of a query's scores, of ties the first, to its band; no NaN, nor -inf."""
    position = tl.program_id(0).to(tl.int64)
    query = position + tally.first_query
    p_row = p_scores + position * width
    if excluded is not None:
        ends = (query + tl.arange(0, 2)) * 4294967296 - 1
        ends = find_last_not_above(excluded, num_excluded, ends) + 1
        stop = tl.max(ends, 0)
        for first in range(tl.min(ends, 0), stop, _KNOWN):
            known = first + tl.arange(0, _KNOWN)
            lane = tl.load(excluded + known, mask=known < stop, other=_NO_LANE) & _NO_LANE
            tl.store(p_row + lane, float("-inf"), mask=lane < width)
        tl.debug_barrier()
    lane = tl.arange(0, BLOCK)
    score = tl.load(p_row + lane, mask=lane < width, other=float("-inf"))
    is_real = score > float("-inf")
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    key = tl.where(is_real, bits ^ ((bits >> 31) & 2147483647), _LEAST)
    # the highest number that k keys reach, bit by bit
    limit = tl.where(tl.sum((key >= 0).to(tl.int32), 0) >= k, 0, _LEAST)
    for i in range(31):
        higher = limit + (1 << (30 - i))
        limit = tl.where(tl.sum((key >= higher).to(tl.int32), 0) >= k, higher, limit)
    is_above = (key > limit).to(tl.int32)
    is_tie = (key == limit).to(tl.int32)
    is_first = tl.cumsum(is_tie, 0) <= k - tl.sum(is_above, 0)
    is_chosen = is_real & ((is_above > 0) | ((is_tie > 0) & is_first))
    one = is_chosen.to(tl.int32)
    p_cursor = tally.cursors + position + one * 0
    slot = tl.atomic_add(p_cursor, one, mask=is_chosen, sem="relaxed")
    tl.store(tally.band + slot, query * 4294967296 + lane, mask=is_chosen)


@triton.jit
def key_of(score, lane):
    """Return integers in the order of the scores: zeros equal, NaN and then no lane at the end."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int64, bitcast=True)
    key = bits ^ ((bits >> 63) & _LARGEST)
    key = tl.where(score == score, key, _OF_NAN)
    return tl.where(lane == _NO_LANE, _OF_NO_LANE, key)


@triton.jit
def count_better(p_pairs, p_scores, size, key, lane):
    """Count, for each entry, the better ones of some pairs."""
    count = tl.zeros_like(lane)
    for i in range(0, size, _OTHERS):
        o = i + tl.arange(0, _OTHERS)
        mask = o < size
        other_lane = tl.load(p_pairs + o, mask=mask, other=_NO_LANE) & _NO_LANE
        other = key_of(tl.load(p_scores + o, mask=mask, other=0.0), other_lane)[None, :]
        is_first = (other == key[:, None]) & (other_lane[None, :] < lane[:, None])
        count += tl.sum(((other > key[:, None]) | is_first).to(tl.int64), 1)
    return count


@triton.jit(do_not_specialize=["first_query", "capacity", "k"])
def merge_best(
    best,  # None: there are no best so far
    survivors,  # Pairs, a band of each query
    merged,
    out,  # BestOut
    first_query,
    capacity,
    k,
):
    """Merge scored pairs of a query into its best; raise the limit, write the results."""
    position = tl.program_id(0).to(tl.int64)
    appended = tl.load(survivors.cursor + position) - position * capacity
    size = tl.minimum(appended, capacity).to(tl.int32)
    if tl.program_id(1) == 0:
        tl.atomic_max(out.largest, appended, sem="relaxed")
    p_pairs = survivors.pairs + position * capacity
    p_scores = survivors.scores + position * capacity
    o_best = position * k
    o_out = (position + first_query) * k
    for start in range(tl.program_id(1) * _ENTRIES, k + size, tl.num_programs(1) * _ENTRIES):
        entry = start + tl.arange(0, _ENTRIES)
        is_old = entry < k
        is_new = (is_old == 0) & (entry < k + size)
        lane = tl.load(p_pairs + entry - k, mask=is_new, other=_NO_LANE) & _NO_LANE
        score = tl.load(p_scores + entry - k, mask=is_new, other=float("-inf"))
        if best is not None:
            lane = tl.where(
                is_old, tl.load(best.lanes + o_best + entry, mask=is_old, other=0), lane
            )
            old = tl.load(best.scores + o_best + entry, mask=is_old, other=0.0)
            score = tl.where(is_old, old, score)
        key = key_of(score, lane)
        # An old entry comes after better old ones. Known answers have no lane.
        place = count_better(p_pairs, p_scores, size, key, lane) + tl.where(is_old, entry, 0)
        if best is not None:
            better = count_better(best.lanes + o_best, best.scores + o_best, k, key, lane)
            place += tl.where(is_old, 0, better)
        is_real = lane != _NO_LANE
        is_best = (is_old | (is_new & is_real)) & (place < k)
        tl.store(merged.lanes + o_best + place, lane, mask=is_best)
        tl.store(merged.scores + o_best + place, score, mask=is_best)
        p_limit = survivors.limits + position + first_query
        rises = is_best & (place == k - 1) & (key > _OF_NAN)
        rises &= score > tl.load(p_limit + place * 0, mask=rises, other=0.0)
        tl.store(p_limit + place * 0, score, mask=rises)
        id = lane
        if out.of_lanes is not None:
            id = tl.load(out.of_lanes + lane, mask=is_best & is_real, other=0)
        tl.store(out.scores + o_out + place, score.to(out.scores.dtype.element_ty), mask=is_best)
        tl.store(out.ids + o_out + place, tl.where(is_real, id, -1), mask=is_best)
