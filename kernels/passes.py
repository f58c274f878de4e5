"""Operations of a loss on scores, by operators of torch: any dtype, any device."""

import torch
from torch import Tensor
from torch.nn import functional

# From here on torch's softplus is x itself: the omitted log1p(exp(-x)) is below 2**-57 x.
_SOFTPLUS_IS_LINEAR = 40.0


class Passes:
    """Operations on scores ``[B, n]``; each may overwrite the scores."""

    def bce(self, scores: Tensor, label_c: float, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return sums of ``softplus(x) - c x`` and of ``x``, float64 ``[B]`` each.

        The scores become slopes, ``scale (sigmoid(x) - c)``, with ``scale [B]``.
        """
        linear = scores.sum(1).double()
        softplus = functional.softplus(scores, 1, _SOFTPLUS_IS_LINEAR).sum(1).double()
        scores.sigmoid_().sub_(label_c).mul_(scale[:, None])
        return softplus - label_c * linear if label_c else softplus, linear

    def softmax_sums(self, scores: Tensor, sums: tuple[Tensor, ...]) -> None:
        """Update the peak, the sum of ``exp(x - peak)`` and the sum of scores, float64 ``[B]``."""
        peak, mass, linear = sums
        lowest = torch.finfo(scores.dtype).min  # a finite peak for scores that are all -inf
        higher = torch.maximum(peak, scores.amax(1)).clamp(min=lowest)
        mass *= (peak - higher).exp_()
        scores.sub_(higher[:, None].to(scores.dtype))  # a peak is a score, so this does not round
        linear += scores.sum(1) + scores.shape[1] * higher
        mass += scores.exp_().sum(1)
        peak.copy_(higher)

    def softmax_both(
        self, scores: Tensor, sums: tuple[Tensor, ...], scale: Tensor, share: Tensor
    ) -> None:
        """Do :meth:`softmax_sums` of whole rows; make ``scale softmax - share`` in place.

        ``sums`` are the sums over no scores; ``scale`` and ``share`` have the scores' dtype,
        ``[B]`` each.
        """
        self.softmax_sums(scores, sums)  # leaves exponentials in scores
        scores.mul_((scale / sums[1]).to(scores.dtype)[:, None]).sub_(share[:, None])

    def softmax_slopes(self, scores: Tensor, near: Tensor, scale: Tensor, share: Tensor) -> None:
        """Make ``scale exp(x - near) - share`` in place, of the scores' dtype ``[B]`` each."""
        scores.sub_(near[:, None]).exp_().mul_(scale[:, None]).sub_(share[:, None])


TORCH_PASSES = Passes()
