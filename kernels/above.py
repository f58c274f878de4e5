"""Candidates with scores that reach a threshold: the smallest canonical score, results as CSR."""

import torch
from torch import Tensor

from .backend import Backend
from .checks import Checks
from .ieee import ieee_arithmetic
from .operands import Above, Known, Operands

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


def above(
    backend: Backend,
    operands: Operands,
    lowest: Tensor,
    known: Known | None,
    checks: Checks,
    most: int,
) -> Above | int:
    """Return the results of ``Backend.above``, or only their number if there are more than most."""
    results = None if most < 0 else backend.above(operands, lowest, known, checks, most)
    if results is not None:
        return results
    none = torch.full_like(lowest, -1, dtype=torch.int64)
    if known is None:
        known = Known(none.new_zeros(len(none) + 1), none[:0])
    numbers = backend.rank_counts(operands, none, known, checks, lowest[None])
    counts = numbers.greater + numbers.equal - numbers.greater_excluded - numbers.equal_excluded
    return int(counts.sum())
