"""What a batch is given: the operands that all its crops share, and its known answers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...scores import Score
from .sides import Sides


@dataclass(frozen=True)
class Batch:
    """The operands of :func:`kgfast.ops.rank_counts`, as kernels take them."""

    sides: Sides
    targets: Tensor  # [B]
    bias_magnitude: Tensor | None  # float64 scalar: the largest finite one
    ids: Tensor | None  # [M]
    sorted_ids: Tensor | None  # [M]
    nan_worst: bool
    arch: int  # launch.architecture

    @property
    def score(self) -> Score:
        """The facts of the score."""
        return self.sides.score

    @property
    def device(self) -> torch.device:
        """Where the operands are."""
        return self.sides.table.device

    @property
    def num_queries(self) -> int:
        """B."""
        return len(self.targets)

    @property
    def num_candidates(self) -> int:
        """N, or M of a subset."""
        return len(self.sides.table if self.ids is None else self.ids)

    @staticmethod
    def of(
        sides: Sides, targets: Tensor, ids: Tensor | None, nan_worst: bool, arch: int
    ) -> "Batch":
        """A batch of checked arguments; a bias may be of one number.

        Raises
        ------
        ValueError
            If there are more rows than a band can name.
        """
        rows = ("queries", sides.queries, 31), ("candidates", sides.table, 32)
        for name, operand, limit in rows:
            if len(operand) >= 2**limit:
                raise ValueError(f"{name}: the triton backend takes fewer than 2**{limit} rows")
        magnitude, bias = _largest_finite_magnitude(sides.bias), sides.bias
        if bias is not None:
            bias = bias.expand(len(sides.table))
        return Batch(
            sides._replace(bias=bias),
            targets.contiguous(),
            magnitude,
            None if ids is None else ids.contiguous(),
            None if ids is None else ids.sort().values,
            nan_worst,
            arch,
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
