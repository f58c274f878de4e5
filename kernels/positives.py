"""Pairs of a query and a candidate with a separate label, for losses over all candidates."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .labels import Bce


class Positives(NamedTuple):
    """Distinct pairs: by rising query, then candidate, or by rising candidate, then query."""

    queries: Tensor  # [P]
    ids: Tensor  # [P]
    num_queries: int

    @classmethod
    def of_labels(
        cls, labels: Bce, num_candidates: int, *, by_candidate: bool = False
    ) -> "Positives":
        """Read a CSR of ids per query, in any order; duplicates count once."""
        count = len(labels.indptr) - 1
        rows = torch.arange(count, dtype=torch.int64, device=labels.indptr.device)
        rows = rows.repeat_interleave(labels.indptr.diff())
        if by_candidate:
            ids, queries = _distinct(labels.indices, rows, count)
        else:
            queries, ids = _distinct(rows, labels.indices, num_candidates)
        return cls(queries, ids, count)

    @classmethod
    def of_targets(cls, targets: Tensor, *, by_candidate: bool = False) -> "Positives":
        """Read one id per query."""
        if by_candidate:
            ids, queries = targets.sort(stable=True)
        else:
            queries = torch.arange(len(targets), dtype=torch.int64, device=targets.device)
            ids = targets.contiguous()
        return cls(queries, ids, len(targets))

    def in_chunks(self, chunks: Sequence[slice]) -> list[slice]:
        """Return the range of pairs of each chunk of candidates, given pairs by candidate."""
        edges = [chunk.start for chunk in chunks] + [chunk.stop for chunk in chunks[-1:]]
        places = torch.searchsorted(self.ids, self.ids.new_tensor(edges)).tolist()
        return [slice(first, last) for first, last in pairwise(places)]

    def sum_by_query(self, values: Tensor) -> Tensor:
        """Sum ``values [P]`` over the pairs of each query, in the order of ids: float64 ``[B]``."""
        sums = values.new_zeros(self.num_queries, dtype=torch.float64)
        # bincount and index_add_ have no fixed order on a GPU.
        return sums.index_put_((self.queries,), values.double(), accumulate=True)


def _distinct(first: Tensor, second: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return distinct pairs in rising order; ``second`` is below ``size``."""
    pairs = (first * size).add_(second).unique()
    return pairs // size, pairs % size
