"""Losses over all candidates as data, and their results, for any backend."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .checks import inside_of, rising_of


@dataclass(frozen=True)
class Bce:
    """Binary cross entropy with labels ``a [j positive] + c``."""

    indptr: Tensor  # int64 [B + 1]
    indices: Tensor  # int64 [nnz], in any order; duplicates count once
    a: float
    c: float

    def of_queries(self, rows: slice) -> "Bce":
        """Return the loss of a block of queries."""
        indptr = self.indptr[rows.start : rows.stop + 1]
        if len(indptr) == len(self.indptr):
            return self
        first, last = int(indptr[0]), int(indptr[-1])
        return replace(self, indptr=indptr - first, indices=self.indices[first:last])

    def positives(self) -> tuple[Tensor, Tensor]:
        """Return queries and ids ``[P]`` of distinct pairs, by rising id, then query."""
        count = len(self.indptr) - 1
        rows = torch.arange(count, dtype=torch.int64, device=self.indptr.device)
        rows = rows.repeat_interleave(self.indptr.diff())
        pairs = (self.indices * count).add_(rows).unique()
        return pairs % count, pairs // count

    def inside(self, count: int) -> "Bce":
        """Clamp labels to rows of ``count`` candidates: nothing is read out of bounds."""
        if not count:
            return self
        _, indptr = rising_of(self.indptr, len(self.indices))
        return replace(self, indptr=indptr, indices=inside_of(self.indices, count))

    def contiguous(self) -> "Bce":
        """Return the loss with labels in contiguous tensors."""
        return replace(self, indptr=self.indptr.contiguous(), indices=self.indices.contiguous())


@dataclass(frozen=True)
class CrossEntropy:
    """Softmax cross entropy with one target a query; smoothing moves mass to all candidates."""

    targets: Tensor  # int64 [B]
    smoothing: float

    def of_queries(self, rows: slice) -> "CrossEntropy":
        """Return the loss of a block of queries."""
        return replace(self, targets=self.targets[rows])

    def positives(self) -> tuple[Tensor, Tensor]:
        """Return queries and targets ``[B]``, by rising target."""
        ids, queries = self.targets.sort(stable=True)
        return queries, ids

    def inside(self, count: int) -> "CrossEntropy":
        """Clamp targets to rows of ``count`` candidates."""
        return replace(self, targets=inside_of(self.targets, count))

    def contiguous(self) -> "CrossEntropy":
        """Return the loss with targets in a contiguous tensor."""
        return replace(self, targets=self.targets.contiguous())


class LossNeed(NamedTuple):
    """Gradients of a loss that are needed."""

    queries: bool
    table: bool
    bias: bool


class LossGradients(NamedTuple):
    """Gradients of queries and table in their dtypes, and of an expanded bias ``[N]``."""

    queries: Tensor | None
    table: Tensor | None
    bias: Tensor | None


class LossRows(NamedTuple):
    """Row losses, and sums of the rows' scores; a sum is finite only if all scores of its row are.

    Backends may count a bias of -inf, which leaves a candidate out, as 0.
    """

    rows: Tensor  # [B], float32, float64 for float64 queries
    linear: Tensor  # [B] float64
    logsumexp: Tensor | None = None  # [B] float64, of cross entropy
    scores: Tensor | None = None  # scores of all pairs, if stored for gradients


class LossTotal(NamedTuple):
    """Sum of row losses, divided; sums of the rows' scores; gradients."""

    total: Tensor  # [], of the rows' dtype
    linear: Tensor
    gradients: LossGradients


class LossChecks(NamedTuple):
    """Checks of values of a loss: each raises, or returns after waiting for the device.

    A backend with kernels that see values calls these checks, labels first, only for a wrong value.
    """

    labels: Callable[[], None]
    scores: Callable[[Tensor], None]  # check of operands, given the sums of the rows' scores
