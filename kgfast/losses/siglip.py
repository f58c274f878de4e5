"""Sigmoid loss of image-text pairs, SigLIP (Zhai et al. 2023, section 3.2 and algorithm 1).

For images and texts ``[B, D]``, ``z_ij`` 1 where ``i = j`` and -1 elsewhere::

    loss = -sum_ij log sigmoid(z_ij (scale image_i . text_j + bias)) / B

The loss is binary cross entropy of all pairs with one positive per row, so
:func:`kgfast.ops.bce_total` computes the loss without ``[B, B]`` logits. :mod:`kgfast.losses.ring`
has the pairs of several processes.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from kgfast import ops
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.spares import constant
from kgfast.losses.formula import LossFormula, Precision
from kgfast.losses.module import LossModule
from kgfast.losses.ring import loss_of_ring
from kgfast.ops.checks import (
    TABLE_DTYPES,
    check_bounded,
    check_device,
    check_precision,
    check_tensor,
)
from kgfast.ops.differentiable import full_precision
from kgfast.ops.finite import check_rows

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, kw_only=True)
class SigLIPFormula(LossFormula):
    """Binary cross entropy of the pairs of two batches.

    Attributes
    ----------
    precision : {"float32", "bf16"}
        Precision of the factors of products; see :func:`kgfast.ops.bce`.
    """

    over = "pairs"
    precision: Precision = "float32"

    def check(self) -> None:
        """Check the hyperparameters."""
        check_precision(self.precision)


def siglip(
    image: Tensor,
    text: Tensor,
    scale: Tensor | float,
    bias: Tensor | float | None = None,
    *,
    precision: Precision = "float32",
    group: "ProcessGroup | None" = None,
) -> Tensor:
    """Compute the sigmoid loss of image-text pairs (Zhai et al. 2023), without logits.

    ``-sum_ij log sigmoid(z_ij (scale image_i . text_j + bias)) / B``, with ``z`` 1 on the diagonal
    and -1 elsewhere: ``SigLipLoss`` of open_clip. Gradients are computed together with the value,
    in one sweep. Memory beyond inputs and gradients does not grow with ``B`` squared.

    If ``torch.distributed`` is initialized, every process makes the same call with its own pairs.
    Texts and their gradients then go round a ring of processes. The loss of a process is the sum
    over its images and all texts, divided by its own ``B``. As in open_clip, gradients of texts
    have the shares of all processes. So a mean of losses over processes
    (``DistributedDataParallel``) trains on the whole batch. All processes must also run the
    backward together.

    Parameters
    ----------
    image, text : Tensor
        ``[B, D]`` floating point of one dtype, ``B`` at least 1: row i of both tensors is a pair.
        Normalize rows first: the loss does not. Half precision is cast to float32; float64 is
        computed in float64, by the reference backend.
    scale : Tensor or float
        ``[]`` or ``[1]``, already exponentiated, as in open_clip.
    bias : Tensor or float, optional
        ``[]`` or ``[1]``, added to all scores.
    precision : {"float32", "bf16"}
        Precision of the factors of products; see :func:`kgfast.ops.bce`.
    group : ProcessGroup, optional
        Processes of the ring; None takes all processes. A group of one process has no ring.

    Returns
    -------
    Tensor
        A scalar, float32 or, for float64 rows, float64. The loss is differentiable once in image,
        text, scale and bias.

    Raises
    ------
    ValueError, TypeError
        For shapes, dtypes or devices that differ, no pairs, a scale or bias of several numbers, and
        a NaN or an infinity; the message names the argument and the first offending row.
    RuntimeError
        In all other processes of a ring, if the arguments of one process are wrong.

    Examples
    --------
    >>> image = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    >>> text = torch.tensor([[0.8, 0.6], [0.0, 1.0]])
    >>> scale, bias = torch.tensor(10.0, requires_grad=True), -10.0
    >>> loss = siglip(image, text, scale, bias)
    >>> loss
    tensor(1.4191, grad_fn=<_TotalBackward>)
    >>> loss.backward()
    >>> image.grad.shape, scale.grad.shape
    (torch.Size([2, 2]), torch.Size([]))
    """
    check_precision(precision)
    check_tensor("image", image)
    group = _ring_of(group)
    if group is not None:
        given = image, text, scale, bias
        return loss_of_ring(given, lambda: _checked(*given), _of_pairs, group, precision)
    return _of_pairs(*_checked(image, text, scale, bias), precision)


class SigLIPLoss(LossModule, function=siglip, formula=SigLIPFormula):
    """Module of :func:`kgfast.losses.siglip` in place of open_clip's ``SigLipLoss``.

    ``group`` gives rank and number of processes.

    Examples
    --------
    >>> SigLIPLoss(precision="bf16")
    SigLIPLoss(precision='bf16', group=None)
    >>> image, text = torch.eye(2), torch.eye(2)
    >>> SigLIPLoss()(image, text, 10.0, -10.0, output_dict=True)
    {'contrastive_loss': tensor(0.6932)}
    """

    def forward(  # type: ignore[override]  # of features, not of a model
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
    ) -> Any:
        """Return the loss, with ``output_dict`` as ``{"contrastive_loss": loss}``.

        Parameters
        ----------
        image_features, text_features, logit_scale, logit_bias
            ``image``, ``text``, ``scale`` and ``bias`` of :func:`kgfast.losses.siglip`.
        output_dict : bool
            Return a dict, which training loops of open_clip expect.
        """
        given = image_features, text_features, logit_scale, logit_bias
        loss = siglip(*given, **self._hyperparameters())
        return {"contrastive_loss": loss} if output_dict else loss


Pairs = tuple[Tensor, Tensor, Tensor, Tensor | None]


def _ring_of(group: "ProcessGroup | None") -> "ProcessGroup | None":
    """Return the processes that the texts go round; None for one process."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    group = dist.group.WORLD if group is None else group
    return None if dist.get_world_size(group) == 1 else group


def _checked(
    image: Tensor, text: Tensor, scale: Tensor | float, bias: Tensor | float | None
) -> Pairs:
    """Check arguments except the values of tensors; return rows of full precision."""
    for name, rows in (("image", image), ("text", text)):
        check_tensor(name, rows)
        if rows.dtype not in TABLE_DTYPES:
            raise TypeError(f"{name} must be of floating point; got {rows.dtype}")
        if rows.ndim != 2 or not rows.numel():
            raise ValueError(
                f"{name} must have shape [B, D], of at least 1 row and 1 column; got "
                f"{list(rows.shape)}"
            )
    if text.shape != image.shape:
        raise ValueError(
            f"text must have shape {list(image.shape)}, a row for each image; got "
            f"{list(text.shape)}"
        )
    if text.dtype != image.dtype:
        raise TypeError(f"text must be {image.dtype}, as image is; got {text.dtype}")
    check_device("text", text, image, "images")
    image, text = full_precision(image), full_precision(text)
    of_bias = None if bias is None else _number("bias", bias, image)
    return image, text, _number("scale", scale, image), of_bias


def _number(name: str, value: Tensor | float, image: Tensor) -> Tensor:
    """Return one number as a tensor without axes, of the dtype of images."""
    if not isinstance(value, Tensor):
        check_bounded(name, value)
        return constant(float(value), (), image.dtype, image.device)
    check_tensor(name, value)
    if value.numel() != 1:
        raise ValueError(f"{name} must be one number; got shape {list(value.shape)}")
    if value.dtype not in TABLE_DTYPES:
        raise TypeError(f"{name} must be of floating point; got {value.dtype}")
    check_device(name, value, image, "images")
    return value.reshape(()).to(image.dtype)


def _of_pairs(
    image: Tensor,
    text: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    precision: Precision,
    *,
    are_pairs: bool = True,
) -> Tensor:
    """Compute the loss of checked arguments; ``are_pairs`` makes equal rows positives.

    Labels are ``a [i = j]``; without pairs, ``a`` is 0.
    """
    count = len(image)
    own = torch.arange(count + 1, dtype=torch.int64, device=image.device)
    labels = own, own[:-1], float(are_pairs), 0.0, "dot", count
    given = image, text, None if bias is None else bias[None], *labels
    try:
        return ops.bce_total(*given, scale=scale, precision=precision)
    except NonFiniteError:
        check_values(image, text, scale, bias)
        raise


def check_values(image: Tensor, text: Tensor, scale: Tensor, bias: Tensor | None) -> None:
    """Check that all numbers are finite."""
    for name, rows in (("image", image), ("text", text)):
        check_rows(name, rows)
    for name, value in (("scale", scale), ("bias", bias)):
        if value is not None:
            check_bounded(name, value.item())
