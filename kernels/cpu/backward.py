"""Gradients of scores on the CPU.

Cost model: engine/pairwise_backward.h, for products engine/product.h, with an index
engine/indexed_backward.h. Memory beyond operands and results is 24 MiB of feature blocks (for
products 12 MiB of packed rows), and 16 MiB of the queries' gradients by ranges of candidates. Roots
take 8 MiB of lengths, and these 8 MiB once more. An index takes three rows per thread; the gradient
of the table takes the order of the index, two words per pair. ``rscf_rotate`` takes at most 24 MiB
of turned queries.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..backend import Into
from ..operands import Gradients, NamedRows, Need, Operands
from . import extension
from .scores import scores
from .views import arguments_of, view

_LENGTH_BYTES = 2 << 20
_LEAST = torch.finfo(torch.float32).tiny
_ROWS = 4096  # most queries with feature blocks in a worker at once


class _RowGroups(NamedTuple):
    """Pairs of an index by the row that they name, for the extension."""

    ids: Tensor
    order: Tensor
    first: Tensor
    num_ids: int
    whole_table: bool


def pairwise_backward(operands: Operands, grad: Tensor, need: Need, into: Into | None) -> Gradients:
    """Return the gradients of the scores of all pairs."""
    grad = (grad[None] if operands.dims is None else grad).float()  # [C, B, K]
    sums = _room(operands, need) if into is None else Gradients(into.queries, into.table)
    adds_to_table = into is not None and into.adds_to_table
    for place, columns in enumerate(_columns(operands, grad)):
        of_queries = sums.queries
        if of_queries is not None and (into is not None or place > 0):
            of_queries = _gradient_like(operands.queries, operands)
        gradients = Gradients(of_queries, _rows(sums.table, columns), _rows(sums.factor, columns))
        _backward_of_rows(operands.of_rows(columns), grad[:, :, columns], gradients, adds_to_table)
        if sums.queries is not None and of_queries is not None and of_queries is not sums.queries:
            sums.queries.add_(of_queries)
    return sums


def _room(operands: Operands, need: Need, count: int | None = None) -> Gradients:
    """Make memory for the needed gradients, with ``count`` rows."""
    factor = operands.factor
    return Gradients(
        _gradient_like(operands.queries, operands) if need.queries else None,
        _gradient_like(operands.table, operands, count) if need.table else None,
        _gradient_like(factor, operands, count) if need.factor and factor is not None else None,
    )


def _gradient_like(rows: Tensor, operands: Operands, count: int | None = None) -> Tensor:
    """Make memory for the gradient of ``count`` rows, zero beyond the widest crop."""
    shape = (len(rows) if count is None else count, rows.shape[1])
    is_whole = operands.crops[-1] == operands.num_features
    return rows.new_empty(shape) if is_whole else rows.new_zeros(shape)


def _rows(tensor: Tensor | None, rows: slice) -> Tensor | None:
    return None if tensor is None else tensor[rows]


def _columns(operands: Operands, grad: Tensor) -> Iterator[slice]:
    """Cut candidates so that lengths, or a float32 copy of gradients, stay small."""
    table, factor = operands.table, operands.factor
    count, step = len(table), max(1, len(table))
    if operands.score.root:
        step = min(step, max(64, _LENGTH_BYTES // (4 * grad[..., :1].numel() or 1) // 64 * 64))
    if operands.num_queries > _ROWS and _is_summed_apart(table, factor):
        width = table.shape[1] + (0 if factor is None else factor.shape[1])
        step = min(step, max(64, _LENGTH_BYTES // (4 * width) // 64 * 64))
    for first in range(0, max(1, count), step):
        yield slice(first, first + step)


def _is_summed_apart(*rows: Tensor | None) -> bool:
    """Return whether gradients by blocks of queries cannot be added in place."""
    return any(tensor is not None and tensor.dtype != torch.float32 for tensor in rows)


def _backward_of_rows(
    operands: Operands, grad: Tensor, gradients: Gradients, adds_to_table: bool
) -> None:
    """Fill the gradients from ``grad [C, B, K]``, in blocks of at most ``_ROWS`` queries."""
    if operands.score.root:
        grad = _over_lengths(operands, grad, None)
    of_rows = gradients.table, gradients.factor
    targets = of_rows
    if operands.num_queries > _ROWS and _is_summed_apart(*of_rows):
        targets = _zeros_for(gradients.table), _zeros_for(gradients.factor)
    for first in range(0, max(1, operands.num_queries), _ROWS):
        rows = slice(first, first + _ROWS)
        some = Gradients(_rows(gradients.queries, rows), *targets)
        adds_to_rows = adds_to_table or first > 0
        _write(operands.of_queries(rows), grad[:, rows], some, adds_to_rows=adds_to_rows)
    for gradient, target in zip(of_rows, targets, strict=True):
        if gradient is not None and target is not None and gradient is not target:
            gradient.copy_(target)


def _zeros_for(gradient: Tensor | None) -> Tensor | None:
    """Make float32 zeros in which a gradient is summed."""
    return None if gradient is None else torch.zeros_like(gradient, dtype=torch.float32)


def _over_lengths(operands: Operands, grad: Tensor, index: Tensor | None) -> Tensor:
    """Divide the gradient by the length, as a root follows the sum; 0 for a length of 0.

    Lengths below ``_LEAST`` count as 0, because kernels take parts of such lengths for 0.
    """
    values = scores(operands.without_bias(), index).view(grad.shape)
    return torch.where(values > -_LEAST, 0.0, -grad / values)


def _write(operands: Operands, grad: Tensor, gradients: Gradients, **options: Any) -> None:
    """Fill the gradients from ``grad [C, B, K]``, by the options of the extension."""
    of_queries, of_table, of_factor, score = *gradients[:3], operands.score
    extension.backward(
        *arguments_of(operands, None),
        operands.crops,
        grad,
        grad.stride(),
        None if of_queries is None else view(of_queries, operands.query_planes, score),
        None if of_table is None else view(of_table, score.planes, score),
        None if of_factor is None else view(of_factor),
        **options,
    )


def indexed_backward(
    operands: Operands,
    grad: Tensor,
    index: Tensor,
    need: Need,
    rows: NamedRows | None,
) -> Gradients:
    """Return the gradients of the pairs that an index names, in some rows or in all rows.

    Gradients of the whole table are written in place: separate rows would take as much memory
    again.
    """
    groups = _grouped(index, rows) if need.table or need.factor else None
    count = None if groups is None or groups.whole_table else groups.num_ids
    gradients = _room(operands, need, count)
    if groups is not None and groups.whole_table and groups.num_ids < len(operands.table):
        for gradient in gradients[1:3]:
            if gradient is not None:
                gradient.zero_()
    grad = (grad[None] if operands.dims is None else grad).float()  # [C, B, K]
    if operands.score.root:
        grad = _over_lengths(operands, grad, index)
    _write(operands, grad, gradients, index=index, per_query=index.shape[1], groups=groups)
    return gradients if groups is None or count is None else gradients._replace(ids=groups.ids)


def _grouped(index: Tensor, rows: NamedRows | None) -> _RowGroups:
    """Group the positions of an index by id, in a fixed order.

    Ids outside the index have no positions.
    """
    named, (besides, within) = index.flatten(), rows or NamedRows()
    if within is None:
        ordered, order = named.sort(stable=True)
    else:
        places = ((named >= within.start) & (named < within.stop)).nonzero()[:, 0]
        ordered, order = named[places].sort(stable=True)
        order = places[order]
    ids, counts = ordered.unique_consecutive(return_counts=True)
    first = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    if besides is not None:
        if within is not None:
            besides = besides[(besides >= within.start) & (besides < within.stop)]
        together = torch.cat([ids, besides]).unique()
        if len(together) > len(ids):
            ids = together
            first = torch.cat([torch.searchsorted(ordered, ids), first[-1:]])
    return _RowGroups(ids, order, first, len(ids), whole_table=rows is None)
