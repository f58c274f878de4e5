"""What a batch is given: the operands that all its crops share, and its known answers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...scores import Score


@dataclass(frozen=True)
class Batch:
    """The operands of :func:`kgfast.ops.rank_counts`, as kernels take them."""

    facts: Score
    queries: Tensor  # [B, F]
    candidates: Tensor  # [N, G]
    targets: Tensor  # [B]
    bias: Tensor | None  # [N], of stride 0 if it is one number
    bias_magnitude: Tensor | None  # float64 scalar: the largest finite one
    ids: Tensor | None  # [M]
    sorted_ids: Tensor | None  # [M]
    nan_worst: bool
    arch: int  # launch.architecture
    factor: Tensor | None  # [N, D]

    @property
    def has_factor(self) -> bool:
        """Whether queries move by a factor of the candidate."""
        return self.factor is not None

    @property
    def packed_planes(self) -> tuple[int, int]:
        """Numbers a feature of a packed query, and of a packed candidate."""
        facts = self.facts
        return facts.query_planes(self.has_factor), facts.planes + self.has_factor

    @property
    def num_queries(self) -> int:
        """B."""
        return len(self.targets)

    @property
    def num_candidates(self) -> int:
        """N, or M of a subset."""
        return len(self.candidates) if self.ids is None else len(self.ids)

    @property
    def rounds_inputs(self) -> bool:
        """Whether the sweep rounds its operands."""
        return torch.float64 in (self.queries.dtype, self.candidates.dtype)

    @staticmethod
    def of(
        facts: Score,
        queries: Tensor,
        candidates: Tensor,
        targets: Tensor,
        bias: Tensor | None,
        ids: Tensor | None,
        nan_worst: bool,
        arch: int,
        factor: Tensor | None = None,
    ) -> "Batch":
        """A batch of checked arguments.

        Raises
        ------
        ValueError
            If there are more rows than a band can name.
        """
        for name, rows, limit in (("queries", queries, 31), ("candidates", candidates, 32)):
            if len(rows) >= 2**limit:
                raise ValueError(f"{name}: the triton backend takes fewer than 2**{limit} rows")
        return Batch(
            facts,
            queries,
            candidates,
            targets.contiguous(),
            None if bias is None else bias.expand(len(candidates)),
            _largest_finite_magnitude(bias),
            None if ids is None else ids.contiguous(),
            None if ids is None else ids.sort().values,
            nan_worst,
            arch,
            factor,
        )


def _largest_finite_magnitude(bias: Tensor | None) -> Tensor | None:
    if bias is None or not len(bias):
        return None
    pieces = bias.split(1 << 20)  # bounds the memory of what follows
    magnitudes = [piece.double().abs().nan_to_num(0.0, posinf=0.0).max() for piece in pieces]
    return torch.stack(magnitudes).max()


@dataclass(frozen=True)
class Known:
    """Known ids per query, CSR."""

    indptr: Tensor  # [B + 1]
    indices: Tensor  # [nnz]

    def sorted_rows(self) -> "Known":
        """The same index with rising ids in every row."""
        ids = self.indices.sort(stable=True)
        places = torch.arange(len(self.indices), dtype=torch.int64, device=self.indices.device)
        rows = torch.searchsorted(self.indptr, places, right=True) - 1
        by_row = rows[ids.indices].sort(stable=True)
        return Known(self.indptr, ids.values[by_row.indices])
