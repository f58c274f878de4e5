"""Candidates that each query lists: checks, and the form that backends take."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kgfast.kernels.checks import Checks
from kgfast.kernels.operands import Lists, Operands
from kgfast.ops import run
from kgfast.ops.checks import check_index
from kgfast.ops.values import check_indptr

PAD = -1  # fills rows with fewer candidates than others


class CandidateIds(NamedTuple):
    """Candidates of a call: all rows, one list for all queries, or a list for each."""

    ids: Tensor | None = None  # int64: [M] for all queries; [B, K], or [nnz] with row pointers
    indptr: Tensor | None = None  # int64 [B + 1]

    @property
    def are_listed(self) -> bool:
        """Return whether each query has its own candidates."""
        return self.indptr is not None or getattr(self.ids, "ndim", 1) == 2

    def check(self, operands: Operands) -> None:
        """Check shapes, dtypes and devices."""
        ids, indptr, count, table = self.ids, self.indptr, operands.num_queries, operands.table
        if ids is None:
            if indptr is not None:
                raise ValueError("candidate_indptr must be given together with candidate_ids")
        elif indptr is not None:
            check_index("candidate_ids", ids, (None,), table)
            check_index("candidate_indptr", indptr, (count + 1,), table)
        else:
            check_index("candidate_ids", ids, (count, None) if self.are_listed else (None,), table)

    def prepared(self, operands: Operands, checks: Checks) -> tuple[Operands, Lists | None]:
        """Return operands with checked candidates, and the checked lists of queries."""
        lists, candidates = None, operands.candidates
        if self.ids is not None and self.are_listed:
            lists = lists_of(self.ids, self.indptr, candidates.num_rows)
        elif self.ids is not None:
            candidates = replace(candidates, ids=self.ids)
        return replace(operands, candidates=run.prepare(candidates, checks)), lists


def lists_of(ids: Tensor, indptr: Tensor | None, num_rows: int, first: int = 0) -> Lists:
    """Return lists of checked values: ids of a table of ``num_rows``, each once per row.

    ``ids [B, K]`` may hold -1, which is no candidate. Ids ascend in each row of the result.
    ``first`` is the number of the first row of ``ids`` in errors.
    """
    flat, is_id, least = ids.reshape(-1), ids.reshape(-1) != PAD, 0
    if indptr is None:
        counts, least = is_id.view(ids.shape).sum(1), PAD
        rows = torch.arange(len(ids), dtype=torch.int64, device=ids.device)
        rows = rows.repeat_interleave(ids.shape[1])
        indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    else:
        check_indptr(indptr, len(ids), "candidate")
        rows = torch.repeat_interleave(indptr.diff(), output_size=len(ids))

    def place(at: int) -> str:
        axes = [first + at] if ids.ndim == 1 else [first + at // ids.shape[1], at % ids.shape[1]]
        return f"candidate_ids[{', '.join(map(str, axes))}]"

    outside = ((flat < least) | (flat >= num_rows)).nonzero()
    if len(outside):
        at = int(outside[0])
        allowed = f"0 .. {num_rows - 1}" if num_rows else "empty: there are no candidates"
        none = f", or {PAD} for none" if least == PAD else ""
        raise ValueError(f"{place(at)} must be in {allowed}{none}; got {int(flat[at])}")
    keys = rows * num_rows + flat
    ordered = _sorted(keys[is_id])
    repeats = (ordered[1:] == ordered[:-1]).nonzero()
    if len(repeats):
        key = ordered[int(repeats[0])]
        at = int(((keys == key) & is_id).nonzero()[1])
        raise ValueError(
            f"{place(at)} must not repeat an earlier id of the row; got {int(flat[at])} again"
        )
    return Lists(indptr, ordered % max(1, num_rows))


def _sorted(values: Tensor) -> Tensor:
    if values.device.type != "cpu":
        return values.sort().values
    return torch.from_numpy(np.sort(values.numpy()))  # 5 times as fast as torch's sort
