"""Gradients of the few rows of a table that a step used."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowGradients:
    """Gradients of rows of a table.

    Attributes
    ----------
    ids : Tensor
        int64 ``[U]``.
    rows : Tensor
        ``[U, G]``.
    distinct : bool
        Whether the ids ascend and none occurs twice.
    """

    ids: Tensor
    rows: Tensor
    distinct: bool = False


def merge(parts: Sequence[RowGradients], sizes: Sequence[int] = ()) -> list[RowGradients]:
    """The same gradients in disjoint parts that have each id once.

    The largest part with distinct ids stays where it is and takes in what others have of its rows;
    everything else is summed in one new part. Sums are in a fixed order. ``sizes`` are those of the
    parts with distinct ids, where a process has a part of each.
    """
    distinct = [part for part in parts if part.distinct]
    counts = sizes or [len(part.ids) for part in distinct]
    base = distinct[max(range(len(distinct)), key=counts.__getitem__)] if distinct else None
    if base is None:
        return [_summed(parts)] if parts else []
    others = [_without(part, base) for part in parts if part is not base]
    return [base, _summed(others)] if others else [base]


def add_to(table: Tensor, parts: Sequence[RowGradients]) -> None:
    """Add gradients to those of a whole table ``[N, G]``."""
    for part in parts:
        _add_rows(table, part.ids, part.rows)


def _summed(parts: Sequence[RowGradients]) -> RowGradients:
    ids, places = torch.cat([part.ids for part in parts]).unique(return_inverse=True)
    rows = parts[0].rows.new_zeros(len(ids), parts[0].rows.shape[1])
    for part, place in zip(parts, places.split([len(part.ids) for part in parts]), strict=True):
        _add_rows(rows, place, part.rows)
    return RowGradients(ids, rows, distinct=True)


def _without(part: RowGradients, base: RowGradients) -> RowGradients:
    """Add what a part has of the rows of a base; return the rest."""
    if not len(base.ids):
        return part
    at = torch.searchsorted(base.ids, part.ids).clamp_(max=len(base.ids) - 1)
    shared = base.ids.index_select(0, at) == part.ids
    inside, outside = shared.nonzero()[:, 0], (~shared).nonzero()[:, 0]
    _add_rows(base.rows, at.index_select(0, inside), part.rows.index_select(0, inside))
    return RowGradients(part.ids.index_select(0, outside), part.rows.index_select(0, outside))


def _add_rows(table: Tensor, ids: Tensor, rows: Tensor) -> None:
    """Add rows that may repeat, in a fixed order: index_add_ has none on a GPU."""
    if table.device.type == "cpu":
        table.index_add_(0, ids, rows)
    else:
        table.index_put_((ids,), rows, accumulate=True)
