"""Numbers as people read them, and tables of rows: one description for the console and for pages.

A column is a head and a cell. The cell is a template of the row's values (``"{dim:,}"``) or a
function of the row; where the row lacks a value of the template, the cell is empty. Beside Python's
formats a template has those of `FORMATS` (``"{seconds[median]:time}"``).
"""

import string
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lib.results import Row, Rows

LABELS = {"compile": "torch.compile", "eager": "torch, in chunks"}

Cell = str | Callable[[Row], str]
Columns = Sequence[tuple[str, Cell]]  # a head that ends in a colon: aligned right, as in Markdown


def human_bytes(count: float) -> str:
    """Write bytes in decimal units with three digits: ``21.5 GB``."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * size:
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def human_seconds(seconds: float) -> str:
    """Write seconds below two minutes, then minutes: ``4.1 s``, ``29 min``."""
    if seconds < 0.0995:
        return f"{_three_digits(seconds * 1e3)} ms"
    if seconds < 120:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{_two_digits(seconds)} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _two_digits(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


FORMATS: dict[str, Callable[[Any], str]] = {
    "bytes": human_bytes,
    "time": human_seconds,
    "positive_bytes": lambda count: human_bytes(max(0, count)),
    "GiB": lambda count: f"{count / 2**30:.2f} GiB",
    "giga": lambda count: f"{count / 1e9:.1f} G",
    "billions": lambda count: f"{count / 1e9:.3g} G",
    "spread": lambda it: f"{human_seconds(it['min'])} .. {human_seconds(it['max'])}",
    "words": lambda name: name.replace("_", " "),
}


class _Formatter(string.Formatter):
    """Python's formats and those of `FORMATS`."""

    def format_field(self, value: Any, format_spec: str) -> str:
        write = FORMATS.get(format_spec)
        return super().format_field(value, format_spec) if write is None else write(value)


_FORMATTER = _Formatter()


def cell_of(row: Row, cell: Cell) -> str:
    """Write a cell of a row; it is empty where the row lacks a value."""
    if callable(cell):
        return cell(row)
    try:
        return _FORMATTER.vformat(cell, (), row)
    except (KeyError, TypeError):  # no such value, or None
        return ""


def markdown_row(*cells: str) -> str:
    """Write a line of a table of a page."""
    return f"| {' | '.join(cells)} |"


def markdown(columns: Columns, rows: Rows) -> Iterator[str]:
    """Yield the lines of a table of a page."""
    heads = [head.removesuffix(":") for head, _ in columns]
    yield "|" + "".join(f" {head} |" if head.strip() else f"{head}|" for head in heads)
    yield "|" + "".join("---:|" if head.endswith(":") else "---|" for head, _ in columns)
    for row in rows:
        yield markdown_row(*(cell_of(row, cell) for _, cell in columns))


def plain(title: str, columns: Columns, rows: Rows) -> Iterator[str]:
    """Yield the lines of a table for the console."""
    heads = [head.removesuffix(":").strip() for head, _ in columns]
    lines = [heads, *([cell_of(row, cell) for _, cell in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    yield f"\n{title}\n"
    for line in lines:
        cells = zip(line, widths, columns, strict=True)
        aligned = (
            cell.rjust(n) if head.endswith(":") else cell.ljust(n) for cell, n, (head, _) in cells
        )
        yield "  ".join(aligned).rstrip()


def median(row: Row) -> str:
    """Write the median of a row's rounds, with ``~`` where it was extrapolated; else its note."""
    if not row["seconds"]:
        return str(row.get("note", ""))
    return "~" * bool(row.get("extrapolated")) + human_seconds(row["seconds"]["median"])
