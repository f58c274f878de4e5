"""Loss of croppable embeddings on a GPU: scores are read once each way."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .device import med as kernels
from .host import launch as launcher

SUMS = kernels.PARTS.value  # numbers of a sub-model and kind
_SIZE = 1024  # scores of a program
_LANES = 128  # programs with parts that are added at once


def med_loss(
    positive: Tensor,
    negative: Tensor,
    scales: Tensor,
    mask: Tensor | None,
    fractions: Sequence[float],
    is_exp: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Make the loss, the gradient of the scales, and the sums for :func:`med_slopes`."""
    crops = len(positive)
    loss, of_scales = positive.new_empty(()), torch.empty_like(scales)
    kinds = list(_kinds(positive, negative, mask))
    blocks = [-(-kind.number // _SIZE) for kind in kinds]
    parts = positive.new_empty(2, crops, max(blocks), SUMS)
    whole = positive.new_empty(2, crops, SUMS)
    sums = kernels.MedSums(parts, whole, tuple(blocks))
    given = {"p_scales": scales, "sums": sums, "most": max(blocks)}
    with launcher.serving(positive.device):
        for kind, count in zip(kinds, blocks, strict=True):
            args = {"scores": kind, **given, "SIZE": _SIZE}
            launcher.launch(kernels.sum_crops, (count, crops), args, num_warps=4)
        args = {
            "p_loss": loss,
            "p_of_scales": of_scales,
            **given,
            "fractions": tuple(float(it) for it in fractions),
            "CROPS": crops,
            "IS_EXP": is_exp,
            "LANES": _LANES,
        }
        launcher.launch(kernels.finish_crops, (1,), args, num_warps=4)
    return loss, of_scales, whole


def med_slopes(
    grad: Tensor,
    whole: Tensor,
    positive: Tensor,
    negative: Tensor,
    scales: Tensor,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Make the gradients of the scores."""
    slopes = torch.empty_like(positive), torch.empty_like(negative)
    with launcher.serving(positive.device):
        for kind, made in zip(_kinds(positive, negative, mask), slopes, strict=True):
            args: dict[str, Any] = {
                "scores": kind,
                "p_slopes": made,
                "p_grad": grad,
                "p_scales": scales,
                "p_whole": whole,
                "SIZE": _SIZE,
            }
            grid = -(-kind.number // _SIZE), len(made)
            launcher.launch(kernels.crop_slopes, grid, args, num_warps=4)
    return slopes


def _kinds(
    positive: Tensor, negative: Tensor, mask: Tensor | None
) -> Iterator[kernels.KindOfScores]:
    for kind, (scores, takes_part) in enumerate(((positive, None), (negative, mask))):
        yield kernels.KindOfScores(scores, takes_part, scores[0].numel(), kind)
