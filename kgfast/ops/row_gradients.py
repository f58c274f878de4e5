"""Row gradients of a table: losses make them, and optimizers take them.

Autograd carries tensors only, so row gradients are a ``torch.sparse_coo`` tensor, on the CPU
coalesced. On a GPU the host would wait for the number of distinct ids: there the gradient has as
many rows as were read, in any order, and consumers sum the rows of an id (:meth:`RowGradients.of`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from kgfast.ops.differentiable import refuse_second, refuse_sparse
from kgfast.ops.dispatch import find_backend, get_backend

_KEPT = "_kgfast_row_gradients"  # attribute of a sparse gradient with ascending ids that may repeat


@dataclass(frozen=True)
class RowGradients:
    """Gradients of some rows of a table.

    Attributes
    ----------
    ids : Tensor
        int64 ``[U]``, ascending and distinct.
    rows : Tensor
        ``[U, G]``.
    repeats : bool
        True if ids may repeat, as on a GPU. The first of equal ids then has the gradient, and all
        repetitions have zeros.

    Examples
    --------
    >>> table = torch.nn.Embedding(4, 1, sparse=True)
    >>> table(torch.tensor([2, 0, 2])).sum().backward()
    >>> gradients = RowGradients.of(table.weight.grad)
    >>> gradients.ids.tolist(), gradients.rows.tolist()
    ([0, 2], [[1.0], [2.0]])
    """

    ids: Tensor
    rows: Tensor
    repeats: bool = False

    @classmethod
    def of(cls, gradient: Tensor) -> "RowGradients":
        """View the gradient that a loss with ``sparse=True`` leaves in a table.

        ``gradient`` is ``torch.sparse_coo [N, G]`` with one sparse axis, else a TypeError or
        ValueError is raised. If ids ascend, the tensors are shared. Any other gradient, such as a
        sum of gradients, is coalesced first. On a GPU the rows of an id are summed in order, and
        the host does not wait.
        """
        layout = getattr(gradient, "layout", type(gradient).__name__)
        if layout != torch.sparse_coo:
            raise TypeError(f"gradient must be torch.sparse_coo; got {layout}")
        if gradient.sparse_dim() != 1:
            raise ValueError(f"gradient must have one sparse axis; got {gradient.sparse_dim()}")
        ids, rows = gradient._indices()[0], gradient._values().detach()
        if gradient.is_coalesced():
            return cls(ids, rows)
        kept: RowGradients | None = getattr(gradient, _KEPT, None)
        if kept is not None and len(kept.ids) == len(ids) and kept.ids.data_ptr() == ids.data_ptr():
            return kept  # an addition makes new ids
        sums = _sums_for(rows)
        if sums is not None:
            return _summed_by(sums, [(ids, rows)])
        if bool((ids[1:] > ids[:-1]).all()):
            return cls(ids, rows)  # torch may drop the mark when it puts a gradient into a leaf
        gradient = gradient.detach().coalesce()
        return cls(gradient.indices()[0], gradient.values())

    def to_sparse(self, num_rows: int) -> Tensor:
        """Return the sparse gradient ``[num_rows, G]``, which shares these tensors.

        The gradient is coalesced, unless ids may repeat.
        """
        gradient = _sparse(self.ids, self.rows, num_rows, is_coalesced=not self.repeats)
        if self.repeats:
            setattr(gradient, _KEPT, self)
        return gradient

    def distinct(self) -> "RowGradients":
        """Return equal gradients without repeats; the host waits for the number of rows."""
        if not self.repeats:
            return self
        is_first = torch.ones_like(self.ids, dtype=torch.bool)
        torch.ne(self.ids[1:], self.ids[:-1], out=is_first[1:])
        first = is_first.nonzero()[:, 0]
        return RowGradients(self.ids.index_select(0, first), self.rows.index_select(0, first))


Part = tuple[Tensor, Tensor]  # ids that may repeat, and rows
# function of ascending ids [T], the row of each, and rows: sums for the first of equal ids, else 0
SumRows = Callable[[Tensor, Tensor, Tensor], Tensor]


def merge(first: RowGradients | None, others: Sequence[Part]) -> RowGradients:
    """Add gradients of rows ``(ids [*], rows [*, G])`` in a fixed order.

    If ``first`` has all rows, the others are added to ``first`` in place, and ``first`` is the
    result. Without ``first``, ``others`` must not be empty. On a GPU all gradients are summed anew,
    and the ids of ``first`` may be in any order.
    """
    parts = [*others] if first is None else [(first.ids, first.rows), *others]
    sums = _sums_for(parts[0][1])
    if sums is not None:
        return _summed_by(sums, parts)
    if first is not None and not others:
        return first
    if first is not None and len(first.ids):
        placed = [(_places(ids, first.ids), rows) for ids, rows in others]
        known = [(place, rows) for place, rows in placed if place is not None]
        if len(known) == len(others):
            add_to(first.rows, known)
            return first
    named, rows_of = zip(*parts, strict=True)
    distinct, of_all = torch.cat(named).unique(return_inverse=True)
    total = rows_of[0].new_zeros(len(distinct), *rows_of[0].shape[1:])
    add_to(total, [*zip(of_all.split([*map(len, named)]), rows_of, strict=True)])
    return RowGradients(distinct, total)


def add_to(table: Tensor, parts: Sequence[Part]) -> None:
    """Add row gradients to the gradient of a whole table ``[N, G]``, in a fixed order."""
    for ids, rows in parts:
        if table.device.type == "cpu":
            table.index_add_(0, ids, rows)
        else:  # index_add_ has no fixed order on a GPU
            table.index_put_((ids,), rows, accumulate=True)


def part_of(gradient: Tensor) -> Part:
    """Return ids and rows of a gradient, like :meth:`RowGradients.of`, but unsummed on a GPU."""
    if gradient.sparse_dim() == 1 and _sums_for(gradient._values()) is not None:
        return gradient._indices()[0], gradient._values().detach()
    summed = RowGradients.of(gradient)
    return summed.ids, summed.rows


def numbers_of(gradient: Tensor) -> Tensor:
    """Return the numbers of a gradient without a copy."""
    return gradient._values() if gradient.is_sparse else gradient


def read_rows(table: Tensor, *ids: Tensor) -> tuple[Tensor, ...]:
    """Read rows of a table; all gradients reach the table as one gradient of rows.

    The results are the table ``[N, G]``, for an operator of kgfast, and rows ``[*, G]`` for each of
    the int64 ``ids``. The gradient of the table is sparse, unless the operator's gradient is dense.
    If dense, or on the CPU, other gradients are added to the operator's gradient in place: nothing
    else may hold that gradient.
    """
    refuse_sparse("losses")
    rows: tuple[Tensor, ...] = _ReadRows.apply(table, *ids)  # type: ignore[no-untyped-call]
    return rows


class _ReadRows(Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, *ids: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*ids)
        ctx.num_rows = len(table)
        return table.detach(), *map(partial(table.index_select, 0), ids)

    @staticmethod
    def backward(ctx: Any, whole: Tensor | None, *rows: Tensor | None) -> tuple[Any, ...]:
        refuse_second()
        pairs = zip(ctx.saved_tensors, rows, strict=True)
        others = [(ids, some) for ids, some in pairs if some is not None]
        unused = [None] * len(rows)
        if whole is None and not others:
            return None, *unused
        if whole is not None and not whole.is_sparse:
            add_to(whole, others)
            return whole, *unused
        if _sums_for(others[0][1] if whole is None else whole._values()) is not None:
            if whole is not None:
                others = [part_of(whole), *others]
            return _sparse(*_joined(others), ctx.num_rows, is_coalesced=False), *unused
        first = None if whole is None else RowGradients.of(whole)
        return merge(first, others).to_sparse(ctx.num_rows), *unused


def _sparse(ids: Tensor, rows: Tensor, num_rows: int, *, is_coalesced: bool) -> Tensor:
    return torch.sparse_coo_tensor(
        ids[None],
        rows,
        (num_rows, *rows.shape[1:]),
        dtype=rows.dtype,
        device=rows.device,
        check_invariants=False,
        is_coalesced=is_coalesced,
    )


def _sums_for(rows: Tensor) -> SumRows | None:
    """Return the function that sums rows on a device without waiting; None elsewhere."""
    if not rows.is_floating_point():
        return None
    return getattr(get_backend(find_backend(rows.device)[0]), "row_sums", None)


def _joined(parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    return torch.cat([pair[0] for pair in parts]), torch.cat([pair[1] for pair in parts])


def _summed_by(sums: SumRows, parts: Sequence[Part]) -> RowGradients:
    ids, rows = _joined(parts)
    ids, order = ids.sort(stable=True)
    return RowGradients(ids, sums(ids, order, rows), repeats=True)


def _places(ids: Tensor, base: Tensor) -> Tensor | None:
    """Return the places of ids in ascending ids; None if one is not among them."""
    places = torch.searchsorted(base, ids.contiguous()).clamp_(max=len(base) - 1)
    return places if torch.equal(base.index_select(0, places), ids) else None
