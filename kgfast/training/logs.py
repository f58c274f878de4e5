"""Logs of a run: JSON lines, CSV, and TensorBoard if it is installed.

Rows are flushed at once, and the rows of a step before its checkpoint. Resuming cuts the rows after
the resumed step, so the logs equal the logs of an uninterrupted run. A damaged log stops no resume:
the file is set aside, and its other rows stay.
"""

import csv
import io
import json
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TextIO

from kgfast.eval import metrics
from kgfast.text import shown
from kgfast.whole_files import clear_beside, set_aside, write_whole

COLUMNS = ("step", "epoch", "time", "split", "dim", "loss", "lr")
METRICS = tuple(metric.name for metric in metrics.METRICS)

_NUMBERS = [name for name in (*COLUMNS, *METRICS) if name != "split"]

Row = dict[str, Any]


class Logs:
    """Logs of a run folder, open for appending.

    ``metrics.jsonl`` holds every key of every row. ``metrics.csv`` holds the keys that are columns,
    which are fixed when the file is made; ``metric`` is one of them. ``resume_step`` keeps the rows
    up to that step; None starts new files. With ``tensorboard``, ``<folder>/tensorboard`` is also
    written if the package is installed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        resume_step: int | None = None,
        *,
        metric: str = "mrr",
        tensorboard: bool = True,
    ) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        jsonl, table = folder / "metrics.jsonl", folder / "metrics.csv"
        kept: list[Row] = []
        columns: list[str] = []
        if resume_step is not None:
            rows, columns = _whole_rows(folder), _columns_of(table)
            kept = [row for row in rows if row["step"] <= resume_step]
        columns = columns or list(dict.fromkeys((*COLUMNS, *METRICS, metric)))
        lines = "".join(_json_line(row) for row in kept)
        rows_of_table = _csv_line(columns) + "".join(_csv_row(row, columns) for row in kept)
        self._columns = columns
        self._jsonl, self._csv = _rewritten(jsonl, lines), _rewritten(table, rows_of_table)
        self._board = _board(folder, resume_step) if tensorboard else None

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row with a ``step``; NaN and infinity are written as null.

        Rows of evaluations have a ``split``, and rows of sub-models also a ``dim``.
        """
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        self._jsonl.write(_json_line(clean))
        self._csv.write(_csv_row(clean, self._columns))
        self._jsonl.flush()
        self._csv.flush()
        if self._board is not None:
            _to_board(self._board, clean)

    def close(self) -> None:
        """Close the files."""
        self._jsonl.close()
        self._csv.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_rows(folder: str | os.PathLike[str]) -> list[Row]:
    """Read the rows of a run folder, without a last line that a kill cut short.

    A ValueError names file and line of any other line that is not JSON.
    """
    rows = []
    for where, line, row in _parsed(Path(folder)):
        if row is None:
            raise ValueError(f"{where}: not a row of a log: {shown(line, 80)}")
        rows.append(row)
    return rows


def _whole_rows(folder: Path) -> list[Row]:
    """Read the rows of a log that resumes; set the file aside if a line is damaged."""
    parsed = list(_parsed(folder))
    bad = [where for where, _, row in parsed if row is None]
    if bad:
        _set_aside(folder / "metrics.jsonl", f"{bad[0]}: not a row of a log")
    return [row for _, _, row in parsed if row is not None]


def _set_aside(path: Path, problem: str) -> None:
    warnings.warn(
        f"{problem}: the log goes on without it, and the old one is {set_aside(path)}", stacklevel=4
    )


def _parsed(folder: Path) -> Iterator[tuple[str, bytes, Row | None]]:
    """Yield the place of each line, the line, and its row; None for a damaged line."""
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        is_row = isinstance(row, dict) and type(row.get("step")) is int
        is_row = is_row and all(is_number(row.get(name)) for name in _NUMBERS)
        yield f"{path}:{number}", line, row if is_row else None


def is_number(value: Any) -> bool:
    """Return whether a value of a log is a number that floats hold, or null."""
    return value is None or (isinstance(value, int | float) and abs(value) <= sys.float_info.max)


def _columns_of(table: Path) -> list[str]:
    """Return the columns of a table that resumes; empty for no table, or for a damaged one."""
    if not table.is_file():
        return []
    try:
        with table.open(newline="", encoding="utf-8") as file:
            columns = next(csv.reader(file), [])
    except (ValueError, csv.Error):
        columns = [""]
    if columns and not {"step"} <= set(columns) <= {*COLUMNS, *METRICS}:
        _set_aside(table, f"{table}: not the table of a log")
        return []
    return columns


def _json_line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def _csv_row(row: Row, columns: list[str]) -> str:
    return _csv_line([row.get(column) for column in columns])


def _csv_line(values: list[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


def _rewritten(path: Path, text: str) -> TextIO:
    """Write a file, which no other process writes, and open the file for appending."""
    clear_beside(path)
    if path.is_dir():
        set_aside(path)
    write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))
    return path.open("a", encoding="utf-8", newline="")


def _board(folder: Path, resume_step: int | None) -> Any:
    """Return a TensorBoard writer, or None if the package is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    purge = None if resume_step is None else resume_step + 1
    return SummaryWriter(str(folder / "tensorboard"), purge_step=purge)


def _to_board(board: Any, row: Row) -> None:
    split = row.get("split") or "train"
    split += f"/{row['dim']}" if row.get("dim") else ""
    for key, value in row.items():
        if key not in ("step", "split", "dim") and isinstance(value, int | float):
            board.add_scalar(f"{split}/{key}", value, row["step"])
