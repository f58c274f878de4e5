"""Sigmoid loss of image-text pairs, SigLIP (Zhai et al. 2023, section 3.2 and algorithm 1).

The loss is binary cross entropy of all pairs with one positive per row, so
:func:`kgfast.ops.bce_total` computes the loss without ``[B, B]`` logits.
"""

from typing import Any

import torch
from torch import Tensor, nn

from kgfast.kernels.checks import NonFiniteError
from kgfast.losses.entities import Precision
from kgfast.ops import bce_total, checks
from kgfast.ops.differentiable import full_precision
from kgfast.ops.finite import check_rows


def siglip(
    image: Tensor,
    text: Tensor,
    scale: Tensor | float,
    bias: Tensor | float | None = None,
    *,
    precision: Precision = "float32",
) -> Tensor:
    """Compute the sigmoid loss of image-text pairs ``[B, D]``, without logits.

    ``-sum_ij log sigmoid(z_ij (scale image_i . text_j + bias)) / B``, with ``z`` 1 on the diagonal
    and -1 elsewhere: ``SigLipLoss`` of open_clip in one process. Rows have one floating dtype and
    are normalized by the caller. ``scale`` (already exponentiated) and ``bias`` are single numbers.
    The result is a scalar of float32 or float64, differentiable once in all four arguments.
    ``precision`` is that of :func:`kgfast.ops.bce`. Errors name argument and first offending row.

    >>> image, text = torch.eye(2), torch.tensor([[0.8, 0.6], [0.0, 1.0]])
    >>> siglip(image, text, 10.0, -10.0)
    tensor(1.4191)
    """
    for name, rows in (("image", image), ("text", text)):
        checks.check_tensor(name, rows)
        if rows.dtype not in checks.TABLE_DTYPES:
            raise TypeError(f"{name} must be of floating point; got {rows.dtype}")
        if rows.ndim != 2 or not rows.numel():
            needed = "[B, D], of at least 1 row and 1 column"
            raise ValueError(f"{name} must have shape {needed}; got {list(rows.shape)}")
    if text.shape != image.shape:
        needed = f"{list(image.shape)}, a row for each image"
        raise ValueError(f"text must have shape {needed}; got {list(text.shape)}")
    if text.dtype != image.dtype:
        raise TypeError(f"text must be {image.dtype}, as image is; got {text.dtype}")
    checks.check_device("text", text, image, "images")
    image, text = full_precision(image), full_precision(text)
    factor = _number("scale", scale, image)
    offset = None if bias is None else _number("bias", bias, image)[None]
    own = torch.arange(len(image) + 1, dtype=torch.int64, device=image.device)
    given = image, text, offset, own, own[:-1], 1.0, 0.0, "dot", len(image)
    try:
        return bce_total(*given, scale=factor, precision=precision)
    except NonFiniteError:
        check_rows("image", image)
        check_rows("text", text)
        checks.check_bounded("scale", factor.item())
        checks.check_bounded("bias", 0.0 if offset is None else offset.item())
        raise


class SigLIPLoss(nn.Module):
    """Module of :func:`kgfast.losses.siglip` in place of open_clip's ``SigLipLoss``."""

    def __init__(self, *, precision: Precision = "float32") -> None:
        super().__init__()
        checks.check_precision(precision)
        self.precision: Precision = precision

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
    ) -> Any:
        """Return the loss; for ``output_dict``, ``{"contrastive_loss": loss}``."""
        given = image_features, text_features, logit_scale, logit_bias
        loss = siglip(*given, precision=self.precision)
        return {"contrastive_loss": loss} if output_dict else loss


def _number(name: str, value: Tensor | float, image: Tensor) -> Tensor:
    """Return one number as a tensor ``[]`` of the dtype of images."""
    if not isinstance(value, Tensor):
        checks.check_bounded(name, value)
        return torch.full((), float(value), dtype=image.dtype, device=image.device)
    if value.numel() != 1:
        raise ValueError(f"{name} must be one number; got shape {list(value.shape)}")
    if value.dtype not in checks.TABLE_DTYPES:
        raise TypeError(f"{name} must be of floating point; got {value.dtype}")
    checks.check_device(name, value, image, "images")
    return value.reshape(()).to(image.dtype)
