"""Metrics as tables of text and of HTML, and ids as labels."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from kgfast.graph import Vocabulary
from kgfast.text import html_table, shortened, text_table

_Rows = Mapping[Any, Mapping[str, float]]


def table_of(rows: _Rows) -> str:
    """Return metrics as a table of text, at most 80 columns wide."""
    return text_table(*_cells(rows), least=("amr", "median", "hits@3", "amri", "mr"))


def html_of(title: str, rows: _Rows) -> str:
    """Return metrics as a table of HTML with a title."""
    return html_table(title, *_cells(rows))


def _cells(rows: _Rows) -> tuple[list[str], list[tuple[str, list[str]]]]:
    metrics = list(next(iter(rows.values()), ()))
    names = ["median" if metric == "median_rank" else metric for metric in metrics]
    return names, [
        (str(label), [cell(metric, row[metric]) for metric in metrics])
        for label, row in rows.items()
    ]


def cell(metric: str, value: float) -> str:
    """Return a metric as text."""
    if metric == "count":
        return f"{int(value):,}"
    return f"{value:,.1f}" if metric in ("mr", "median_rank") else f"{value:.4f}"


def texts(ids: Tensor, names: Vocabulary | None, width: int | None = None) -> list[str]:
    """Return names with their labels, or the ids where there are no names.

    A text without a label has at most ``width`` columns. A text with a label has at most twice as
    many, since people read labels and not identifiers.
    """
    found = ids.tolist() if names is None else [names.text(id) for id in ids.tolist()]
    if width is None:
        return [str(it) for it in found]
    room = 2 * width if names is not None and names.labels else width
    return [shortened(str(it), room) for it in found]
