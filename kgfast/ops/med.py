"""Loss of croppable embeddings on given scores, as one operator."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kgfast.kernels.backend import NestedLoss
from kgfast.ops import differentiable as common
from kgfast.ops.dispatch import get_backend
from kgfast.ops.registry import operator


def serves_med(positive: Tensor, negative: Tensor) -> bool:
    """Return whether :func:`med_loss` takes these scores."""
    fits = positive.dtype == negative.dtype == torch.float32 and negative.numel() > 0
    return fits and common.offers(positive.device, "med")


def med_loss(
    positive: Tensor,
    negative: Tensor,
    scales: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    fractions: Sequence[float],
    *,
    is_exp: bool,
) -> Tensor:
    """Return :func:`kgfast.losses.med.med_of_scores`; only if :func:`serves_med`.

    Positives are weighted by ``softmax``, sub-models by ``exp`` or ``sigmoid``.
    """
    common.refuse_forward_mode("med_loss", positive, negative, *scales)
    *of_scores, of_crops = (scale.float() for scale in scales)
    if len(positive) == 1:  # no smaller sub-model gives weights
        of_scores = [scale.detach() for scale in of_scores]
    weights = torch.stack([*of_scores, of_crops])
    return _med_loss(positive, negative, weights, mask, [*map(float, fractions)], is_exp)[0]


@operator("med_loss")
def _med_loss(
    positive: Tensor,
    negative: Tensor,
    scales: Tensor,
    mask: Tensor | None,
    fractions: Sequence[float],
    is_exp: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    scores = positive.contiguous(), negative.contiguous()
    mask = None if mask is None else mask.contiguous()
    return _kernel(positive).med_loss(*scores, scales, mask, fractions, is_exp)


@_med_loss.fake
def _(positive: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = 2, len(positive), _kernel(positive).SUMS
    return positive.new_empty(()), scales.new_empty(scales.shape), positive.new_empty(shape)


@_med_loss.gradient("positive", "negative", "scales", of="med_loss")
def _med_backward(
    grad: Tensor,
    of_scales: Tensor,
    sums: Tensor,
    positive: Tensor,
    negative: Tensor,
    scales: Tensor,
    mask: Tensor | None,
    need: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    scores = positive.contiguous(), negative.contiguous()
    mask = None if mask is None else mask.contiguous()
    made = _kernel(positive).med_slopes(grad, sums, *scores, scales, mask)
    slopes = (it if needed else None for it, needed in zip(made, need, strict=False))
    return *slopes, grad * of_scales if need[2] else None


def _kernel(scores: Tensor) -> NestedLoss:
    kernel = get_backend(common.chosen_backend(scores)).med
    assert kernel is not None
    return kernel
