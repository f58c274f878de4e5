"""Queries of training as one operator: rows of anchors times rows of relations."""

from types import SimpleNamespace

import torch
from torch import Tensor

from kgfast.kernels.backend import Compose, Composition
from kgfast.ops import differentiable as common
from kgfast.ops.dispatch import get_backend
from kgfast.ops.registry import call, operator


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
    queries: Tensor = call(
        "compose", anchors, relations, how.kind, how.conjugates, how.interleaved, float(how.unit)
    )
    return queries


@operator("compose")
def _compose(
    anchors: Tensor,
    relations: Tensor,
    kind: str,
    conjugates: bool,
    interleaved: bool,
    unit: float,
) -> Tensor:
    how = Composition(kind, conjugates, interleaved, unit)
    return _kernel(anchors).compose(anchors.contiguous(), relations.contiguous(), how)


@_compose.fake
def _(args: SimpleNamespace) -> Tensor:
    queries: Tensor = args.anchors.new_empty(args.anchors.shape)
    return queries


@_compose.gradient("anchors", "relations", of="compose", grads=("grad",))
def _compose_backward(args: SimpleNamespace) -> list[Tensor | None]:
    how = Composition(args.kind, args.conjugates, args.interleaved, args.unit)
    rows = args.anchors.contiguous(), args.relations.contiguous()
    made = _kernel(args.anchors).compose_backward(args.grad, *rows, how)
    return [it if need else None for it, need in zip(made, args.need, strict=True)]


def _kernel(anchors: Tensor) -> Compose:
    kernel = get_backend(common.chosen_backend(anchors)).compose
    assert kernel is not None
    return kernel
