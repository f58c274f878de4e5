"""Filters ``N(e A) + 1`` of rows for nested crops, in one pass with the cost of the widest crop.

A crop's features are the first features of the next wider crop. So the product of a crop is a part
of the wider crop's running sum over features; only norms differ. Rows go through in chunks:
products, norms and gradients of one chunk are made before the next is read, so that memory holds
one chunk.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kgfast.ops.differentiable import is_transformed

SMALLEST_NORM = 1e-12

# Numbers of rows at once. On a CPU both much smaller chunks and all rows in one piece are slower; a
# GPU has more cores to fill. The backward holds some 6 bytes per number: 50 MB.
_CHUNK = {"cpu": 1 << 20}
_CHUNK_ELSEWHERE = 1 << 23

Spans = Sequence[Sequence[slice]]  # columns of rows that each crop adds to the crop before


def filters_of(rows: Tensor, matrix: Tensor, widths: Sequence[int], features: int) -> list[Tensor]:
    """Return ``N(e A) + 1 [M, width]`` with the Euclidean norm, of each crop.

    ``rows [M, G]`` and ``matrix [G, features]`` have one dtype. ``widths`` increase; a crop has the
    first features of each plane of ``features`` columns of rows. Gradients flow to rows and matrix,
    once.
    """
    starts = range(0, rows.shape[1], features)
    spans = [
        [slice(start + below, start + width) for start in starts]
        for below, width in pairwise([0, *widths])
    ]
    if is_transformed():  # torch.func differentiates operators of torch
        total, made = rows.new_zeros(len(rows), widths[-1]), []
        for added, width in zip(spans, widths, strict=True):
            total = total + sum(rows[:, span] @ matrix[span, : widths[-1]] for span in added)
            norm = torch.linalg.vector_norm(total[:, :width], dim=1, keepdim=True)
            made.append(total[:, :width] / norm.clamp_min(SMALLEST_NORM) + 1.0)
        return made
    apply: Any = _FilterFunction.apply
    return list(apply(rows, matrix, spans, tuple(widths)))


class _FilterFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, matrix: Tensor, spans: Spans, widths: tuple[int, ...]
    ) -> tuple[Tensor, ...]:
        results = tuple(rows.new_empty(len(rows), width) for width in widths)
        norms = rows.new_empty(len(widths), len(rows), 1)
        for part in _chunks(rows):
            chunk = rows[part]
            total = rows.new_zeros(len(chunk), widths[-1])
            for i, (added, width) in enumerate(zip(spans, widths, strict=True)):
                for span in added:
                    total.addmm_(chunk[:, span], matrix[span, : widths[-1]])
                product, norm = total[:, :width], norms[i, part]
                torch.linalg.vector_norm(product, dim=1, keepdim=True, out=norm)
                norm.clamp_min_(SMALLEST_NORM)
                torch.div(product, norm, out=results[i][part]).add_(1.0)
        ctx.save_for_backward(rows, matrix, norms, *results)
        ctx.spans, ctx.widths = spans, widths
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        rows, matrix, norms, *results = ctx.saved_tensors
        widest = ctx.widths[-1]
        for_rows = torch.zeros_like(rows) if ctx.needs_input_grad[0] else None
        for_matrix = torch.zeros_like(matrix) if ctx.needs_input_grad[1] else None
        for part in _chunks(rows):
            chunk = rows[part]
            total = rows.new_zeros(len(chunk), widest)  # product of the crops so far
            for i in reversed(range(len(ctx.widths))):
                gradient = gradients[i]
                if gradient is not None:
                    pulled = _through_norm(gradient[part], results[i][part], norms[i, part])
                    total[:, : ctx.widths[i]] += pulled
                for span in ctx.spans[i]:
                    if for_rows is not None:
                        for_rows[part, span] = total @ matrix[span, :widest].t()
                    if for_matrix is not None:
                        for_matrix[span, :widest].addmm_(chunk[:, span].t(), total)
        return for_rows, for_matrix, None, None


def _through_norm(gradient: Tensor, result: Tensor, norm: Tensor) -> Tensor:
    """Return the gradient of ``x``, given that of ``x / |x| + 1``, or of ``x / c`` if clamped."""
    unit = result - 1.0
    along = (gradient * unit).sum(1, keepdim=True)
    along = torch.where(norm > SMALLEST_NORM, along, 0.0)
    return torch.addcmul(gradient, unit, along, value=-1.0).div_(norm)


def _chunks(rows: Tensor) -> Iterator[slice]:
    numbers = _CHUNK.get(rows.device.type, _CHUNK_ELSEWHERE)
    step = max(1, numbers // max(1, rows.shape[1]))
    for i in range(0, len(rows), step):
        yield slice(i, i + step)
