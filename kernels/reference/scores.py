"""Scores of pairs and gradients, in float64, one feature at a time.

Cost model: D passes of a few elementwise float64 operations over tiles of at most ``_TILE`` scores,
and twice that for each gradient. Pairs of an index need a gather of at most ``_GATHERED`` numbers
first. Memory: about eight such tiles. All crops come from one pass: a running sum forward, and
backward the sum of the coefficients of a feature's crops.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..backend import Into
from ..operands import Gradients, Need, Operands
from .canonical import crop_gradients, crop_scores

_TILE = 1 << 16  # scores of all crops at once: temporaries of 512 KiB stay in the cache
_GATHERED = 1 << 20  # numbers of gathered rows at once: 8 MiB
_DOUBLE = torch.float64

_Rows = tuple[Tensor, Tensor, Tensor | None]  # queries, candidates and factor, broadcasting


def all_scores(operands: Operands, out: Tensor | None = None) -> Tensor:
    """Return scores of all pairs; see :meth:`kgfast.kernels.backend.Backend.scores`."""
    operands = _as_multiplied(operands)
    crops, queries, pool = operands.crops, operands.queries, operands.candidates
    shape = (len(crops), len(queries), len(pool.table))
    result = _room(shape, operands) if out is None else out[None]
    for rows, columns in _tiles(*shape):
        factor = None if pool.factor is None else pool.factor[None, columns]
        table = pool.table[None, columns]
        scores = crop_scores(queries[rows, None], table, pool.score, crops, factor)
        if pool.whole_bias is not None:
            scores = scores + pool.whole_bias[columns].double()
        result[:, rows, columns] = scores.to(result.dtype)
    return result[0] if operands.dims is None else result


def indexed_scores(operands: Operands, index: Tensor) -> Tensor:
    """Return scores of the pairs that ``index [B, K]`` names."""
    crops, pool = operands.crops, operands.candidates
    pair_queries, ids = _pairs(index)
    result = _room((len(crops), len(ids)), operands)  # [C, B * K]
    for pairs in _parts(len(ids), pool.table.shape[1]):
        queries, rows, factor = _gathered(operands, pair_queries[pairs], ids[pairs])
        scores = crop_scores(queries, rows, pool.score, crops, factor)
        if pool.whole_bias is not None:
            scores = scores + pool.whole_bias[ids[pairs]].double()
        result[:, pairs] = scores.to(result.dtype)
    result = result.view(len(crops), *index.shape)
    return result[0] if operands.dims is None else result


def all_gradients(
    operands: Operands, grad: Tensor, need: Need, into: Into | None = None
) -> Gradients:
    """Return gradients of all pairs; see :meth:`kgfast.kernels.backend.Backend.backward`."""
    grad = grad[None] if operands.dims is None else grad  # [C, B, K]
    if operands.precision == "bf16":
        operands, grad = _as_multiplied(operands), _to_bf16(grad)
    dtypes = [None if into is None or into.queries is None else into.queries.dtype, None, None]
    gradients = [
        _sum_over_pairs(place, grad, operands, dtype) if needed else None
        for place, (needed, dtype) in enumerate(zip(need, dtypes, strict=True))
    ]
    of_queries, of_table, of_factor = gradients
    if into is None:
        return Gradients(of_queries, of_table, of_factor)
    if into.queries is not None and of_queries is not None:
        into.queries.add_(of_queries)
    if into.table is not None and of_table is not None:
        into.table.add_(of_table) if into.adds_to_table else into.table.copy_(of_table)
    return Gradients(into.queries, into.table)


def indexed_gradients(operands: Operands, grad: Tensor, index: Tensor, need: Need) -> Gradients:
    """Return gradients of named pairs: rows of table and factor, with ids.

    Duplicates of an id are summed in the order of the index.
    """
    grad = grad.reshape(len(operands.crops), index.numel())  # [C, B * K]
    pair_queries, ids = _pairs(index)
    distinct, owners = ids.unique(return_inverse=True)
    count, inputs = len(distinct), (operands.queries, operands.table, operands.factor)
    of_queries, of_table, of_factor = (
        None if rows is None or not needed else rows.new_zeros(size, rows.shape[1], dtype=_DOUBLE)
        for rows, needed, size in zip(
            inputs, need, (operands.num_queries, count, count), strict=True
        )
    )
    sums = (of_queries, pair_queries), (of_table, owners), (of_factor, owners)
    for pairs in _parts(len(ids), operands.table.shape[1]):
        gathered = _gathered(operands, pair_queries[pairs], ids[pairs])
        for place, (total, rows) in enumerate(sums):
            if total is None:
                continue
            gradients = crop_gradients(
                place, grad[:, pairs], gathered, operands.score, operands.crops
            )
            for column, gradient in gradients:
                # Unlike index_add_, this sums in a fixed order on every device.
                total[:, column].index_put_((rows[pairs],), gradient, accumulate=True)
    queries, table, factor = (
        None if total is None or rows is None else total.to(rows.dtype)
        for (total, _), rows in zip(sums, inputs, strict=True)
    )
    return Gradients(queries, table, factor, distinct if need.table or need.factor else None)


def _as_multiplied(operands: Operands) -> Operands:
    if operands.precision == "float32":
        return operands
    candidates = replace(operands.candidates, table=_to_bf16(operands.table))
    return replace(operands, queries=_to_bf16(operands.queries), candidates=candidates)


def _to_bf16(numbers: Tensor) -> Tensor:
    """Round to bfloat16, by way of float32, in the numbers' own dtype."""
    return numbers.float().bfloat16().to(numbers.dtype)


def _room(shape: tuple[int, ...], operands: Operands) -> Tensor:
    """Make memory for scores: float64 for float64 queries, else float32."""
    is_double = operands.queries.dtype == torch.float64
    dtype = torch.float64 if is_double else torch.float32
    return torch.empty(shape, dtype=dtype, device=operands.table.device)


def _sum_over_pairs(
    place: int, grad: Tensor, operands: Operands, dtype: torch.dtype | None
) -> Tensor | None:
    everything = operands.queries, operands.table, operands.factor
    rows, axis = everything[place], 0 if place == 0 else 1  # rows and axis in grad[0]
    if rows is None:
        return None
    result = torch.zeros(rows.shape, dtype=dtype or rows.dtype, device=rows.device)
    crops, queries, table, factor = operands.crops, *everything
    height, width = _tile_shape(len(crops), len(rows), grad.shape[2 - axis])
    for i in range(0, len(rows), height):
        block = slice(i, i + height)
        total = torch.zeros(rows[block].shape, dtype=torch.float64, device=rows.device)
        for j in range(0, grad.shape[2 - axis], width):
            columns = slice(j, j + width)
            of_queries, of_rows = (block, columns) if axis == 0 else (columns, block)
            tile: _Rows = (
                queries[of_queries, None],
                table[None, of_rows],
                None if factor is None else factor[None, of_rows],
            )
            slopes = grad[:, of_queries, of_rows]
            for column, gradient in crop_gradients(place, slopes, tile, operands.score, crops):
                total[:, column] += gradient.sum(1 - axis)
        result[block] = total.to(result.dtype)
    return result


def _gathered(operands: Operands, rows: Tensor, ids: Tensor) -> _Rows:
    factor = operands.factor
    return operands.queries[rows], operands.table[ids], None if factor is None else factor[ids]


def _pairs(index: Tensor) -> tuple[Tensor, Tensor]:
    """Return query and candidate of every pair, ``[B * K]`` each."""
    batch, width = index.shape
    rows = torch.arange(batch, dtype=torch.int64, device=index.device).repeat_interleave(width)
    return rows, index.reshape(-1)


def _parts(num_pairs: int, width: int) -> Iterator[slice]:
    step = max(1, _GATHERED // max(1, width))
    for i in range(0, num_pairs, step):
        yield slice(i, i + step)


def _tiles(num_crops: int, num_rows: int, num_columns: int) -> Iterator[tuple[slice, slice]]:
    """Cut the scores of all crops into tiles of at most ``_TILE``."""
    height, width = _tile_shape(num_crops, num_rows, num_columns)
    for i in range(0, num_rows, height):
        for j in range(0, num_columns, width):
            yield slice(i, i + height), slice(j, j + width)


def _tile_shape(num_crops: int, num_rows: int, num_columns: int) -> tuple[int, int]:
    size = max(1, _TILE // max(1, num_crops))
    width = max(1, min(num_columns, size))
    return max(1, min(num_rows, size // width)), width
