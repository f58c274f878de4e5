"""Passes of the losses over all candidates by operators of torch, on any device."""

import torch
from torch import Tensor
from torch.nn import functional

from .backend import Passes

# torch's softplus is x itself from here on: the omitted log1p(exp(-x)) is below 2**-57 x.
_SOFTPLUS_IS_LINEAR = 40.0


class _TorchPasses:
    def bce_sums(self, scores: Tensor, label_c: float) -> tuple[Tensor, Tensor]:
        linear = scores.sum(1).double()
        functional.softplus(scores, 1, _SOFTPLUS_IS_LINEAR, out=scores)  # type: ignore[call-arg]
        softplus = scores.sum(1).double()
        return softplus - label_c * linear if label_c else softplus, linear

    def bce_slopes(self, scores: Tensor, label_c: float, scale: Tensor) -> None:
        scores.sigmoid_()
        if label_c:
            scores.sub_(label_c)
        scores.mul_(scale[:, None])

    def bce_both(self, scores: Tensor, label_c: float, scale: Tensor) -> tuple[Tensor, Tensor]:
        sums = self.bce_sums(scores.clone(), label_c)
        self.bce_slopes(scores, label_c, scale)
        return sums

    def softmax_sums(self, scores: Tensor, peak: Tensor, mass: Tensor, linear: Tensor) -> None:
        lowest = torch.finfo(scores.dtype).min  # of scores that are all -inf: a finite peak
        higher = torch.maximum(peak, scores.amax(1)).clamp(min=lowest)
        mass *= (peak - higher).exp_()
        scores.sub_(higher[:, None].to(scores.dtype))  # a peak is a score: no rounding of it
        linear += scores.sum(1) + scores.shape[1] * higher
        mass += scores.exp_().sum(1)
        peak.copy_(higher)

    def softmax_both(
        self, scores: Tensor, sums: tuple[Tensor, ...], scale: Tensor, share: Tensor
    ) -> None:
        peak, mass, linear = sums
        self.softmax_sums(scores, peak, mass, linear)  # leaves exponentials
        scores.mul_((scale / mass).to(scores.dtype)[:, None]).sub_(share[:, None])

    def softmax_slopes(self, scores: Tensor, near: Tensor, scale: Tensor, share: Tensor) -> None:
        scores.sub_(near[:, None]).exp_().mul_(scale[:, None]).sub_(share[:, None])


TORCH_PASSES: Passes = _TorchPasses()
