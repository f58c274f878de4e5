"""Scores of every (query, candidate) pair and their gradients, in float64, one feature at a time.

Cost model: D passes of a few elementwise float64 operations over tiles of at most ``_TILE`` scores,
twice that for each gradient asked for. Memory: about eight such tiles. All crops come from one
pass: a running sum forward, and backward the sum of the coefficients of the crops that a feature
is in.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..scores import get_score
from .rank import rounded_sqrt, term

_TILE = 1 << 16  # scores of all crops at once: temporaries of 512 KiB stay in the cache


def pairwise_scores(
    queries: Tensor,
    candidates: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
) -> Tensor:
    """The specification of :func:`kgfast.ops.pairwise_scores`; see there."""
    crops = crops_of(candidates, score, dims)
    shape = (len(crops), len(queries), len(candidates))
    result = torch.empty(shape, dtype=result_dtype(queries), device=candidates.device)
    for rows, columns in _tiles(*shape):
        scores = crop_scores(queries[rows, None], candidates[None, columns], score, crops)
        if bias is not None:
            scores = scores + bias.expand(len(candidates))[columns].double()
        result[:, rows, columns] = scores.to(result.dtype)
    return result[0] if dims is None else result


def pairwise_backward(
    grad: Tensor,
    queries: Tensor,
    candidates: Tensor,
    score: str,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    need: tuple[bool, bool] = (True, True),
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of ``queries [B, F]`` and ``candidates [K, G]``, None where not needed.

    Every score is symmetric in its operands, so one function serves both.
    """
    crops = crops_of(candidates, score, dims)
    grad = grad[None] if dims is None else grad  # [C, B, K]
    grad_queries = _row_gradients(grad, queries, candidates, score, crops) if need[0] else None
    turned = grad.transpose(1, 2)
    grad_candidates = _row_gradients(turned, candidates, queries, score, crops) if need[1] else None
    return grad_queries, grad_candidates


def _row_gradients(
    grad: Tensor, rows: Tensor, others: Tensor, score: str, crops: Sequence[int]
) -> Tensor:
    """Gradient of ``rows [R, G]`` given ``grad [C, R, O]`` of scores with ``others [O, G]``."""
    result = torch.zeros_like(rows, memory_format=torch.contiguous_format)
    height, width = _tile_shape(*grad.shape)
    for i in range(0, len(rows), height):
        block = slice(i, i + height)
        total = torch.zeros(rows[block].shape, dtype=torch.float64, device=rows.device)
        for j in range(0, len(others), width):
            part = slice(j, j + width)
            gradients = crop_gradients(
                grad[:, block, part], rows[block, None], others[None, part], score, crops
            )
            for column, gradient in gradients:
                total[:, column] += gradient.sum(1)
        result[block] = total.to(result.dtype)
    return result


def crop_scores(queries: Tensor, rows: Tensor, score: str, crops: Sequence[int]) -> Tensor:
    """Canonical scores without bias at every crop, float64 ``[C, ...]``.

    ``queries [..., F]`` and ``rows [..., G]`` broadcast over their leading axes.
    """
    sums = _running_sums(queries, rows, score, crops)
    if score == "dot":
        return sums
    return -(rounded_sqrt(sums) if score == "l2" else sums)


def crop_gradients(
    grad: Tensor, queries: Tensor, rows: Tensor, score: str, crops: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    """Columns of a query and, for each, ``d scores / d query[column]`` times ``grad [C, ...]``.

    As scores are symmetric, the gradient of the rows follows by exchanging the operands. Where
    query and row are equal the gradient of a distance is 0.
    """
    coefficients = grad.double() if score == "dot" else -grad.double()
    if score == "l2":
        norms = rounded_sqrt(_running_sums(queries, rows, score, crops))
        coefficients = _over(coefficients, norms)
    starts, step = get_score(score).columns(rows.shape[-1])
    for feature in range(max(crops, default=0)):
        inside = [crop for crop, dim in enumerate(crops) if dim > feature]
        coefficient = coefficients[inside].sum(0)
        columns = [start + step * feature for start in starts]
        slopes = _slopes(
            score,
            [queries[..., column].double() for column in columns],
            [rows[..., column].double() for column in columns],
        )
        for column, slope in zip(columns, slopes, strict=True):
            yield column, coefficient * slope


def _slopes(score: str, q: list[Tensor], c: list[Tensor]) -> list[Tensor]:
    """Derivative of one feature's term by each plane of the query (l2: times the norm)."""
    if score == "dot":
        return c
    differences = [a - b for a, b in zip(q, c, strict=True)]
    if score == "l1":
        return [differences[0].sign()]
    if score == "l2":
        return differences
    modulus = term(score, q, c)
    return [_over(difference, modulus) for difference in differences]


def _over(values: Tensor, lengths: Tensor) -> Tensor:
    """Quotient, 0 where the length is 0."""
    return torch.where(lengths == 0, 0.0, values / lengths)


def _running_sums(queries: Tensor, rows: Tensor, score: str, crops: Sequence[int]) -> Tensor:
    """Sums of the terms of features ``0 .. d-1``, in order, for every ``d`` of the crops."""
    starts, step = get_score(score).columns(rows.shape[-1])
    shape = torch.broadcast_shapes(queries.shape[:-1], rows.shape[:-1])
    total = torch.zeros(shape, dtype=torch.float64, device=rows.device)
    sums = torch.zeros(len(crops), *shape, dtype=torch.float64, device=rows.device)
    for feature in range(max(crops, default=0)):
        columns = [start + step * feature for start in starts]
        total = total + term(
            score,
            [queries[..., column].double() for column in columns],
            [rows[..., column].double() for column in columns],
        )
        for crop, dim in enumerate(crops):
            if dim == feature + 1:
                sums[crop] = total
    return sums


def crops_of(candidates: Tensor, score: str, dims: Sequence[int] | None) -> list[int]:
    """The crop widths, the full one if none are given."""
    return [get_score(score).num_features(candidates.shape[1])] if dims is None else list(dims)


def result_dtype(queries: Tensor) -> torch.dtype:
    """Scores of float64 queries are float64, all others float32."""
    return torch.float64 if queries.dtype == torch.float64 else torch.float32


def _tiles(num_crops: int, num_rows: int, num_columns: int) -> Iterator[tuple[slice, slice]]:
    """The score matrices of all crops in tiles of at most ``_TILE`` scores."""
    height, width = _tile_shape(num_crops, num_rows, num_columns)
    for i in range(0, num_rows, height):
        for j in range(0, num_columns, width):
            yield slice(i, i + height), slice(j, j + width)


def _tile_shape(num_crops: int, num_rows: int, num_columns: int) -> tuple[int, int]:
    """Height and width of such tiles, as wide as they can be."""
    size = max(1, _TILE // max(1, num_crops))
    width = max(1, min(num_columns, size))
    return max(1, min(num_rows, size // width)), width
