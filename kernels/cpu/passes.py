"""Passes of the losses on the CPU, each one walk over the scores.

Cost model: engine/training_rows.h. All large work runs on the threads of the extension: after an
operator of torch, torch's threads spin for a while on the cores that the next kernel needs. Memory
beyond operands and results: some numbers per row.
"""

from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from ..passes import Passes
from . import extension
from .views import machine

_LOWEST = torch.finfo(torch.float32).min


class LossPass(IntEnum):
    """Walks over scores, by their names in csrc/host/training.h."""

    EXP_SUMS = 2
    SOFTMAX_SLOPES = 3
    ADVERSARIAL_SUMS = 4
    ADVERSARIAL_SLOPES = 5
    SOFTPLUS_SUMS_SIGMOID_SLOPES = 6
    EXP_SUMS_SOFTMAX_SLOPES = 7


def _walk(
    walk: LossPass,
    scores: Tensor,
    sums: Sequence[Tensor] = (),
    factors: Sequence[Tensor | None] = (),
    constant: float = 0.0,
) -> None:
    """Walk once over contiguous ``scores``.

    ``sums`` are float64 numbers of each row; ``factors`` are up to three contiguous float32 numbers
    of each row: shift, scale and share.
    """
    rows, columns = scores.shape
    a, b, c = (*sums, None, None, None)[:3]
    shift, scale, share = (*factors, None, None, None)[:3]
    numbers = a, b, c, shift, scale, share
    extension.loss_pass(machine(), walk, scores, rows, columns, *numbers, constant=constant)


class _FusedPasses(Passes):
    def bce(self, scores: Tensor, label_c: float, scale: Tensor) -> tuple[Tensor, Tensor]:
        softplus, linear = _row_sums(scores, 2)
        factors = None, scale
        _walk(LossPass.SOFTPLUS_SUMS_SIGMOID_SLOPES, scores, (softplus, linear), factors, label_c)
        return softplus - label_c * linear if label_c else softplus, linear

    def softmax_sums(self, scores: Tensor, sums: tuple[Tensor, ...]) -> None:
        sums[0].clamp_(min=_LOWEST)  # a finite peak for scores that are all -inf
        _walk(LossPass.EXP_SUMS, scores, sums)

    def softmax_both(
        self, scores: Tensor, sums: tuple[Tensor, ...], scale: Tensor, share: Tensor
    ) -> None:
        sums[0].clamp_(min=_LOWEST)
        _walk(LossPass.EXP_SUMS_SOFTMAX_SLOPES, scores, sums, (None, scale, share))

    def softmax_slopes(self, scores: Tensor, near: Tensor, scale: Tensor, share: Tensor) -> None:
        _walk(LossPass.SOFTMAX_SLOPES, scores, (), (near, scale, share))


def adversarial_sums(scores: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``sum_i p_i softplus(x_i)`` of each row, ``p = softmax(alpha x)``; peaks and masses.

    Weights ``exp(alpha x)`` are relative to the peak of the row; masses are the sums of weights.
    """
    peaks, masses, totals = sums = _row_sums(scores, 3)
    _walk(LossPass.ADVERSARIAL_SUMS, scores.contiguous(), sums, constant=alpha)
    masses.masked_fill_(masses == 0, 1.0)  # rows without negatives but of -inf
    return (totals / masses).float(), peaks.float(), masses.float()


def adversarial_slopes(
    grad_rows: Tensor, scores: Tensor, peaks: Tensor, masses: Tensor, alpha: float
) -> Tensor:
    """Return the gradient of the sums of :func:`adversarial_sums`, times ``grad_rows [B]``."""
    slopes = scores.clone(memory_format=torch.contiguous_format)
    factors = peaks, grad_rows / masses
    _walk(LossPass.ADVERSARIAL_SLOPES, slopes, (), factors, alpha)
    return slopes


def cos_sin(phases: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of float64 radians, with the bits of the reference's trig."""
    phases = phases.contiguous()
    cosine, sine = torch.empty_like(phases), torch.empty_like(phases)
    extension.cos_sin(machine(), phases, phases.numel(), cosine, sine)
    return cosine, sine


def _row_sums(scores: Tensor, count: int) -> tuple[Tensor, ...]:
    return scores.new_zeros((count, len(scores)), dtype=torch.float64).unbind()


PASSES = _FusedPasses()
