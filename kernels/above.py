"""Candidates with scores that reach a threshold: the smallest canonical score, results as CSR.

:func:`above` serves the reference. Cost: the counts of ranks, and the best k of each query, where k
is the query's number of results. Memory: some 16 bytes per result for
``RESULTS`` results, or for all results of one query.
"""

from typing import Any

import torch
from torch import Tensor

from .checks import Checks
from .ieee import ieee_arithmetic
from .operands import Above, Counts, Known, Operands

RESULTS = 1 << 20  # results that are found together
_OVERFLOW = 2.0**128  # replaces a float32 infinity, with the spacing of the numbers below


def merged(pieces: list[tuple[Tensor, Above]], num_queries: int, like: Tensor) -> Above:
    """Join results of queries ``rows``, distinct in a piece; for one query, pieces ascend by id.

    Pieces are taken off the list, so that their memory is free after the copy. ``like`` has the
    dtype and device of scores.
    """
    counts = torch.zeros(num_queries, dtype=torch.int64, device=like.device)
    for rows, piece in pieces:
        counts[rows] += piece.indptr.diff()
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    total, after = int(indptr[-1]), indptr[:-1].clone()
    ids, scores = indptr.new_empty(total), like.new_empty(total)
    pieces.reverse()
    while pieces:
        rows, piece = pieces.pop()
        lengths = piece.indptr.diff()
        places = torch.repeat_interleave(after[rows] - piece.indptr[:-1], lengths)
        places += torch.arange(len(places), dtype=torch.int64, device=ids.device)
        ids[places], scores[places] = piece.ids, piece.scores
        after[rows] += lengths
    return Above(indptr, ids, scores)


def lowest_scores(thresholds: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the smallest float64 numbers that round to the thresholds or more, ``[B]``.

    ``thresholds`` are float64; ``dtype`` is the dtype of rounded scores, float32 or float64.
    Between two neighbours in float32 the middle rounds to the even neighbour.
    """
    if dtype == torch.float64:
        return thresholds
    with ieee_arithmetic():
        near = thresholds.float()
        up = torch.full_like(near, torch.inf)
        near = torch.where(near.double() < thresholds, near.nextafter(up), near)
        below = near.nextafter(-up).double().clamp(min=-_OVERFLOW)
        middle = (near.double().clamp(max=_OVERFLOW) + below) / 2
        is_even = near.view(torch.int32) & 1 == 0
        return torch.where(is_even, middle, middle.nextafter(up.double()))


def counts_above(
    backend: Any, operands: Operands, lowest: Tensor, known: Known | None, checks: Checks
) -> Tensor:
    """Count the candidates with canonical scores of at least ``lowest [B]``, int64 ``[B]``."""
    none = torch.full_like(lowest, -1, dtype=torch.int64)
    if known is None:
        known = Known(none.new_zeros(len(none) + 1), none[:0])
    numbers: Counts = backend.rank_counts(operands, none, known, checks, lowest[None])
    counts = numbers.greater + numbers.equal - numbers.greater_excluded - numbers.equal_excluded
    return counts.reshape(len(none))


def above(
    backend: Any,
    operands: Operands,
    lowest: Tensor,
    known: Known | None,
    checks: Checks,
    most: int,
) -> Above | int:
    """Return all candidates of one crop with canonical scores of at least ``lowest``.

    ``lowest`` is float64 ``[B]``. The result is only the number if there are more than ``most``.
    """
    counts = counts_above(backend, operands, lowest, known, checks)
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    total = int(indptr[-1])
    if total > most:
        return total
    queries = operands.queries
    ids = torch.empty(total, dtype=torch.int64, device=queries.device)
    scores = torch.empty(total, dtype=queries.dtype, device=queries.device)
    order = counts.argsort(descending=True)  # queries with similar counts are served together
    sizes: list[int] = counts[order].tolist()
    first = 0
    while first < len(sizes) and sizes[first]:
        k = sizes[first]
        last = min(len(sizes), first + max(1, RESULTS // k))
        rows, first = order[first:last], last
        some = None if known is None else _known_of(known, rows)
        values, best = backend.topk(operands.of_queries(rows), k, some, checks)
        # the best of each query come first; the others of the k are moved behind by their ids
        place = torch.arange(k, dtype=torch.int64, device=rows.device)
        beyond = place >= counts[rows, None]
        best = best.reshape(-1, k).masked_fill(beyond, torch.iinfo(torch.int64).max)
        best, by_id = best.sort(dim=1)
        places = (indptr[rows, None] + place)[~beyond]
        ids[places], scores[places] = best[~beyond], values.reshape(-1, k).gather(1, by_id)[~beyond]
    return Above(indptr, ids, scores)


def _known_of(known: Known, rows: Tensor) -> Known:
    """Return the known answers of some queries."""
    counts = known.indptr.diff()[rows]
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    starts = torch.repeat_interleave(known.indptr[rows] - indptr[:-1], counts)
    places = torch.arange(len(starts), dtype=torch.int64, device=rows.device)
    return Known(indptr, known.indices[starts + places])
