"""The log of a run: ``metrics.jsonl``, a JSON object per line.

Rows are flushed at once, and the rows of a step before its checkpoint. Resuming cuts the rows after
the resumed step, so the log equals the log of an uninterrupted run.
"""

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from kgfast.eval.metrics import METRICS
from kgfast.text import bad_line
from kgfast.whole_files import write_whole

_FILE = "metrics.jsonl"
_NUMBERS = ("step", "epoch", "time", "dim", "loss", "lr", *(metric.name for metric in METRICS))

Row = dict[str, Any]


class Logs:
    """Log of a run folder, open for appending; ``resume_step`` keeps the rows up to that step."""

    def __init__(self, folder: str | os.PathLike[str], resume_step: int | None = None) -> None:
        path = Path(folder, _FILE)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = read_rows(folder) if resume_step else []
        lines = "".join(_line(row) for row in rows if row["step"] <= (resume_step or 0))
        write_whole(path, lambda beside: beside.write_text(lines, encoding="utf-8"))
        self._file = path.open("a", encoding="utf-8", newline="")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row with a ``step``; NaN and infinity are written as null."""
        self._file.write(_line(row))
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def read_rows(folder: str | os.PathLike[str]) -> list[Row]:
    """Read the rows of a run folder, without a last line that a kill cut short.

    A ValueError names file and line of any other line that is not JSON.
    """
    path, rows = Path(folder, _FILE), []
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        is_row = isinstance(row, dict) and type(row.get("step")) is int
        if not (is_row and all(is_number(row.get(name)) for name in _NUMBERS)):
            raise bad_line(path, number, "not a row of a log", line)
        rows.append(row)
    return rows


def is_number(value: Any) -> bool:
    """Return whether a value of a log is a number that floats hold, or null."""
    return value is None or (isinstance(value, int | float) and abs(value) <= sys.float_info.max)


def _line(row: Mapping[str, Any]) -> str:
    clean = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
    return json.dumps(clean) + "\n"
