"""The log of a run: ``metrics.jsonl``, a JSON object per line; callbacks and trackers of its rows.

Rows are flushed at once, and the rows of a step before its checkpoint. Resuming cuts the rows after
the resumed step, so the log equals the log of an uninterrupted run.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from kgfast.eval.metrics import METRICS
from kgfast.frames import needed
from kgfast.text import bad_line, reading
from kgfast.training.config import Config
from kgfast.whole_files import write_whole

_FILE, _IDS = "metrics.jsonl", "trackers.json"
_NUMBERS = ("step", "epoch", "time", "dim", "loss", "lr", *(metric.name for metric in METRICS))

Row = dict[str, Any]
Series = tuple[Callable[..., object], Callable[[], object]]  # takes (numbers, step=); ends


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
        values = [row[name] for name in _NUMBERS if row.get(name) is not None] if is_row else []
        fit = (isinstance(x, int | float) and abs(x) <= sys.float_info.max for x in values)
        if not (is_row and all(fit)):
            raise bad_line(path, number, "not a row of a log", line)
        rows.append(row)
    return rows


def line_of(row: Mapping[str, Any]) -> str:
    """Return the line of a row, in which NaN and infinity are null."""
    bad = {key: None for key, x in row.items() if isinstance(x, float) and not math.isfinite(x)}
    return json.dumps({**row, **bad}) + "\n"


class Tracker(Callback):
    """Callback that sends the rows of a run to TensorBoard, Weights & Biases or MLflow.

    Series are ``train/loss``, ``valid/mrr``, of a width ``valid/64/mrr``. A tracker opens at its
    first row, and stores its id in the run folder, so that a resumed run continues the series. An
    ImportError names the package that is missing.
    """

    def __init__(self, name: str, folder: Path, config: Config) -> None:
        self.name, self.folder, self.config = name, folder, config
        # The name is that of the package, and of the extra of kgfast.
        self.module: Any = needed(name, f"train.track: {name}", f'"kgfast[{name}]"')
        self._series: Series | None = None

    def on_step(self, row: Row) -> None:
        names = (str(row[name]) for name in ("split", "dim") if name in row)
        self._send("/".join(names) or "train", row, row["step"])

    on_evaluation = on_step

    def on_end(self, result: Any) -> None:
        _, close = self._send("test", result.test, result.steps)
        for dim, metrics in result.test_of_submodels.items():
            self._send(f"test/{dim}", metrics, result.steps)
        close()
        self._series = None

    def _send(self, group: str, row: Row, step: int) -> Series:
        # The test has the step of the last row, which stays.
        first = step + group.startswith("test")
        self._series = self._series or _OPENERS[self.name](self, first)
        numbers = {f"{group}/{key}": x for key, x in row.items() if isinstance(x, float)}
        self._series[0](numbers, step=step)
        return self._series

    def stored_id(self, new: str | None = None) -> str | None:
        """Return the id of the series in the run folder, after storing a new one."""
        path = self.folder / _IDS
        with reading(path, "not the ids of trackers"):
            ids = dict(json.loads(path.read_text())) if path.is_file() else {}
        if new is not None:
            ids[self.name] = new
            write_whole(path, lambda beside: beside.write_text(json.dumps(ids) + "\n"))
        return ids.get(self.name)


def _open_tensorboard(tracker: Tracker, step: int) -> Series:
    """Open event files in ``RUN/tensorboard``, for ``tensorboard --logdir RUN``."""
    from torch.utils.tensorboard import SummaryWriter

    board = SummaryWriter(str(tracker.folder / "tensorboard"), purge_step=step)

    def send(numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            board.add_scalar(name, value, step)
        board.flush()  # a resumed run sends nothing of before its checkpoint

    return send, board.close


def _open_wandb(tracker: Tracker, step: int) -> Series:
    """Open a run of Weights & Biases; ``WANDB_MODE=offline`` writes it to ``RUN/wandb`` alone."""
    run = tracker.module.init(
        id=tracker.stored_id() or tracker.stored_id(uuid4().hex),
        resume="allow",
        dir=str(tracker.folder),
        name=tracker.folder.name,
        config=tracker.config.flat(),
    )
    return run.log, run.finish


def _open_mlflow(tracker: Tracker, step: int) -> Series:
    """Open a run of MLflow where ``MLFLOW_TRACKING_URI`` says; ``@`` of a metric is ``_at_``."""
    module, earlier = tracker.module, tracker.stored_id()
    with module.start_run(run_id=earlier, run_name=tracker.folder.name) as run:
        if earlier is None:
            tracker.stored_id(run.info.run_id)
            module.log_params(tracker.config.flat())
    client, run_id = module.MlflowClient(), run.info.run_id  # an exception leaves no run active
    client.update_run(run_id, "RUNNING")

    def send(numbers: Mapping[str, float], step: int) -> None:
        named = {name.replace("@", "_at_"): value for name, value in numbers.items()}
        module.log_metrics(named, step=step, run_id=run_id)

    return send, lambda: client.set_terminated(run_id)


_OPENERS = {"tensorboard": _open_tensorboard, "wandb": _open_wandb, "mlflow": _open_mlflow}
