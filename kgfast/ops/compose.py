"""Operators that make queries: composition, filters of RSCF, and angles of rotations."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast.kernels.backend import Composition
from kgfast.kernels.cpu import passes
from kgfast.kernels.reference import trig
from kgfast.ops.differentiable import chosen_backend, has_gradients, is_transformed
from kgfast.ops.dispatch import find_backend, get_backend, offers
from kgfast.ops.registry import operator


def serves_composition(*tables: object) -> bool:
    """Return whether a kernel composes float32 rows that a step of training changes."""
    if not torch.is_grad_enabled() or is_transformed():
        return False
    for table in tables:
        if not (isinstance(table, Tensor) and table.dtype == torch.float32 and table.requires_grad):
            return False
        if not offers(table.device, "compose"):
            return False
    return True


def compose(anchors: Tensor, relations: Tensor, how: Composition) -> Tensor:
    """Multiply anchors and relations row by row; only if :func:`serves_composition`.

    ``anchors`` and the result are ``[B, F]``. ``relations`` are ``[B, F]``, or ``[B, F / 2]``
    phases of rotations.
    """
    return _compose(anchors, relations, how._replace(unit=float(how.unit)))


@operator("compose")
def _compose(anchors: Tensor, relations: Tensor, how: Composition) -> Tensor:
    rows = anchors.contiguous(), relations.contiguous()
    composed: Tensor = _kernels_of(anchors).compose.compose(*rows, how)
    return composed


@_compose.fake
def _(anchors: Tensor) -> Tensor:
    return anchors.new_empty(anchors.shape)


@_compose.gradient("anchors", "relations")
def _compose_backward(
    grad: Tensor, anchors: Tensor, relations: Tensor, how: Composition, need: Sequence[bool]
) -> list[Tensor | None]:
    rows = anchors.contiguous(), relations.contiguous()
    gradients = _kernels_of(anchors).compose.compose_backward(grad, *rows, how)
    return [gradient if needed else None for gradient, needed in zip(gradients, need, strict=True)]


def serves_filters(*tensors: Tensor) -> bool:
    """Return whether a kernel makes filters from float32 tensors that training changes."""
    fits = all(tensor.dtype == torch.float32 for tensor in tensors) and not is_transformed()
    return fits and has_gradients(*tensors) and offers(tensors[0].device, "filters")


def filters(rows: Tensor, matrix: Tensor, widths: Sequence[int], features: int) -> Tensor:
    """Return ``N(rows matrix) + 1``, ``[C, M, R]``, of nested crops, where :func:`serves_filters`.

    N divides by the Euclidean norm. ``widths`` increase; a crop has the first features of each
    plane of ``features`` columns, of rows ``[M, G]`` and of the matrix ``[G, R]``, and zeros
    beyond.
    """
    return _filters(rows, matrix, list(widths), features)[0]


class _NormedFilters(NamedTuple):
    filters: Tensor  # [C, M, R]
    norms: Tensor  # [C, M]


@operator("filters")
def _filters(rows: Tensor, matrix: Tensor, widths: Sequence[int], features: int) -> _NormedFilters:
    return _NormedFilters(*_kernels_of(rows).filters.filters(rows, matrix, widths, features))


@_filters.fake
def _(rows: Tensor, matrix: Tensor, widths: Sequence[int]) -> tuple[Tensor, Tensor]:
    shape = len(widths), len(rows)
    return rows.new_empty(*shape, matrix.shape[1]), rows.new_empty(shape)


@_filters.gradient("rows", "matrix")
def _filters_backward(
    grad: Tensor,
    forward: _NormedFilters,
    rows: Tensor,
    matrix: Tensor,
    widths: Sequence[int],
    features: int,
    need: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    inputs = rows, matrix, widths, features
    return tuple(_kernels_of(rows).filters.filters_backward(grad, (*forward,), *inputs, need))


def cos_sin(phases: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of float64 radians as the reference defines them."""
    is_plain = type(phases) is Tensor and phases.device.type == "cpu"
    is_plain = is_plain and phases.dtype == torch.float64 and not phases.is_neg()
    is_traced = torch.compiler.is_compiling() or is_transformed()
    if not is_plain or torch.is_grad_enabled() or is_traced:
        return trig.cos_sin(phases)
    serves = find_backend(phases.device)[0] == "cpu"
    return passes.cos_sin(phases) if serves else trig.cos_sin(phases)


def _kernels_of(tensor: Tensor) -> Any:
    return get_backend(chosen_backend(tensor))
