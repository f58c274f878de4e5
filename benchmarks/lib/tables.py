"""Numbers as people read them, and tables of the rows of a results file."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from lib.results import Rows

LABELS = {"compile": "torch.compile", "eager": "torch, in chunks", "keops": "KeOps"}
OURS = "bold green"  # the style of kgfast's rows


def console() -> Console:
    """A console that is wide enough for the tables where the output is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 116, highlight=False)


def human_bytes(count: float) -> str:
    """Decimal units, three digits: ``21.5 GB``."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * size:
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def human_seconds(seconds: float) -> str:
    """Seconds below two minutes, then minutes: ``4.1 s``, ``29 min``."""
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


def new_table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def median(row: Mapping[str, Any]) -> str:
    """The median of a row's rounds; ``~`` where it was extrapolated."""
    mark = "~" if row.get("extrapolated") else ""
    return mark + human_seconds(row["seconds"]["median"])


def spread(seconds: Mapping[str, float]) -> str:
    """The range of the rounds."""
    return f"{human_seconds(seconds['min'])} .. {human_seconds(seconds['max'])}"


def billions(row: Mapping[str, Any]) -> str:
    """Elements per second."""
    return f"{row['elements_per_s'] / 1e9:.3g} G"


def style_of(row: Mapping[str, Any]) -> str | None:
    """Kgfast's rows stand out, those of peers that cannot run here stand back."""
    if row["seconds"] is None:
        return "dim"
    return OURS if row["contender"].startswith("kgfast") else None


def race_table(
    title: str, rows: Rows, labels: Mapping[str, str], difference: str, differs: Callable[..., str]
) -> Table:
    """One line per contender, grouped by work; the last column is how its answers differ."""
    columns = ("table", "dim", "median", "min .. max", "elements/s", "x kgfast", difference)
    table = new_table(title, "", *columns)
    before = None
    for row in rows:
        work = row["dim"], row["table"]
        if before not in (None, work):
            table.add_section()
        before = work
        cells = [labels.get(row["contender"], row["contender"]), row["table"], str(row["dim"])]
        if row["seconds"] is None:
            cells.append(row["note"])
        else:
            times = f"{row['times_kgfast']:.2f}"
            cells += [median(row), spread(row["seconds"]), billions(row), times, differs(row)]
        table.add_row(*cells, style=style_of(row))
    return table


def print_ratios(out: Console, ratios: list[dict[str, str]]) -> None:
    """What a benchmark is for, beside the goals."""
    table = new_table("Ratios of medians", "", "measured", "goal")
    for line in ratios:
        table.add_row(*line.values())
    out.print(table)


def ratio_lines(lines: list[tuple[str, str, str]]) -> list[dict[str, str]]:
    """What, measured, goal: as a results file holds them."""
    return [dict(zip(("what", "measured", "goal"), line, strict=True)) for line in lines]
