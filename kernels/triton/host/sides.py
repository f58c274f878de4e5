"""The two sides of a problem: queries, and candidates with their factor and bias."""

from typing import NamedTuple

import torch
from torch import Tensor

from ...scores import Score
from ..device.operands import Form, Operands
from .views import form_of, operands_of


class Sides(NamedTuple):
    """Queries ``[B, F]`` and candidates ``[N, G]``, as they are stored."""

    queries: Tensor
    table: Tensor
    score: Score
    factor: Tensor | None = None  # [N, D]
    bias: Tensor | None = None  # [N], of stride 0 if it is one number

    @property
    def num_features(self) -> int:
        """Features of the full width."""
        return self.score.num_features(self.table.shape[1])

    @property
    def has_factor(self) -> bool:
        """Whether queries move by a factor of the candidate."""
        return self.factor is not None

    @property
    def packed_planes(self) -> tuple[int, int]:
        """Numbers a feature of a packed query, and of a packed candidate."""
        return self.score.query_planes(self.has_factor), self.score.planes + self.has_factor

    @property
    def rounds_inputs(self) -> bool:
        """Whether float32 kernels round what is stored."""
        return torch.float64 in (self.queries.dtype, self.table.dtype)

    def form(self, norm: int = 0) -> Form:
        """What kernels are compiled for; ``norm``: that the bound needs."""
        return form_of(self.score, self.has_factor, self.bias is not None, norm)

    def views(self) -> Operands:
        """Pointers and strides."""
        return operands_of(self.queries, self.table, self.score, self.factor, self.bias)

    def of_rows(self, rows: slice) -> "Sides":
        """Some of the queries."""
        return self._replace(queries=self.queries[rows])

    def of_candidates(self, columns: slice | Tensor) -> "Sides":
        """Some of the candidates."""
        factor = None if self.factor is None else self.factor[columns]
        bias = None if self.bias is None else self.bias[columns]
        return self._replace(table=self.table[columns], factor=factor, bias=bias)
