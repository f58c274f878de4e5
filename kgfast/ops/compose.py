"""Queries of training as one operator: rows of anchors times rows of relations."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kgfast.kernels.backend import Compose, Composition
from kgfast.ops import differentiable as common
from kgfast.ops.dispatch import get_backend
from kgfast.ops.registry import operator


def serves_composition(*tables: object) -> bool:
    """Return whether a kernel composes float32 rows that a step of training changes.

    Queries of a ranking have no gradients, and their bits must not depend on the device.
    """
    for table in tables:
        if not (isinstance(table, Tensor) and table.dtype == torch.float32 and table.requires_grad):
            return False
        if not common.offers(table.device, "compose"):
            return False
    return torch.is_grad_enabled()


def compose(anchors: Tensor, relations: Tensor, how: Composition) -> Tensor:
    """Multiply anchors and relations row by row; only if :func:`serves_composition`.

    ``anchors`` and the result are ``[B, F]``. ``relations`` are ``[B, F]``, or ``[B, F / 2]``
    phases of rotations.
    """
    common.refuse_forward_mode("compose", anchors, relations)
    return _compose(anchors, relations, how._replace(unit=float(how.unit)))


@operator("compose")
def _compose(anchors: Tensor, relations: Tensor, how: Composition) -> Tensor:
    return _kernel(anchors).compose(anchors.contiguous(), relations.contiguous(), how)


@_compose.fake
def _(anchors: Tensor) -> Tensor:
    return anchors.new_empty(anchors.shape)


@_compose.gradient("anchors", "relations", of="compose")
def _compose_backward(
    grad: Tensor, anchors: Tensor, relations: Tensor, how: Composition, need: Sequence[bool]
) -> list[Tensor | None]:
    rows = anchors.contiguous(), relations.contiguous()
    made = _kernel(anchors).compose_backward(grad, *rows, how)
    return [it if needed else None for it, needed in zip(made, need, strict=True)]


def _kernel(anchors: Tensor) -> Compose:
    kernel = get_backend(common.chosen_backend(anchors)).compose
    assert kernel is not None
    return kernel
