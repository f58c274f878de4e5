"""The CPU backend: C++ kernels behind the protocol that all backends have.

A loss takes the cost of the scores of all pairs, its gradients that of scores and of their
gradients, and one walk over the scores each (engine/loss_row.h). Scores of cross entropy that fit
48 MiB are made once: kept for the gradients or, of a mean, block by block together with them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..backend import (
    AdagradStep,
    AdamStep,
    Adversarial,
    Backend,
    ChunkedBackend,
    Into,
    Losses,
    LossPlan,
    Packing,
    Passes,
)
from ..checks import Checks
from ..chunked_losses import ChunkedLosses
from ..operands import Counts, Gradients, Known, Lists, Need, Operands
from . import bf16
from .adagrad import adagrad
from .backward import indexed_backward, pairwise_backward
from .listed import list_counts, list_topk
from .panels import PACKING
from .passes import ADVERSARIAL, PASSES
from .rank import rank_counts
from .row_adam import row_adam
from .scores import scores
from .topk import topk

_LOSS_SCRATCH = 1 << 21  # scores: 8 MiB
_LOSS_KEPT = 12 << 20  # scores: 48 MiB
_LOSS_QUERIES = 4096  # swept together, so that chunks of candidates stay wide


class _Cpu(ChunkedBackend):
    """See :class:`kgfast.kernels.backend.Backend`."""

    name = "cpu"
    defers_checks = False
    passes: Passes = PASSES
    adversarial: Adversarial | None = ADVERSARIAL
    row_adam: Callable[[Sequence[Tensor], Tensor, Tensor, AdamStep], None] | None = staticmethod(
        row_adam
    )
    adagrad: Callable[[Tensor, Tensor, Tensor, AdagradStep], None] | None = staticmethod(adagrad)
    packing: Packing | None = PACKING

    def __init__(self) -> None:
        self.losses = ChunkedLosses(self)
        self._bf16_losses = bf16.Bf16Losses(self)

    @property
    def bf16_losses(self) -> Losses | None:
        return self._bf16_losses if bf16.is_available() else None

    def rank_counts(
        self,
        operands: Operands,
        targets: Tensor,
        known: Known,
        checks: Checks,
        target_scores: Tensor | None = None,
    ) -> Counts:
        return rank_counts(operands, targets, known, checks, target_scores)

    def topk(
        self, operands: Operands, k: int, known: Known | None, checks: Checks
    ) -> tuple[Tensor, Tensor]:
        return topk(operands, k, known, checks)

    def list_counts(
        self, operands: Operands, lists: Lists, targets: Tensor, known: Known, checks: Checks
    ) -> Counts:
        return list_counts(operands, lists, targets, known, checks)

    def list_topk(
        self, operands: Operands, lists: Lists, k: int, known: Known | None, checks: Checks
    ) -> tuple[Tensor, Tensor]:
        return list_topk(operands, lists, k, known, checks)

    def scores(
        self, operands: Operands, index: Tensor | None = None, *, out: Tensor | None = None
    ) -> Tensor:
        return scores(operands, index, out)

    def backward(
        self,
        operands: Operands,
        grad: Tensor,
        index: Tensor | None = None,
        *,
        need: Need,
        rows_only: bool = False,
        into: Into | None = None,
    ) -> Gradients:
        if index is None:
            return pairwise_backward(operands, grad, need, into)
        return indexed_backward(operands, grad, index, need, rows_only=rows_only)

    def loss_plan(self, operands: Operands) -> LossPlan:
        in_blocks = operands.table.dtype == torch.float32
        queries = _LOSS_QUERIES if in_blocks else None
        return LossPlan(_LOSS_SCRATCH, torch.float32, queries, kept=_LOSS_KEPT)


BACKEND: Backend = _Cpu()
