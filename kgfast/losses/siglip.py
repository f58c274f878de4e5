"""Sigmoid loss of image-text pairs, SigLIP (Zhai et al. 2023, section 3.2 and algorithm 1).

The loss is :func:`kgfast.ops.bce` of all pairs with one positive per row.
"""

from typing import Any

import torch
from torch import Tensor, nn

from kgfast.ops import bce


def siglip(
    image: Tensor,
    text: Tensor,
    scale: Tensor | float,
    bias: Tensor | float | None = None,
    *,
    precision: str = "float32",
) -> Tensor:
    """Compute the sigmoid loss of image-text pairs ``[B, D]``, without logits.

    ``-sum_ij log sigmoid(z_ij (scale image_i . text_j + bias)) / B``, with ``z`` 1 on the diagonal
    and -1 elsewhere: ``SigLipLoss`` of open_clip in one process. Rows are floating point and
    normalized by the caller. ``scale`` (already exponentiated) and ``bias`` are single numbers. The
    result is a scalar of float32 or float64, differentiable once in all four arguments.
    ``precision`` is that of :func:`kgfast.ops.bce`. A ValueError or TypeError says which shape,
    dtype or number does not fit; ``queries`` are the scaled images, ``candidates`` the texts.

    >>> image, text = torch.eye(2), torch.tensor([[0.8, 0.6], [0.0, 1.0]])
    >>> siglip(image, text, 10.0, -10.0)
    tensor(1.4191)
    """
    if image.ndim != 2 or not image.numel():
        raise ValueError(f"image must have shape [B, D], not empty; got {list(image.shape)}")
    if text.shape != image.shape:
        needed = f"{list(image.shape)}, a row for each image"
        raise ValueError(f"text must have shape {needed}; got {list(text.shape)}")
    offset = None
    if bias is not None:
        offset = torch.as_tensor(bias, dtype=image.dtype, device=image.device).reshape(1)
    ids = torch.arange(len(image) + 1, dtype=torch.int64, device=image.device)
    rows = image * scale, text, offset, ids, ids[:-1], 1.0, 0.0, "dot"
    return bce(*rows, divisor=len(image), precision=precision)


class SigLIPLoss(nn.Module):
    """Module of :func:`kgfast.losses.siglip` in place of open_clip's ``SigLipLoss``."""

    def __init__(self, *, precision: str = "float32") -> None:
        super().__init__()
        self.precision = precision

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
    ) -> Any:
        """Return the loss; for ``output_dict``, ``{"contrastive_loss": loss}``."""
        pairs = image_features, text_features, logit_scale, logit_bias
        loss = siglip(*pairs, precision=self.precision)
        return {"contrastive_loss": loss} if output_dict else loss
