"""The losses over all candidates of a backend that scores chunk by chunk, checked."""

from collections.abc import Sequence

from torch import Tensor

from . import losses
from .backend import ChunkedBackend, Losses
from .checks import inside_of
from .labels import (
    Ahead,
    BceRows,
    BceTotal,
    CrossEntropyBackward,
    CrossEntropyRows,
    Labels,
    LossChecks,
    LossGradients,
    LossNeed,
)
from .operands import Operands

# Of queries whose gradients are made at once: what is read and written of those of a table, 8 bytes
# a number, takes as long as a third of this many scores.
_LEAST_QUERIES = 128


class ChunkedLosses(Losses):
    """Losses as a backend has them; see :class:`kgfast.kernels.backend.Losses`.

    What is computed, of what is safe to index with, is in methods of their own.
    """

    def __init__(self, backend: ChunkedBackend) -> None:
        self._backend = backend

    def bce(self, operands: Operands, labels: Labels, checks: LossChecks | None = None) -> BceRows:
        """:func:`.losses.bce`, checked."""
        labels = _safe_labels(operands, labels, checks)
        result = self._bce(operands, labels)
        if checks is not None:
            checks.scores(result.linear)
        return result

    def bce_gradients(
        self, operands: Operands, labels: Labels, grad_rows: Tensor, need: LossNeed
    ) -> LossGradients:
        """:func:`.losses.bce_gradients`."""
        labels = _safe_labels(operands, labels, None)
        return self._bce_gradients(operands, labels, grad_rows.contiguous(), need)

    def bce_total(
        self,
        operands: Operands,
        labels: Labels,
        divisor: float,
        need: LossNeed,
        checks: LossChecks | None = None,
    ) -> BceTotal:
        """:func:`.losses.bce_with_gradients` of rows of equal weight, checked."""
        labels = _safe_labels(operands, labels, checks)
        queries = operands.queries
        grad_rows = queries.new_full((len(queries),), 1 / divisor)
        rows, gradients = self._bce_with_gradients(operands, labels, grad_rows, need)
        if checks is not None:
            checks.scores(rows.linear)
        return BceTotal(rows.rows.sum() / divisor, rows.linear, gradients)

    def cross_entropy(
        self,
        operands: Operands,
        targets: Tensor,
        label_smoothing: float,
        checks: LossChecks | None = None,
        *,
        keep: bool = False,
        ahead: Ahead | None = None,
    ) -> CrossEntropyRows:
        """:func:`.losses.cross_entropy`, checked."""
        if checks is not None:
            checks.labels()
        else:
            targets = inside_of(targets, operands.candidates.num_rows)
        result = self._cross_entropy(operands, targets, label_smoothing, keep, ahead)
        if checks is not None:
            checks.scores(result.linear)
        return result

    def cross_entropy_gradients(
        self, operands: Operands, made_of: CrossEntropyBackward, need: LossNeed
    ) -> LossGradients:
        """:func:`.losses.cross_entropy_gradients`."""
        targets = inside_of(made_of.targets, operands.candidates.num_rows)
        return self._cross_entropy_gradients(operands, made_of._replace(targets=targets), need)

    def scale(self, gradients: Sequence[Tensor], factor: Tensor) -> None:
        """Looks at the factor first where that waits for no device."""
        if factor.device.type != "cpu" or factor.item() != 1:
            for gradient in gradients:
                gradient.mul_(factor)

    def _bce(self, operands: Operands, labels: Labels) -> BceRows:
        return losses.bce(self._backend, operands, labels)

    def _bce_gradients(
        self, operands: Operands, labels: Labels, grad_rows: Tensor, need: LossNeed
    ) -> LossGradients:
        return losses.bce_gradients(self._backend, operands, labels, grad_rows, need)

    def _bce_with_gradients(
        self, operands: Operands, labels: Labels, grad_rows: Tensor, need: LossNeed
    ) -> tuple[BceRows, LossGradients]:
        return losses.bce_with_gradients(self._backend, operands, labels, grad_rows, need)

    def _cross_entropy(
        self,
        operands: Operands,
        targets: Tensor,
        label_smoothing: float,
        keep: bool,
        ahead: Ahead | None,
    ) -> CrossEntropyRows:
        arguments = self._backend, operands, targets, label_smoothing
        step = 0 if ahead is None else self._queries_at_once(operands)
        if ahead is not None and step:
            return losses.cross_entropy_with_gradients(*arguments, ahead, step)
        return losses.cross_entropy(*arguments, self._room_for_all(operands) if keep else None)

    def _cross_entropy_gradients(
        self, operands: Operands, made_of: CrossEntropyBackward, need: LossNeed
    ) -> LossGradients:
        return losses.cross_entropy_gradients(self._backend, operands, made_of, need)

    def _room_for_all(self, operands: Operands) -> Tensor | None:
        """Room for all scores, where the backend's plan allows it."""
        plan = self._backend.loss_plan(operands)
        pairs = operands.num_queries * operands.candidates.num_rows
        fits = pairs <= plan.kept
        return operands.queries.new_empty(pairs, dtype=plan.dtype) if fits else None

    def _queries_at_once(self, operands: Operands) -> int:
        """Of how many queries all scores are held where gradients are made ahead; 0: of none."""
        plan, count = self._backend.loss_plan(operands), operands.num_queries
        if plan.num_queries is None or not count:  # gradients of blocks are added up in the table's
            return 0
        most = plan.kept // max(1, operands.candidates.num_rows)
        if most < min(count, _LEAST_QUERIES):
            return 0
        blocks = -(-count // most)
        return -(-count // blocks)


def _safe_labels(operands: Operands, labels: Labels, checks: LossChecks | None) -> Labels:
    """Labels that were checked or, without checks, that are safe to index with."""
    if checks is None:
        return labels.inside(operands.candidates.num_rows)
    checks.labels()
    return labels
