"""Scores of each query with its own candidates and their gradients, in float64.

Cost model: as pairwise.py, and one gather of the rows of a tile. Memory: tiles of at most
``_TILE`` gathered numbers, whatever the number of pairs and their width.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .pairwise import crop_gradients, crop_scores, crops_of, result_dtype

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
        scores = crop_scores(queries[pair_queries[part]], table[ids[part]], score, crops)
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
    need: tuple[bool, bool] = (True, True),
) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
    """Gradient of ``queries [B, F]`` and of the rows of the table that the index names.

    The latter as ``(ids [U] ascending, rows [U, G])``: duplicates of an id are summed in the order
    of the index. None where not needed.
    """
    crops = crops_of(table, score, dims)
    grad = grad.reshape(len(crops), index.numel())  # [C, B * K]
    pair_queries, ids = _pairs(index)
    grad_queries = grad_rows = None
    if need[0]:
        grad_queries = torch.zeros_like(queries, memory_format=torch.contiguous_format)
        pairs = pair_queries, ids, pair_queries
        _sum_by_owner(grad_queries, grad, queries, table, pairs, score, crops)
    if need[1]:
        distinct, owner = ids.unique(return_inverse=True)
        order = owner.argsort(stable=True)
        rows = torch.zeros(len(distinct), table.shape[1], dtype=table.dtype, device=table.device)
        pairs = ids[order], pair_queries[order], owner[order]
        _sum_by_owner(rows, grad[:, order], table, queries, pairs, score, crops)
        grad_rows = distinct, rows
    return grad_queries, grad_rows


def _sum_by_owner(
    result: Tensor,
    grad: Tensor,
    rows: Tensor,
    others: Tensor,
    pairs: tuple[Tensor, Tensor, Tensor],
    score: str,
    crops: Sequence[int],
) -> None:
    """Fill ``result [U, G]`` with the gradients of ``rows``, summed over the pairs of an owner.

    ``pairs`` are the row, the other operand's row and the owner of each pair, by rising owner; an
    owner that spans two parts hands its float64 sum on.
    """
    row_ids, other_ids, owners = pairs
    carry, last = torch.empty(0), -1
    for part in _parts(len(owners), rows.shape[1]):
        owner = owners[part]
        first, previous, last = int(owner[0]), last, int(owner[-1])
        total = torch.zeros(last - first + 1, rows.shape[1], dtype=torch.float64).to(rows.device)
        if first == previous:
            total[0] = carry
        gradients = crop_gradients(
            grad[:, part], rows[row_ids[part]], others[other_ids[part]], score, crops
        )
        for column, gradient in gradients:
            # Unlike index_add_, this sums in a fixed order on every device.
            total[:, column].index_put_((owner - first,), gradient, accumulate=True)
        result[first : last + 1] = total.to(result.dtype)
        carry = total[-1]


def _pairs(index: Tensor) -> tuple[Tensor, Tensor]:
    """Query and candidate of every pair, ``[B * K]`` each."""
    batch, width = index.shape
    rows = torch.arange(batch, device=index.device).repeat_interleave(width)
    return rows, index.reshape(-1)


def _parts(num_pairs: int, width: int) -> Iterator[slice]:
    """The pairs in parts whose gathered rows fit the scratch."""
    step = max(1, _TILE // max(1, width))
    for i in range(0, num_pairs, step):
        yield slice(i, i + step)
