"""Indexed scores and their gradients on the CPU: rows are gathered inside the kernel.

Cost model: engine/indexed_rows.h. Memory beyond operands and results: three rows a thread, and for
the gradient of the table the order of the index, two words a pair; of ``rscf_rotate`` at most
24 MiB of turned queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..scores import get_score
from . import extension, isa, threads
from .crops import Crops
from .pairwise import has_norms, over_norms
from .views import address, factor_view, query_view, score_code, view_of


def indexed_scores(
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
) -> Tensor:
    """The contract of :func:`kgfast.ops.indexed_scores`; see there."""
    facts = get_score(score)
    crops = Crops.of(dims, facts, table.shape[1])
    index = index.contiguous()
    out = table.new_empty(len(crops.given), *index.shape, dtype=torch.float32)
    if bias is not None:
        bias = bias.float().expand(len(table)).contiguous()
    extension.indexed_scores(
        isa(),
        score_code(facts, factor),
        query_view(queries, facts, factor),
        view_of(table, facts),
        factor_view(factor),
        address(index),
        index.shape[0],
        index.shape[1],
        crops.distinct,
        crops.slots,
        address(bias),
        threads.count(),
        address(out),
    )
    return crops.finish(out)


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
    """Gradient of ``queries``, ``(ids, rows)`` of the table's, rows of the factor's.

    Of distinct ids, ascending.
    """
    crops = Crops.of(dims, get_score(score), table.shape[1])
    groups = _grouped(index) if need[1] or need[2] else None
    rows, factor_rows = (
        None
        if groups is None or like is None or not needed
        else crops.gradient_like(like, len(groups[0]))
        for like, needed in ((table, need[1]), (factor, need[2]))
    )
    operands = _Operands(queries, table, factor, index, score, crops)
    found = _gradients(grad, operands, need[0], (rows, factor_rows), groups)
    return found, None if rows is None or groups is None else (groups[0], rows), factor_rows


def indexed_backward_dense(
    grad: Tensor,
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    need: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """As `indexed_backward`, with the table's gradient written where it belongs: ``[N, G]``.

    Rows beside it would take as much memory again.
    """
    crops = Crops.of(dims, get_score(score), table.shape[1])
    groups = _grouped(index) if need[1] or need[2] else None
    rows, factor_rows = (
        None if like is None or not needed else like.new_zeros(like.shape)
        for like, needed in ((table, need[1]), (factor, need[2]))
    )
    operands = _Operands(queries, table, factor, index, score, crops)
    found = _gradients(grad, operands, need[0], (rows, factor_rows), groups, whole_table=True)
    return found, rows, factor_rows


@dataclass(frozen=True)
class _Operands:
    queries: Tensor
    table: Tensor
    factor: Tensor | None
    index: Tensor
    score: str
    crops: Crops


_Groups = tuple[Tensor, Tensor, Tensor]


def _grouped(index: Tensor) -> _Groups:
    """Distinct ids, the positions of each in a fixed order, and where those of an id begin."""
    ordered, order = index.flatten().sort(stable=True)
    ids, counts = ordered.unique_consecutive(return_counts=True)
    return ids, order, torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _gradients(
    grad: Tensor,
    operands: _Operands,
    needs_queries: bool,
    grad_rows: tuple[Tensor | None, Tensor | None],
    groups: _Groups | None,
    whole_table: bool = False,
) -> Tensor | None:
    """Fill ``grad_rows`` of table and factor, ``[U]`` or of the ``whole_table``; the queries'."""
    queries, table, factor = operands.queries, operands.table, operands.factor
    score, crops = operands.score, operands.crops
    facts, index = get_score(score), operands.index.contiguous()
    grad = (grad if crops.has_axis else grad[None]).float()  # [C, B, K]
    if has_norms(score):
        scores = indexed_scores(queries, table, index, score, factor=factor, dims=crops.given)
        grad = over_norms(grad, scores)
    grad_queries = crops.gradient_like(queries) if needs_queries else None
    ids, order, first = groups or (None, None, None)
    extension.indexed_backward(
        isa(),
        score_code(facts, factor),
        (address(grad), *grad.stride()),
        query_view(queries, facts, factor),
        view_of(table, facts),
        factor_view(factor),
        address(index),
        index.shape[0],
        index.shape[1],
        crops.given,
        crops.distinct,
        None if grad_queries is None else query_view(grad_queries, facts, factor),
        None if grad_rows[0] is None else view_of(grad_rows[0], facts),
        factor_view(grad_rows[1]),
        whole_table,
        address(ids),
        address(order),
        address(first),
        0 if ids is None else len(ids),
        threads.count(),
    )
    return grad_queries
