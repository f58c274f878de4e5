"""Operations of a loss on scores, by operators of torch: any dtype, any device."""

import torch
from torch import Tensor
from torch.nn import functional

# From here on torch's softplus is x itself: the omitted log1p(exp(-x)) is below 2**-57 x.
_SOFTPLUS_IS_LINEAR = 40.0


class Passes:
    """Operations on scores ``[B, n]``; most operations overwrite the scores."""

    def bce_sums(self, scores: Tensor, label_c: float) -> tuple[Tensor, Tensor]:
        """Return sums of ``softplus(x) - c x`` and of ``x``, float64 ``[B]`` each."""
        linear = scores.sum(1).double()
        functional.softplus(scores, 1, _SOFTPLUS_IS_LINEAR, out=scores)  # type: ignore[call-arg]
        softplus = scores.sum(1).double()
        return softplus - label_c * linear if label_c else softplus, linear

    def bce_slopes(self, scores: Tensor, label_c: float, scale: Tensor) -> None:
        """Make ``scale (sigmoid(x) - c)`` in place, with ``scale [B]``."""
        scores.sigmoid_()
        if label_c:
            scores.sub_(label_c)
        scores.mul_(scale[:, None])

    def bce_both(self, scores: Tensor, label_c: float, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return :meth:`bce_sums`, and do :meth:`bce_slopes`."""
        sums = self.bce_sums(scores.clone(), label_c)
        self.bce_slopes(scores, label_c, scale)
        return sums

    def softmax_sums(self, scores: Tensor, peak: Tensor, mass: Tensor, linear: Tensor) -> None:
        """Update the peak, the sum of ``exp(x - peak)`` and the sum of scores, float64 ``[B]``."""
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
        peak, mass, linear = sums
        self.softmax_sums(scores, peak, mass, linear)  # leaves exponentials in scores
        scores.mul_((scale / mass).to(scores.dtype)[:, None]).sub_(share[:, None])

    def softmax_slopes(self, scores: Tensor, near: Tensor, scale: Tensor, share: Tensor) -> None:
        """Make ``scale exp(x - near) - share`` in place, of the scores' dtype ``[B]`` each."""
        scores.sub_(near[:, None]).exp_().mul_(scale[:, None]).sub_(share[:, None])


TORCH_PASSES = Passes()
