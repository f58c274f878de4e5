"""The log of a run: ``metrics.jsonl``, a JSON object per line; and callbacks for its rows.

Rows are flushed at once, and the rows of a step before its checkpoint. Resuming cuts the rows after
the resumed step, so the log equals the log of an uninterrupted run.
"""

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from kgfast.eval.metrics import METRICS
from kgfast.text import bad_line
from kgfast.whole_files import write_whole

_FILE = "metrics.jsonl"
_NUMBERS = ("step", "epoch", "time", "dim", "loss", "lr", *(metric.name for metric in METRICS))

Row = dict[str, Any]


class Callback:
    """Base of callbacks, for a subclass that overrides the methods it needs.

    :class:`kgfast.training.Trainer` takes callbacks; of several processes, the first one calls.
    An exception of :meth:`on_step` or :meth:`on_evaluation` ends the run, after the checkpoint that
    is due at the step. A run that is resumed calls again for the rows since the last checkpoint.
    """

    def on_step(self, row: Row) -> None:
        """Take a row of the log of training: every ``train.log_every`` steps.

        ``row`` has ``step``, ``epoch``, ``time`` in seconds, the mean ``loss`` since the last row
        and ``lr``; for croppable embeddings also the weights of MED.
        """

    def on_evaluation(self, row: Row) -> None:
        """Take the metrics of an evaluation on valid.

        ``row`` has ``step``, ``epoch``, ``time``, ``split`` and filtered metrics such as ``mrr``.
        For croppable embeddings, there is a row for each sub-model, with its width ``dim``.
        """

    def on_end(self, result: Any) -> None:
        """Take the :class:`kgfast.training.Result` of the run, once, before ``fit`` returns.

        The run folder then has the best checkpoint and ``result.json``. A call of ``fit`` for a
        finished run calls this method again.
        """


def opened_log(folder: str | os.PathLike[str], resume_step: int = 0) -> TextIO:
    """Open the log of a run folder for lines of rows; ``resume_step`` keeps rows up to that step.

    A line is on its way to the disk when it is written.
    """
    path = Path(folder, _FILE)
    rows = read_rows(folder) if resume_step else []
    lines = "".join(line_of(row) for row in rows if row["step"] <= resume_step)
    write_whole(path, lambda beside: beside.write_text(lines, encoding="utf-8"))
    return path.open("a", buffering=1, encoding="utf-8", newline="")


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


def line_of(row: Mapping[str, Any]) -> str:
    """Return the line of a row, in which NaN and infinity are null."""
    clean = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
    return json.dumps(clean) + "\n"
