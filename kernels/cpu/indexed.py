"""Indexed scores and their gradients on the CPU: rows are gathered inside the kernel.

Cost model: csrc/indexed_rows.h. Memory beyond operands and results: three rows a thread, and for
the gradient of the table the order of the index, two words a pair.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..scores import get_score
from . import extension, isa
from .crops import Crops
from .pairwise import over_norms
from .views import address, score_code, view_of


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
    out = torch.empty(len(crops.given), *index.shape)
    if bias is not None:
        bias = bias.float().expand(len(table)).contiguous()
    extension.indexed_scores(
        isa(),
        score_code(facts),
        view_of(queries, facts),
        view_of(table, facts),
        address(index),
        index.shape[0],
        index.shape[1],
        crops.distinct,
        crops.slots,
        address(bias),
        torch.get_num_threads(),
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
    """Gradient of ``queries``, and ``(ids, rows)`` of the table's: distinct ids, ascending."""
    groups = _grouped(index) if need[1] else None
    crops = Crops.of(dims, get_score(score), table.shape[1])
    rows = None if groups is None else crops.gradient_like(table, len(groups[0]))
    found = _gradients(grad, queries, table, index, score, crops, need[0], rows, groups)
    return found, None if rows is None or groups is None else (groups[0], rows), None


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

    Rows beside it would take as much memory again; of zeros that nobody writes the system makes no
    pages.
    """
    groups = _grouped(index) if need[1] else None
    crops = Crops.of(dims, get_score(score), table.shape[1])
    rows = torch.zeros(table.shape, dtype=table.dtype) if need[1] else None
    found = _gradients(grad, queries, table, index, score, crops, need[0], rows, groups, True)
    return found, rows, None


_Groups = tuple[Tensor, Tensor, Tensor]


def _grouped(index: Tensor) -> _Groups:
    """Distinct ids, the positions of each in a fixed order, and where those of an id begin."""
    ordered, order = index.flatten().sort(stable=True)
    ids, counts = ordered.unique_consecutive(return_counts=True)
    return ids, order, torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _gradients(
    grad: Tensor,
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    crops: Crops,
    needs_queries: bool,
    grad_rows: Tensor | None,
    groups: _Groups | None,
    whole_table: bool = False,
) -> Tensor | None:
    """Fill ``grad_rows``, ``[U, G]`` or, as the ``whole_table``, ``[N, G]``; the queries'."""
    facts, index = get_score(score), index.contiguous()
    grad = (grad if crops.has_axis else grad[None]).float()  # [C, B, K]
    if score == "l2":
        grad = over_norms(grad, indexed_scores(queries, table, index, score, dims=crops.given))
    grad_queries = crops.gradient_like(queries) if needs_queries else None
    ids, order, first = groups or (None, None, None)
    extension.indexed_backward(
        isa(),
        score_code(facts),
        (address(grad), *grad.stride()),
        view_of(queries, facts),
        view_of(table, facts),
        address(index),
        index.shape[0],
        index.shape[1],
        crops.given,
        crops.distinct,
        None if grad_queries is None else view_of(grad_queries, facts),
        None if grad_rows is None else view_of(grad_rows, facts),
        whole_table,
        address(ids),
        address(order),
        address(first),
        0 if ids is None else len(ids),
        torch.get_num_threads(),
    )
    return grad_queries
