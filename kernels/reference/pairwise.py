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
from .rank import differences, is_root, planes_of, rounded_sqrt, term, turned
from .trig import cos_sin

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
        part = None if factor is None else factor[None, columns]
        pool = candidates[None, columns]
        scores = crop_scores(queries[rows, None], pool, score, crops, part)
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
    need: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of ``queries [B, F]``, ``candidates [K, G]`` and ``factor [K, D]``.

    None where not needed, and for a factor that is not given.
    """
    crops = crops_of(candidates, score, dims)
    grad = grad[None] if dims is None else grad  # [C, B, K]
    operands = queries[:, None], candidates[None], None if factor is None else factor[None]
    gradients = [None, None, None]  # type: list[Tensor | None]
    for place, needed in enumerate(need):
        if needed and operands[place] is not None:
            gradients[place] = _row_gradients(place, grad, operands, score, crops)
    return gradients[0], gradients[1], gradients[2]


Operands = tuple[Tensor, Tensor, Tensor | None]  # queries, rows and their factor, broadcasting


def _row_gradients(
    place: int, grad: Tensor, operands: Operands, score: str, crops: Sequence[int]
) -> Tensor:
    """Gradient of one of the operands ``[B, 1, F]``, ``[1, K, G]``, ``[1, K, D]``."""
    axis = 0 if place == 0 else 1  # of the rows; the sum goes over the other
    rows = operands[place]
    assert rows is not None
    rows = rows.select(1 - axis, 0)
    result = torch.zeros_like(rows, memory_format=torch.contiguous_format)
    height, width = _tile_shape(len(crops), len(rows), grad.shape[2 - axis])
    for i in range(0, len(rows), height):
        block = slice(i, i + height)
        total = torch.zeros(rows[block].shape, dtype=torch.float64, device=rows.device)
        for j in range(0, grad.shape[2 - axis], width):
            part = slice(j, j + width)
            of_queries, of_rows = (block, part) if axis == 0 else (part, block)
            queries, pool, factor = operands
            tile = (
                queries[of_queries],
                pool[:, of_rows],
                None if factor is None else factor[:, of_rows],
            )
            gradients = crop_gradients(place, grad[:, of_queries, of_rows], tile, score, crops)
            for column, gradient in gradients:
                total[:, column] += gradient.sum(1 - axis)
        result[block] = total.to(result.dtype)
    return result


def crop_scores(
    queries: Tensor,
    rows: Tensor,
    score: str,
    crops: Sequence[int],
    factor: Tensor | None = None,
) -> Tensor:
    """Canonical scores without bias at every crop, float64 ``[C, ...]``.

    ``queries [..., F]``, ``rows [..., G]`` and their factor broadcast over their leading axes.
    """
    sums = _running_sums(queries, rows, score, crops, factor)
    if score == "dot":
        return sums
    return -(rounded_sqrt(sums) if is_root(score) else sums)


def crop_gradients(
    place: int, grad: Tensor, operands: Operands, score: str, crops: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    """Columns of operand ``place`` (0 queries, 1 rows, 2 factor) and the gradient of each.

    That is ``d scores / d operand[column]`` times ``grad [C, ...]``, summed over the crops. Where
    what a distance takes the length of is 0, its gradient is 0.
    """
    queries, rows, factor = operands
    coefficients = grad.double() if score == "dot" else -grad.double()
    if is_root(score):
        norms = rounded_sqrt(_running_sums(queries, rows, score, crops, factor))
        coefficients = _over(coefficients, norms)
    facts = get_score(score)
    width = operands[place].shape[-1]  # type: ignore[union-attr]
    planes = (facts.query_planes(factor is not None), facts.planes, 1)[place]
    starts, step = facts.columns(width, planes)
    features = planes_of(queries, rows, score, factor, max(crops, default=0))
    for feature, (q, c) in enumerate(features):
        inside = [crop for crop, dim in enumerate(crops) if dim > feature]
        coefficient = coefficients[inside].sum(0)
        slopes = _slopes(place, score, q, c)
        for start, slope in zip(starts, slopes, strict=True):
            yield start + step * feature, coefficient * slope


def _slopes(place: int, score: str, q: list[Tensor], c: list[Tensor]) -> list[Tensor]:
    """Derivative of one feature's term by each plane of an operand (root: times the norm)."""
    if score == "dot":
        return c if place == 0 else q
    x = differences(score, q, c)
    if len(x) == 2:
        modulus = term(score, q, c)
        x = [_over(part, modulus) for part in x]
    elif not is_root(score):
        x = [x[0].sign()]
    if not get_score(score).is_rscf:
        return x if place == 0 else [-part for part in x]
    return _filtered_slopes(place, x, q, c)


def _filtered_slopes(place: int, x: list[Tensor], q: list[Tensor], c: list[Tensor]) -> list[Tensor]:
    """As :func:`_slopes` of a filtering score, where the term has slopes ``x`` by differences."""
    planes = len(x)
    if place == 1:
        return [-part * q[planes + i] for i, part in enumerate(x)]
    has_factor = len(c) > planes
    by_move = None  # d term / d (a b)
    by_query = x
    if planes == 2 and has_factor:
        re, im = turned(q, c)
        by_move = x[1] * re - x[0] * im
        cosine, sine = cos_sin(q[4] * c[2])
        by_query = [x[0] * cosine + x[1] * sine, x[1] * cosine - x[0] * sine]
    elif has_factor:
        by_move = x[0]
    if place == 2:
        assert by_move is not None
        return [by_move * q[-1]]
    slopes = [*by_query, *(-part * c[i] for i, part in enumerate(x))]
    return slopes if by_move is None else [*slopes, by_move * c[-1]]


def _over(values: Tensor, lengths: Tensor) -> Tensor:
    """Quotient, 0 where the length is 0."""
    return torch.where(lengths == 0, 0.0, values / lengths)


def _running_sums(
    queries: Tensor, rows: Tensor, score: str, crops: Sequence[int], factor: Tensor | None
) -> Tensor:
    """Sums of the terms of features ``0 .. d-1``, in order, for every ``d`` of the crops."""
    shape = torch.broadcast_shapes(queries.shape[:-1], rows.shape[:-1])
    total = torch.zeros(shape, dtype=torch.float64, device=rows.device)
    sums = torch.zeros(len(crops), *shape, dtype=torch.float64, device=rows.device)
    features = planes_of(queries, rows, score, factor, max(crops, default=0))
    for feature, (q, c) in enumerate(features):
        total = total + term(score, q, c)
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
