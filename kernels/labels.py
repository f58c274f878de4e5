"""What losses over all candidates take and give, whatever backend makes them."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from .checks import inside_of, rising_of


class Labels(NamedTuple):
    """The labels of binary cross entropy, ``a [j positive] + c``."""

    indptr: Tensor  # int64 [B + 1]
    indices: Tensor  # int64 [nnz], in any order; duplicates count once
    a: float
    c: float

    def of_queries(self, rows: slice) -> "Labels":
        """Those of a block of queries."""
        indptr = self.indptr[rows.start : rows.stop + 1]
        if len(indptr) == len(self.indptr):
            return self
        first, last = int(indptr[0]), int(indptr[-1])
        return self._replace(indptr=indptr - first, indices=self.indices[first:last])

    def inside(self, count: int) -> "Labels":
        """Labels by which nothing is read out of bounds: what is wrong is forced to be right."""
        if not count:
            return self
        _, indptr = rising_of(self.indptr, len(self.indices))
        return self._replace(indptr=indptr, indices=inside_of(self.indices, count))


class LossNeed(NamedTuple):
    """Which gradients of a loss are asked for."""

    queries: bool
    table: bool
    bias: bool


class LossGradients(NamedTuple):
    """Gradients of queries and table in their dtypes, and of an expanded bias ``[N]``."""

    queries: Tensor | None
    table: Tensor | None
    bias: Tensor | None


class BceRows(NamedTuple):
    """Row losses, and sums of the rows' scores: finite only where all scores of a row are.

    Backends may count a bias of -inf, which leaves a candidate out, as 0.
    """

    rows: Tensor  # [B], float32, float64 for float64 queries
    linear: Tensor  # [B] float64


class BceTotal(NamedTuple):
    """A sum of row losses, divided, the sums of the rows' scores, and the gradients."""

    total: Tensor  # [], of the rows' dtype
    linear: Tensor
    gradients: LossGradients


class Ahead(NamedTuple):
    """Gradients that are made with row losses: those of their sum, divided."""

    divisor: float
    need: LossNeed


class CrossEntropyRows(NamedTuple):
    """As :class:`BceRows`, with the logsumexp of the rows."""

    rows: Tensor
    linear: Tensor
    logsumexp: Tensor  # [B] float64
    scores: Tensor | None = None  # of all pairs, where they are kept
    gradients: LossGradients | None = None  # where they were made


class CrossEntropyBackward(NamedTuple):
    """What the gradients of cross entropy are made of."""

    grad_rows: Tensor  # [B]
    logsumexp: Tensor  # [B] float64
    targets: Tensor  # [B]
    label_smoothing: float
    scores: Tensor | None = None  # those that were kept: overwritten


class LossChecks(NamedTuple):
    """The checks of values of one loss: each raises, or returns after waiting for the device.

    A backend whose kernels look at values themselves calls them, labels first, only where these
    met something: a label that is wrong or masked, or a sum of scores that is not finite.

    Attributes
    ----------
    labels : callable
        Checks the labels.
    scores : callable
        Checks what scores are made of, given the sums of the rows' scores.
    """

    labels: Callable[[], None]
    scores: Callable[[Tensor], None]
