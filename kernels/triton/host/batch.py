"""Start of a batch of ranks or of best candidates, with known answers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...operands import Known, Operands


@dataclass(frozen=True)
class SharedOperands:
    """Operands that all crops share, in the kernels' form."""

    operands: Operands
    targets: Tensor  # [B]
    ids: Tensor | None  # [M]
    allows_nan: bool
    arch: int  # launch.architecture

    @property
    def device(self) -> torch.device:
        return self.operands.table.device

    @property
    def num_queries(self) -> int:
        """Number of queries."""
        return self.operands.num_queries

    @property
    def num_candidates(self) -> int:
        """Number of candidates, N, or M of a subset."""
        return self.operands.candidates.num_candidates

    @property
    def sorted_ids(self) -> Tensor | None:
        """Ids of the subset, ascending."""
        return self.operands.candidates.sorted_ids

    @property
    def bias_magnitude(self) -> Tensor | None:
        """Largest finite magnitude of the bias, a float64 scalar."""
        return self.operands.candidates.bias_magnitude

    @staticmethod
    def of(operands: Operands, targets: Tensor, arch: int, *, allows_nan: bool) -> "SharedOperands":
        """Return a batch of checked arguments.

        Raises
        ------
        ValueError
            If there are more rows than a band can name.
        """
        rows = ("queries", operands.queries, 31), ("candidates", operands.table, 32)
        for name, operand, limit in rows:
            if len(operand) >= 2**limit:
                raise ValueError(f"{name}: the triton backend takes fewer than 2**{limit} rows")
        ids = operands.candidates.ids
        ids = None if ids is None else ids.contiguous()
        return SharedOperands(operands, targets.contiguous(), ids, allows_nan, arch)


def sorted_rows(known: Known) -> Known:
    """Sort the ids of every row of the index."""
    ids = known.indices.sort(stable=True)
    places = torch.arange(len(known.indices), dtype=torch.int64, device=known.indices.device)
    rows = torch.searchsorted(known.indptr, places, right=True) - 1
    by_row = rows[ids.indices].sort(stable=True)
    return Known(known.indptr, ids.values[by_row.indices])
