"""Pairs of a query and a candidate with a label of their own, for losses over all candidates."""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class Positives(NamedTuple):
    """Distinct positive pairs by rising candidate id, and the slice of them in each chunk."""

    rows: Tensor  # [P]
    ids: Tensor  # [P]
    parts: list[slice]
    num_rows: int

    @classmethod
    def of_rows(cls, indptr: Tensor, indices: Tensor, chunks: list[slice]) -> "Positives":
        """From a CSR of ids per row, in any order; duplicates count once."""
        num_rows = len(indptr) - 1
        rows = torch.arange(num_rows, dtype=torch.int64, device=indptr.device)
        rows = rows.repeat_interleave(indptr.diff())
        pairs = (indices * num_rows + rows).unique() if num_rows else indices
        return cls._of(pairs % max(1, num_rows), pairs // max(1, num_rows), chunks, num_rows)

    @classmethod
    def of_targets(cls, targets: Tensor, chunks: list[slice]) -> "Positives":
        """From one id per row."""
        ids, rows = targets.sort(stable=True)
        return cls._of(rows, ids, chunks, len(targets))

    @classmethod
    def _of(cls, rows: Tensor, ids: Tensor, chunks: list[slice], num_rows: int) -> "Positives":
        edges = [chunk.start for chunk in chunks] + [chunk.stop for chunk in chunks[-1:]]
        places = torch.searchsorted(ids, ids.new_tensor(edges)).tolist()
        parts = [slice(a, b) for a, b in pairwise(places)]
        return cls(rows, ids, parts, num_rows)

    def sum_by_row(self, values: Tensor) -> Tensor:
        """Sums of ``values [P]`` over the pairs of each row, in the order of the ids, ``[B]``."""
        order = self.rows.argsort(stable=True)
        lengths = self.rows.bincount(minlength=self.num_rows)
        return torch.segment_reduce(values[order], "sum", lengths=lengths, initial=0.0, unsafe=True)
