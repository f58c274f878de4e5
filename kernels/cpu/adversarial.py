"""Rows of scores weighted by their own softmax, on the CPU: two walks over the scores.

Cost model: engine/loss_row.h. Memory beyond operands and gradient: three numbers a row.
"""

import torch
from torch import Tensor

from . import extension, isa, threads
from .views import address


def adversarial_rows(scores: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """The contract of :func:`kgfast.ops.adversarial_rows`; see there.

    Returns
    -------
    rows, peaks, masses : Tensor
        float32 ``[R]``: results, highest scores, and sums of weights relative to those.
    """
    peaks, masses, totals = scores.new_zeros(3, len(scores), dtype=torch.float64)
    _walk(_SUMS, scores.contiguous(), alpha, sums=(peaks, masses, totals))
    return (totals / masses).float(), peaks.float(), masses.float()


def adversarial_backward(
    grad_rows: Tensor, scores: Tensor, peaks: Tensor, masses: Tensor, alpha: float
) -> Tensor:
    """The gradient of the scores."""
    slopes = scores.clone(memory_format=torch.contiguous_format)
    _walk(_SLOPES, slopes, alpha, factors=(peaks, grad_rows / masses))
    return slopes


_SUMS, _SLOPES = 4, 5  # as in host/losses.h


def _walk(
    number: int,
    scores: Tensor,
    alpha: float,
    sums: tuple[Tensor | None, ...] = (None, None, None),
    factors: tuple[Tensor | None, ...] = (None, None),
) -> None:
    extension.loss_pass(
        isa(),
        number,
        address(scores),
        scores.shape[0],
        scores.shape[1],
        [address(row) for row in sums],
        [*(address(row) for row in factors), 0],
        alpha,
        threads.count(),
    )
