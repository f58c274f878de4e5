"""Filters of RSCF for all crops as one operator; see :mod:`kgfast.models.rscf`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kgfast.kernels.backend import Filters
from kgfast.ops import differentiable as common
from kgfast.ops.dispatch import get_backend
from kgfast.ops.registry import operator


def serves_filters(*tensors: Tensor) -> bool:
    """Return whether a kernel makes filters from float32 tensors that training changes."""
    fits = all(it.dtype == torch.float32 for it in tensors)
    return fits and common.has_gradients(*tensors) and common.offers(tensors[0].device, "filters")


def filters(rows: Tensor, matrix: Tensor, widths: Sequence[int], features: int) -> Tensor:
    """Return ``N(rows matrix) + 1``, ``[C, M, R]``, of nested crops, where :func:`serves_filters`.

    N divides by the Euclidean norm. ``widths`` increase; a crop has the first features of each
    plane of ``features`` columns, of rows ``[M, G]`` and of the matrix ``[G, R]``, and zeros
    beyond.
    """
    common.refuse_forward_mode("filters", rows, matrix)
    return _filters(rows, matrix, list(widths), features)[0]


@operator("filters")
def _filters(
    rows: Tensor, matrix: Tensor, widths: Sequence[int], features: int
) -> tuple[Tensor, Tensor]:
    """Return filters, and the norms ``[C, M]``."""
    return _kernel(rows).filters(rows, matrix, widths, features)


@_filters.fake
def _(rows: Tensor, matrix: Tensor, widths: Sequence[int]) -> tuple[Tensor, Tensor]:
    shape = len(widths), len(rows)
    return rows.new_empty(*shape, matrix.shape[1]), rows.new_empty(shape)


@_filters.gradient("rows", "matrix", of="filters")
def _filters_backward(
    grad: Tensor,
    made: Tensor,
    norms: Tensor,
    rows: Tensor,
    matrix: Tensor,
    widths: Sequence[int],
    features: int,
    need: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    given = rows, matrix, widths, features
    return _kernel(rows).filters_backward(grad, (made, norms), *given, need)


def _kernel(rows: Tensor) -> Filters:
    kernel = get_backend(common.chosen_backend(rows)).filters
    assert kernel is not None
    return kernel
