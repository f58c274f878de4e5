"""Filters of RSCF for all crops as one operator; see :mod:`kgfast.models.filters`."""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from kgfast.kernels.backend import Filters
from kgfast.ops import differentiable as common
from kgfast.ops.dispatch import get_backend
from kgfast.ops.registry import call, operator


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
    made: Tensor = call("filters", rows, matrix, list(widths), features)[0]
    return made


@operator("filters")
def _filters(
    rows: Tensor, matrix: Tensor, widths: Sequence[int], features: int
) -> tuple[Tensor, Tensor]:
    """Return filters, and the norms ``[C, M]``."""
    return _kernel(rows).filters(rows, matrix, widths, features)


@_filters.fake
def _(args: SimpleNamespace) -> tuple[Tensor, Tensor]:
    shape = len(args.widths), len(args.rows)
    return args.rows.new_empty(*shape, args.matrix.shape[1]), args.rows.new_empty(shape)


@_filters.gradient("rows", "matrix", of="filters", grads=("grad",), kept=("made", "norms"))
def _filters_backward(args: SimpleNamespace) -> tuple[Tensor | None, Tensor | None]:
    made, given = (args.made, args.norms), (args.rows, args.matrix, args.widths, args.features)
    return _kernel(args.rows).filters_backward(args.grad, made, *given, args.need)


def _kernel(rows: Tensor) -> Filters:
    kernel = get_backend(common.chosen_backend(rows)).filters
    assert kernel is not None
    return kernel
