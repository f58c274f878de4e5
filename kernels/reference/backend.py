"""The reference backend: plain PyTorch in float64, the specification of all others."""

import torch
from torch import Tensor

from ..backend import Backend, ChunkedBackend, Into, Losses, LossPlan
from ..checks import Checks
from ..chunked_losses import ChunkedLosses
from ..operands import Counts, Gradients, Known, Lists, Need, Operands
from ..torch_passes import TORCH_PASSES
from .listed import list_counts, list_topk
from .rank import rank_counts
from .scores import all_gradients, all_scores, indexed_gradients, indexed_scores
from .topk import topk

_LOSS_SCRATCH = 1 << 16  # scores: 512 KiB


class _Reference(ChunkedBackend):
    """See :class:`kgfast.kernels.backend.Backend`."""

    name = "reference"
    defers_checks = False
    passes = TORCH_PASSES

    def __init__(self) -> None:
        self.losses = ChunkedLosses(self)

    @property
    def bf16_losses(self) -> Losses:
        return self.losses  # scores and gradients round what operands ask for

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
        if index is None:
            return all_scores(operands, out)
        return indexed_scores(operands, index)

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
            return all_gradients(operands, grad, need, into)
        gradients = indexed_gradients(operands, grad, index, need)
        return gradients if rows_only else gradients.spread(operands, need)

    def loss_plan(self, operands: Operands) -> LossPlan:
        return LossPlan(_LOSS_SCRATCH, torch.float64)


BACKEND: Backend = _Reference()
