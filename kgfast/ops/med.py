"""Loss of croppable embeddings on given scores, as one operator."""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from kgfast.kernels.backend import NestedLoss
from kgfast.ops import differentiable as common
from kgfast.ops.dispatch import get_backend
from kgfast.ops.registry import call, operator


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
    given = positive, negative, weights, mask, [float(it) for it in fractions], is_exp
    loss: Tensor = call("med_loss", *given)[0]
    return loss


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
def _(args: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor]:
    scores, numbers = args.positive, _kernel(args.positive).SUMS
    of_scales = args.scales.new_empty(args.scales.shape)
    return scores.new_empty(()), of_scales, scores.new_empty(2, len(scores), numbers)


@_med_loss.gradient(
    "positive", "negative", "scales", of="med_loss", grads=("grad",), kept=("of_scales", "sums")
)
def _med_backward(args: SimpleNamespace) -> tuple[Tensor | None, ...]:
    scores = args.positive.contiguous(), args.negative.contiguous()
    mask = None if args.mask is None else args.mask.contiguous()
    made = _kernel(args.positive).med_slopes(args.grad, args.sums, *scores, args.scales, mask)
    slopes = (it if need else None for it, need in zip(made, args.need, strict=False))
    return *slopes, args.grad * args.of_scales if args.need[2] else None


def _kernel(scores: Tensor) -> NestedLoss:
    kernel = get_backend(common.chosen_backend(scores)).med
    assert kernel is not None
    return kernel
