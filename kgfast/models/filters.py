"""Filters ``N(e A) + 1`` of rows for nested crops, in one pass with the cost of the widest crop.

A crop's features are the first features of the next wider crop. So the product of a crop is a part
of the wider crop's running sum over features; only norms differ. Rows go through in chunks:
products, norms and gradients of one chunk are made before the next is read, so that memory holds
one chunk.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from kgfast.models.evaluated import product
from kgfast.ops.differentiable import refuse_second

SMALLEST_NORM = 1e-12

# Numbers of rows at once. On a CPU both much smaller chunks and all rows in one piece are slower; a
# GPU has more cores to fill. The backward holds some 6 bytes per number: 50 MB.
_CHUNK = {"cpu": 1 << 20}
_CHUNK_ELSEWHERE = 1 << 23


def filters_of(rows: Tensor, matrix: Tensor, widths: Sequence[int], dim: int) -> tuple[Tensor, ...]:
    """Return ``N(e A) + 1`` with the Euclidean norm, of each crop, ``[M, P * width]``.

    ``rows [M, G]`` and ``matrix [G, P * dim]`` have one dtype, and planes of ``dim`` columns.
    ``widths`` increase; a crop has the first features of each plane. Gradients flow to rows and
    matrix, once. Without gradients, equal rows have equal filters.
    """
    if torch.is_grad_enabled():
        return _apply(rows, matrix, widths, dim, False)
    made = []
    for width in widths:
        total = product(between(rows, dim, 0, width), block_of(matrix, dim, (0, width), width))
        norm = torch.linalg.vector_norm(total, dim=1, keepdim=True)
        made.append(total / norm.clamp_min(SMALLEST_NORM) + 1.0)
    return tuple(made)


def crops_with_filters(
    rows: Tensor, matrix: Tensor, widths: Sequence[int], dim: int
) -> list[tuple[Tensor, Tensor]]:
    """Return each crop's features of the rows, ``[M, G / dim * width]``, and :func:`filters_of`.

    Both gradients of a row are summed while it is in the cache.
    """
    made = _apply(rows, matrix, widths, dim, True)
    return list(zip(made[len(widths) :], made, strict=False))


def _apply(*inputs: Any) -> tuple[Tensor, ...]:
    apply: Any = _FilterFunction.apply
    return cast(tuple[Tensor, ...], apply(*inputs))


class _FilterFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, matrix: Tensor, widths: Sequence[int], dim: int, cuts: bool
    ) -> tuple[Tensor, ...]:
        planes, widest = matrix.shape[1] // dim, widths[-1]
        filters = [rows.new_empty(len(rows), planes, width) for width in widths]
        norms = rows.new_empty(len(widths), len(rows), 1, 1)
        ranges = list(pairwise([0, *widths]))  # features that each crop adds
        added = [block_of(matrix, dim, ends, widest) for ends in ranges]
        for chunk in _chunks(rows):
            total = rows.new_zeros(len(rows[chunk]), planes * widest)
            for i, (ends, block, width) in enumerate(zip(ranges, added, widths, strict=True)):
                total.addmm_(between(rows[chunk], dim, *ends), block)
                crop, norm = total.view(-1, planes, widest)[:, :, :width], norms[i, chunk]
                torch.linalg.vector_norm(crop, dim=(1, 2), keepdim=True, out=norm)
                norm.clamp_min_(SMALLEST_NORM)
                torch.div(crop, norm, out=filters[i][chunk]).add_(1.0)
        ctx.save_for_backward(rows, matrix, norms, *filters)
        ctx.widths, ctx.dim = widths, dim
        cut = [between(rows, dim, 0, width) for width in widths] if cuts else []
        return *(made.flatten(1) for made in filters), *cut

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second()
        rows, matrix, norms, *filters = ctx.saved_tensors
        dim, planes, widths = ctx.dim, matrix.shape[1] // ctx.dim, ctx.widths
        of_filters = [
            gradient.unflatten(1, (planes, width))
            for gradient, width in zip(gradients, widths, strict=False)
        ]
        of_crops = list(zip(gradients[len(widths) :], widths, strict=False))
        for_rows = for_matrix = None
        if ctx.needs_input_grad[0]:
            for_rows = torch.empty_like(rows) if widths[-1] == dim else torch.zeros_like(rows)
        if ctx.needs_input_grad[1]:
            for_matrix = torch.zeros_like(matrix)
        for chunk in _chunks(rows):
            some = rows[chunk]
            total = rows.new_zeros(len(some), planes, widths[-1])  # product of the crops so far
            for i, (below, width) in reversed(list(enumerate(pairwise([0, *widths])))):
                slopes = _through_norm(of_filters[i][chunk], filters[i][chunk], norms[i, chunk])
                total[:, :, :width] += slopes
                flat = total.flatten(1)
                if for_rows is not None:
                    block = block_of(matrix, dim, (below, width), widths[-1])
                    here = for_rows[chunk].unflatten(1, (-1, dim))[:, :, below:width]
                    here.copy_((flat @ block.T).view_as(here))
                if for_matrix is not None:
                    slopes = between(some, dim, below, width).T @ flat
                    here = for_matrix.view(-1, dim, planes, dim)[:, below:width, :, : widths[-1]]
                    here += slopes.view_as(here)
            if for_rows is not None:
                for gradient, width in of_crops:
                    here = for_rows[chunk].unflatten(1, (-1, dim))[:, :, :width]
                    here += gradient[chunk].unflatten(1, (-1, width))
        return for_rows, for_matrix, None, None, None


def _through_norm(gradient: Tensor, result: Tensor, norm: Tensor) -> Tensor:
    """Return the gradient of ``x``, given that of ``x / |x| + 1``, or of ``x / c`` if clamped."""
    unit = result - 1.0
    along = (gradient * unit).sum((1, 2), keepdim=True)
    along = torch.where(norm > SMALLEST_NORM, along, 0.0)
    return torch.addcmul(gradient, unit, along, value=-1.0).div_(norm)


def between(rows: Tensor, dim: int, below: int, width: int) -> Tensor:
    """Return features ``below .. width - 1`` of each plane of rows."""
    if width - below == dim:
        return rows
    planes: Tensor = rows.unflatten(1, (-1, dim))
    return planes[:, :, below:width].flatten(1)


def block_of(matrix: Tensor, dim: int, ends: tuple[int, int], width: int) -> Tensor:
    """Return the rows of a matrix for a range of features, and their columns below a width."""
    return between(between(matrix, dim, 0, width).T, dim, *ends).T


def _chunks(rows: Tensor) -> Iterator[slice]:
    numbers = _CHUNK.get(rows.device.type, _CHUNK_ELSEWHERE)
    step = max(1, numbers // max(1, rows.shape[1]))
    for i in range(0, len(rows), step):
        yield slice(i, i + step)
