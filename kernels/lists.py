"""Candidates that each query lists, counted and ordered by canonical scores of pairs.

Backends without a kernel for lists share this module. Cost: a canonical score per pair, and a sort
of the pairs to order the best. Memory: some 64 bytes per pair for at most ``PAIRS`` pairs, or for
all pairs of one query if these are more.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from .operands import Counts, Known, Lists, Operands

PAIRS = 1 << 18  # pairs that are scored together

Scoring = AbstractContextManager[Callable[[int, Tensor, Tensor], Tensor]]
"""Context with a function that returns canonical scores, float64 ``[P]``, of a crop, for pairs of
queries and candidates ``[P]``.
"""


def list_counts(
    scoring: Scoring, operands: Operands, lists: Lists, targets: Tensor, known: Known
) -> Counts:
    """Count like :meth:`kgfast.kernels.backend.Backend.rank_counts`, among listed candidates."""
    every = torch.arange(len(targets), dtype=torch.int64, device=targets.device)
    excluded = excluded_keys(known, operands)
    counts = targets.new_zeros(len(operands.crops), 4, len(targets))
    with scoring as score:
        for dim, of_crop in zip(operands.crops, counts, strict=True):
            target_scores = score(dim, every, targets)
            for queries in _ranges(lists):
                rows, ids = _pairs(lists, queries)
                other = ids != targets[rows]
                rows, ids = rows[other], ids[other]
                scores, threshold = score(dim, rows, ids), target_scores[rows]
                beats, equals = (scores > threshold) | threshold.isnan(), scores == threshold
                is_known = contains(excluded, keys_of(rows, ids, operands))
                kinds = beats, equals, beats & is_known, equals & is_known
                of_crop.index_add_(1, rows, torch.stack(kinds).long())
    return Counts.of(counts, operands)


def list_topk(
    scoring: Scoring, operands: Operands, lists: Lists, k: int, known: Known | None
) -> tuple[Tensor, Tensor]:
    """Return the best like :meth:`kgfast.kernels.backend.Backend.topk`, of listed candidates."""
    queries = operands.queries
    shape = (len(operands.crops), len(queries), k)
    best = queries.new_full(shape, -torch.inf)
    best_ids = queries.new_full(shape, -1, dtype=torch.int64)
    excluded = excluded_keys(known, operands)
    with scoring as score:
        for dim, its_scores, its_ids in zip(operands.crops, best, best_ids, strict=True):
            for ends in _ranges(lists):
                rows, ids = _pairs(lists, ends)
                left = ~contains(excluded, keys_of(rows, ids, operands))
                rows, ids = rows[left], ids[left]
                scores = score(dim, rows, ids)
                order = _order(rows, ids, scores)
                rows, ids, scores = rows[order], ids[order], scores[order]
                place = torch.arange(len(rows), dtype=torch.int64, device=rows.device)
                place -= torch.searchsorted(rows, rows)  # place within the query
                kept = place < k
                at = rows[kept], place[kept]
                its_scores[at] = scores[kept].to(best.dtype)
                its_ids[at] = ids[kept]
    return (best[0], best_ids[0]) if operands.dims is None else (best, best_ids)


def _order(rows: Tensor, ids: Tensor, scores: Tensor) -> Tensor:
    """Order pairs by query, then from best to worst, NaN last, the lowest id first."""
    order = ids.argsort()
    number = scores.nan_to_num(0.0, torch.inf, -torch.inf)
    order = order[number[order].argsort(descending=True, stable=True)]
    order = order[scores.isnan()[order].long().argsort(stable=True)]
    return order[rows[order].argsort(stable=True)]


def _ranges(lists: Lists) -> Iterator[tuple[int, int]]:
    """Cut queries into ranges of at most ``PAIRS`` pairs, or of one query with more pairs."""
    indptr: list[int] = lists.indptr.tolist()
    first = 0
    for query in range(len(indptr) - 1):
        if indptr[query + 1] - indptr[first] > PAIRS and query > first:
            yield first, query
            first = query
    if first < len(indptr) - 1:
        yield first, len(indptr) - 1


def _pairs(lists: Lists, queries: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return query and candidate of every pair of a range of queries, ``[P]`` each."""
    first, last = queries
    indptr = lists.indptr[first : last + 1]
    ids = lists.indices[int(indptr[0]) : int(indptr[-1])]
    rows = torch.arange(first, last, dtype=torch.int64, device=ids.device)
    return torch.repeat_interleave(rows, indptr.diff(), output_size=len(ids)), ids


def excluded_keys(known: Known | None, operands: Operands) -> Tensor:
    """Return the keys of known answers, ascending and distinct."""
    if known is None:
        return torch.empty(0, dtype=torch.int64, device=operands.table.device)
    rows = torch.repeat_interleave(known.indptr.diff(), output_size=len(known.indices))
    keys: Tensor = keys_of(rows, known.indices, operands).unique()
    return keys


def keys_of(rows: Tensor, ids: Tensor, operands: Operands) -> Tensor:
    """Return a key for each pair of a query (``rows``) and a candidate (``ids``), broadcast."""
    return rows * operands.candidates.num_rows + ids


def contains(ordered: Tensor, keys: Tensor) -> Tensor:
    """Return a mask of the keys that occur among rising ones; the host does not wait."""
    if not len(ordered):
        return torch.zeros_like(keys, dtype=torch.bool)
    place = torch.searchsorted(ordered, keys).clamp_(max=len(ordered) - 1)
    return ordered[place] == keys
