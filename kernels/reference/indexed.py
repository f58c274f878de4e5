"""Scores of each query with its own candidates and their gradients, in float64.

Cost model: as pairwise.py, and one gather of the rows of a tile. Memory: tiles of at most
``_TILE`` gathered numbers, whatever the number of pairs and their width.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .pairwise import Operands, crop_gradients, crop_scores, crops_of, result_dtype

_TILE = 1 << 20  # numbers of gathered rows at once: 8 MiB


def indexed_scores(
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
) -> Tensor:
    """The specification of :func:`kgfast.ops.indexed_scores`; see there."""
    crops = crops_of(table, score, dims)
    pair_queries, ids = _pairs(index)
    result = torch.empty(
        len(crops), len(ids), dtype=result_dtype(queries), device=table.device
    )  # [C, B * K]
    for part in _parts(len(ids), table.shape[1]):
        pairs = _gathered(queries, table, factor, pair_queries[part], ids[part])
        scores = crop_scores(pairs[0], pairs[1], score, crops, pairs[2])
        if bias is not None:
            scores = scores + bias.expand(len(table))[ids[part]].double()
        result[:, part] = scores.to(result.dtype)
    result = result.view(len(crops), *index.shape)
    return result[0] if dims is None else result


def indexed_backward(
    grad: Tensor,
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    need: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None, Tensor | None]:
    """Gradient of ``queries [B, F]`` and of the rows of the table that the index names.

    The latter as ``(ids [U] ascending, rows [U, G])``: duplicates of an id are summed in the order
    of the index. Then the factor's rows ``[U, D]`` for the same ids. None where not needed.
    """
    crops = crops_of(table, score, dims)
    grad = grad.reshape(len(crops), index.numel())  # [C, B * K]
    pair_queries, ids = _pairs(index)
    operands = queries, table, factor
    grad_queries = grad_rows = grad_factor = None
    if need[0]:
        grad_queries = torch.zeros_like(queries, memory_format=torch.contiguous_format)
        pairs = pair_queries, ids, pair_queries
        _sum_by_owner(0, grad_queries, grad, operands, pairs, score, crops)
    if need[1] or need[2]:
        distinct, owner = ids.unique(return_inverse=True)
        order = owner.argsort(stable=True)
        pairs = pair_queries[order], ids[order], owner[order]
        if need[1]:
            rows = table.new_zeros(len(distinct), table.shape[1])
            _sum_by_owner(1, rows, grad[:, order], operands, pairs, score, crops)
            grad_rows = distinct, rows
        if need[2] and factor is not None:
            grad_factor = factor.new_zeros(len(distinct), factor.shape[1])
            _sum_by_owner(2, grad_factor, grad[:, order], operands, pairs, score, crops)
    return grad_queries, grad_rows, grad_factor


def _gathered(
    queries: Tensor, table: Tensor, factor: Tensor | None, rows: Tensor, ids: Tensor
) -> Operands:
    """The operands of pairs, a row each."""
    return queries[rows], table[ids], None if factor is None else factor[ids]


def _sum_by_owner(
    place: int,
    result: Tensor,
    grad: Tensor,
    operands: Operands,
    pairs: tuple[Tensor, Tensor, Tensor],
    score: str,
    crops: Sequence[int],
) -> None:
    """Fill ``result [U, *]`` with the gradients of operand ``place``, summed over an owner's pairs.

    ``pairs`` are the query, the id and the owner of each pair, by rising owner; an owner that spans
    two parts hands its float64 sum on.
    """
    rows, ids, owners = pairs
    carry, last = result.new_empty(0), -1
    for part in _parts(len(owners), operands[1].shape[1]):
        owner = owners[part]
        first, previous, last = int(owner[0]), last, int(owner[-1])
        total = grad.new_zeros(last - first + 1, result.shape[1], dtype=torch.float64)
        if first == previous:
            total[0] = carry
        gathered = _gathered(*operands, rows[part], ids[part])
        for column, gradient in crop_gradients(place, grad[:, part], gathered, score, crops):
            # Unlike index_add_, this sums in a fixed order on every device.
            total[:, column].index_put_((owner - first,), gradient, accumulate=True)
        result[first : last + 1] = total.to(result.dtype)
        carry = total[-1]


def _pairs(index: Tensor) -> tuple[Tensor, Tensor]:
    """Query and candidate of every pair, ``[B * K]`` each."""
    batch, width = index.shape
    rows = torch.arange(batch, dtype=torch.int64, device=index.device).repeat_interleave(width)
    return rows, index.reshape(-1)


def _parts(num_pairs: int, width: int) -> Iterator[slice]:
    """The pairs in parts whose gathered rows fit the scratch."""
    step = max(1, _TILE // max(1, width))
    for i in range(0, num_pairs, step):
        yield slice(i, i + step)
