"""Metrics as tables of text and of HTML."""

from collections.abc import Mapping
from typing import Any

from kgfast.text import html_table, text_table

_Rows = Mapping[Any, Mapping[str, float]]


def table_of(rows: _Rows) -> str:
    """Metrics as a table of text, at most 80 columns wide."""
    return text_table(*_cells(rows), least=("amr", "median", "hits@3", "amri", "mr"))


def html_of(title: str, rows: _Rows) -> str:
    """The same as a table of HTML, with a title."""
    return html_table(title, *_cells(rows))


def _cells(rows: _Rows) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Names of the metrics, and each row's label and metrics as text."""
    metrics = list(next(iter(rows.values()), ()))
    names = ["median" if metric == "median_rank" else metric for metric in metrics]
    return names, [
        (str(label), [_cell(metric, row[metric]) for metric in metrics])
        for label, row in rows.items()
    ]


def _cell(metric: str, value: float) -> str:
    if metric == "count":
        return f"{int(value):,}"
    return f"{value:,.1f}" if metric in ("mr", "median_rank") else f"{value:.4f}"
