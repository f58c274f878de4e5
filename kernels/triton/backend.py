"""The Triton backend as an object, each of whose methods is served by a file."""

from torch import Tensor

from ..backend import Adversarial, Backend, Negatives
from ..checks import Checks
from ..operands import Counts, Gradients, Known, Lists, Need, Operands
from . import pairwise
from .adversarial import ADVERSARIAL
from .indexed import indexed_gradients, indexed_scores
from .listed import list_counts, list_topk
from .losses import FusedLosses
from .negatives import NEGATIVES
from .rank import rank_counts
from .topk import topk


class Triton(Backend):
    """Kernels for NVIDIA and AMD GPUs; see :class:`kgfast.kernels.backend.Backend`."""

    name = "triton"
    defers_checks = True
    losses = FusedLosses()
    adversarial: Adversarial | None = ADVERSARIAL
    negatives: Negatives | None = NEGATIVES

    def rank_counts(
        self,
        operands: Operands,
        targets: Tensor,
        known: Known,
        checks: Checks,
        target_scores: Tensor | None = None,
    ) -> Counts:
        """Ranks, whose one wait is for the checks and the sizes of all bands."""
        return rank_counts(operands, targets, known, checks, target_scores)

    def topk(
        self, operands: Operands, k: int, known: Known | None, checks: Checks
    ) -> tuple[Tensor, Tensor]:
        """The best, whose first wait is for the checks, too."""
        return topk(operands, k, known, checks)

    def list_counts(
        self, operands: Operands, lists: Lists, targets: Tensor, known: Known, checks: Checks
    ) -> Counts:
        """Ranks among the candidates that each query names."""
        return list_counts(operands, lists, targets, known, checks)

    def list_topk(
        self, operands: Operands, lists: Lists, k: int, known: Known | None, checks: Checks
    ) -> tuple[Tensor, Tensor]:
        """The best of the candidates that each query names."""
        return list_topk(operands, lists, k, known, checks)

    def scores(self, operands: Operands, index: Tensor | None = None) -> Tensor:
        """Float32 scores of all pairs, or of those of an index."""
        if index is None:
            return pairwise.all_scores(operands)
        return indexed_scores(operands, index)

    def backward(
        self,
        operands: Operands,
        grad: Tensor,
        index: Tensor | None = None,
        *,
        need: Need,
        rows_only: bool = False,
    ) -> Gradients:
        """Gradients in float32 sums, each in its operand's dtype; two runs give equal bits."""
        if index is None:
            return pairwise.all_gradients(operands, grad, need)
        return indexed_gradients(operands, grad, index, need, rows_only=rows_only)


BACKEND = Triton()
