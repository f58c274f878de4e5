"""Merge of pairs into the best k of each position, by score, then lowest lane.

Cost model: an entry's place is the number of better entries of its position. A new entry is
compared with the best so far and with all new entries of the position: ``n (n + k)`` comparisons
for ``n`` new entries, some 100 at most in a usual span, in blocks of 32 x 16. Nothing else depends
on the order of the new entries, but equal positions stand together.
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


class Best(NamedTuple):
    """Entries ``[positions][k]``, from best to worst."""

    lanes: Any  # NO_LANE: there are fewer than k
    scores: Any  # float64; -inf where there is no lane


class BestOut(NamedTuple):
    """Results ``[queries][k]``, in the dtype of scores, and what positions and lanes stand for."""

    scores: Any
    ids: Any  # -1: there are fewer than k
    order: Any  # [positions] query
    of_lanes: Any  # [lanes] candidate; None: lanes are candidates


@triton.jit
def key_of(score, lane):
    """Return integers in the order of the scores: zeros equal, NaN and then no lane at the end."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int64, bitcast=True)
    key = bits ^ ((bits >> 63) & _LARGEST)
    key = tl.where(score == score, key, _OF_NAN)
    return tl.where(lane == _NO_LANE, _OF_NO_LANE, key)


@triton.jit
def count_better(p_pairs, p_scores, first, stop, key, lane):
    """Count, for each entry, the pairs ``first .. stop - 1`` that are better."""
    count = tl.zeros_like(lane)
    longest = tl.max(stop - first, 0).to(tl.int32)
    for i in range(0, longest, _OTHERS):
        o = first[:, None] + (i + tl.arange(0, _OTHERS))[None, :]
        mask = o < stop[:, None]
        other_lane = tl.load(p_pairs + o, mask=mask, other=_NO_LANE) & _NO_LANE
        other = key_of(tl.load(p_scores + o, mask=mask, other=0.0), other_lane)
        is_first = (other == key[:, None]) & (other_lane < lane[:, None])
        count += tl.sum(((other > key[:, None]) | is_first).to(tl.int64), 1)
    return count


@triton.jit(do_not_specialize=["capacity", "num_positions", "k"])
def merge_best(best, survivors, merged, out, capacity, num_positions, k):
    """Merge scored pairs of rising positions into the best; raise the limits, write the results."""
    size = tl.minimum(tl.load(survivors.cursor), capacity)
    num_old = tl.full((), num_positions, tl.int64) * k
    start = tl.program_id(0).to(tl.int64) * _ENTRIES
    if start < num_old + size:
        entry = start + tl.arange(0, _ENTRIES)
        is_old = entry < num_old
        is_new = (is_old == 0) & (entry < num_old + size)
        pair = tl.load(survivors.pairs + (entry - num_old), mask=is_new, other=0)
        lane = tl.load(best.lanes + entry, mask=is_old, other=_NO_LANE)
        lane = tl.where(is_new, pair & _NO_LANE, lane)
        score = tl.load(best.scores + entry, mask=is_old, other=0.0)
        new_score = tl.load(survivors.scores + (entry - num_old), mask=is_new, other=0.0)
        score = tl.where(is_new, new_score, score)
        position = tl.where(is_old, entry // k, pair >> 32)
        key = key_of(score, lane)

        # Known answers have no lane. They still stand with their position.
        below = position * 4294967296 - 1
        first = find_last_not_above(survivors.pairs, size, below) + 1
        stop = find_last_not_above(survivors.pairs, size, below + 4294967296) + 1
        place = count_better(survivors.pairs, survivors.scores, first, stop, key, lane)
        first = position * k
        stop = tl.where(is_new, first + k, first)
        better_old = count_better(best.lanes, best.scores, first, stop, key, lane)
        place += tl.where(is_new, better_old, entry - first)

        is_best = (is_old | (is_new & (lane != _NO_LANE))) & (place < k)
        tl.store(merged.lanes + first + place, lane, mask=is_best)
        tl.store(merged.scores + first + place, score, mask=is_best)
        p_limit = survivors.limits + position
        rises = is_best & (place == k - 1) & (key > _OF_NAN)
        rises &= score > tl.load(p_limit, mask=rises, other=0.0)
        tl.store(p_limit, score, mask=rises)

        is_real = is_best & (lane != _NO_LANE)
        id = lane
        if out.of_lanes is not None:
            id = tl.load(out.of_lanes + lane, mask=is_real, other=0)
        o_out = tl.load(out.order + position, mask=is_best, other=0) * k + place
        tl.store(out.scores + o_out, score.to(out.scores.dtype.element_ty), mask=is_best)
        tl.store(out.ids + o_out, tl.where(is_real, id, -1), mask=is_best)
