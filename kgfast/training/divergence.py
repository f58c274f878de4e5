"""Divergence: the row of a table that made a loss or ranks not finite."""

from torch import nn

from kgfast.datasets import Dataset

_NUMBERS = 1 << 22  # numbers per block, so that no mask of the size of a table is made


def first_bad_row(model: nn.Module) -> tuple[str, int] | None:
    """Return the first parameter with a NaN or an infinity, and the first such row, or None.

    Examples
    --------
    >>> import torch
    >>> model = nn.Linear(2, 3)
    >>> first_bad_row(model)
    >>> with torch.no_grad():
    ...     _ = model.weight[1].fill_(torch.nan)
    >>> first_bad_row(model)
    ('weight', 1)
    """
    for name, parameter in model.named_parameters():
        rows = parameter.detach()
        rows = rows.reshape(len(rows), -1) if rows.ndim else rows.reshape(1, 1)
        step = max(1, _NUMBERS // max(1, rows.shape[1]))
        for first in range(0, len(rows), step):
            finite = rows[first : first + step].isfinite().all(1)
            if not bool(finite.all()):
                return name, first + int((~finite).nonzero()[0])
    return None


def describe(model: nn.Module, dataset: Dataset) -> str:
    """Describe the error in the tables in a clause."""
    advice = "try a lower optim.lr or optim.grad_clip"
    bad_row = first_bad_row(model)
    if bad_row is None:
        return (
            "all tables are finite, but queries, scores or the loss of their numbers overflow: "
            f"{advice}"
        )
    table, row = bad_row[0].rpartition(".")[2], bad_row[1]
    names = {"entity": dataset.entities, "relation": dataset.relations}.get(table)
    name = f" ({names.name(row)})" if names is not None and row < len(names) else ""
    return (
        f"row {row} of the {table} table{name} is the first that holds a NaN or an infinity: "
        f"{advice}"
    )
