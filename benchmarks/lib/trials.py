"""What the scripts share that measure trial by trial, for minutes each."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from lib.machine import facts, machine_line
from lib.results import write_json
from lib.tables import console


def write_and_show(
    measured: Iterable[dict[str, Any]],
    path: Path | None,
    show: Callable[[Console, Sequence[dict[str, Any]]], None],
) -> None:
    """Measure, and print; write after each trial what there is, with facts of the machine."""
    out, about = console(), facts("cpu")
    out.print(machine_line(about) + "\n", style="dim")
    rows: list[dict[str, Any]] = []
    for row in measured:
        rows.append(row | about)
        if path is not None:
            write_json(path, {"rows": rows})
    show(out, rows)
