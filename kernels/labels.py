"""Arguments and results of losses over all candidates, for any backend."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from .checks import inside_of, rising_of


class Labels(NamedTuple):
    """Labels of binary cross entropy, ``a [j positive] + c``."""

    indptr: Tensor  # int64 [B + 1]
    indices: Tensor  # int64 [nnz], in any order; duplicates count once
    a: float
    c: float

    def of_queries(self, rows: slice) -> "Labels":
        """Return the labels of a block of queries."""
        indptr = self.indptr[rows.start : rows.stop + 1]
        if len(indptr) == len(self.indptr):
            return self
        first, last = int(indptr[0]), int(indptr[-1])
        return self._replace(indptr=indptr - first, indices=self.indices[first:last])

    def inside(self, count: int) -> "Labels":
        """Clamp labels to rows of ``count`` candidates: nothing is read out of bounds."""
        if not count:
            return self
        _, indptr = rising_of(self.indptr, len(self.indices))
        return self._replace(indptr=indptr, indices=inside_of(self.indices, count))


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


class BceRows(NamedTuple):
    """Row losses, and sums of the rows' scores, finite only if all scores of a row are.

    Backends may count a bias of -inf, which leaves a candidate out, as 0.
    """

    rows: Tensor  # [B], float32, float64 for float64 queries
    linear: Tensor  # [B] float64


class BceTotal(NamedTuple):
    """Sum of row losses, divided; sums of the rows' scores; gradients."""

    total: Tensor  # [], of the rows' dtype
    linear: Tensor
    gradients: LossGradients


class Ahead(NamedTuple):
    """Gradients that are made with row losses: gradients of the sum of rows, divided."""

    divisor: float
    need: LossNeed


class CrossEntropyRows(NamedTuple):
    """Results like :class:`BceRows`, with the logsumexp of the rows."""

    rows: Tensor
    linear: Tensor
    logsumexp: Tensor  # [B] float64
    scores: Tensor | None = None  # scores of all pairs, if stored
    gradients: LossGradients | None = None  # gradients, if made


class CrossEntropyBackward(NamedTuple):
    """Arguments of the gradients of cross entropy."""

    grad_rows: Tensor  # [B]
    logsumexp: Tensor  # [B] float64
    targets: Tensor  # [B]
    label_smoothing: float
    scores: Tensor | None = None  # stored scores, which are overwritten


class LossChecks(NamedTuple):
    """Checks of values of a loss: each raises, or returns after waiting for the device.

    A backend with kernels that see values calls these checks, labels first, only for a wrong value.
    """

    labels: Callable[[], None]
    scores: Callable[[Tensor], None]  # check of operands, given the sums of the rows' scores
