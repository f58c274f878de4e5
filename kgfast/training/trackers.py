"""Trackers: callbacks that send the rows of a run to TensorBoard, Weights & Biases or MLflow."""

import json
from typing import Any
from uuid import uuid4

from kgfast.frames import needed
from kgfast.text import reading
from kgfast.training.checkpoint import RunFolder
from kgfast.training.config import Config
from kgfast.training.logs import Callback, Row
from kgfast.whole_files import write_whole

_FILE = "trackers.json"


class Tracker(Callback):
    """Base of trackers: series ``train/loss``, ``valid/mrr``, of a width ``valid/64/mrr``.

    A tracker opens at its first row, and stores its id in the run folder, so that a resumed run
    continues the series. An ImportError names the package that is missing.
    """

    def __init__(self, folder: RunFolder, config: Config) -> None:
        self.name = type(self).__name__.lower()  # of the package, and of the extra of kgfast
        install = f'"kgfast[{self.name}]"'
        self.module: Any = needed(self.name, f"train.track: {self.name}", install)
        self.folder, self.config, self.is_open = folder, config, False

    def open(self, step: int) -> None:
        """Begin or continue the series, whose next row is that of a step."""

    def send(self, values: dict[str, float], step: int) -> None:
        """Send the numbers of a row by the names of their series."""

    def close(self) -> None:
        """End the series."""

    def on_step(self, row: Row) -> None:
        names = (str(row[name]) for name in ("split", "dim") if name in row)
        self._send("/".join(names) or "train", row, row["step"])

    on_evaluation = on_step

    def on_end(self, result: Any) -> None:
        self._send("test", result.test, result.steps)
        for dim, metrics in result.test_of_submodels.items():
            self._send(f"test/{dim}", metrics, result.steps)
        self.close()
        self.is_open = False

    def _send(self, group: str, row: Row, step: int) -> None:
        if not self.is_open:
            # The test has the step of the last row, which stays.
            self.open(step + 1 if group.startswith("test") else step)
            self.is_open = True
        numbers = {key: value for key, value in row.items() if isinstance(value, float)}
        self.send({f"{group}/{key}": value for key, value in numbers.items()}, step)

    def stored_id(self, new: str | None = None) -> str | None:
        """Return the id of the series in the run folder, after storing a new one."""
        path = self.folder.path / _FILE
        with reading(path, "not the ids of trackers"):
            ids = dict(json.loads(path.read_text())) if path.is_file() else {}
        if new is not None:
            ids[self.name] = new
            write_whole(path, lambda beside: beside.write_text(json.dumps(ids) + "\n"))
        return ids.get(self.name)


class TensorBoard(Tracker):
    """Event files in ``RUN/tensorboard``, for ``tensorboard --logdir RUN``."""

    def open(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.board = SummaryWriter(str(self.folder.path / "tensorboard"), purge_step=step)

    def send(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.board.add_scalar(name, value, step)

    def close(self) -> None:
        self.board.close()


class WandB(Tracker):
    """A run of Weights & Biases; ``WANDB_MODE=offline`` writes it to ``RUN/wandb`` alone."""

    def open(self, step: int) -> None:
        self.run = self.module.init(
            id=self.stored_id() or self.stored_id(uuid4().hex),
            resume="allow",
            dir=str(self.folder.path),
            name=self.folder.path.name,
            config=self.config.flat(),
        )

    def send(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow(Tracker):
    """A run of MLflow, where ``MLFLOW_TRACKING_URI`` says; ``@`` of a metric becomes ``_at_``."""

    def open(self, step: int) -> None:
        earlier = self.stored_id()
        run = self.module.start_run(run_id=earlier, run_name=self.folder.path.name)
        if earlier is None:
            self.stored_id(run.info.run_id)
            self.module.log_params(self.config.flat())

    def send(self, values: dict[str, float], step: int) -> None:
        named = {name.replace("@", "_at_"): value for name, value in values.items()}
        self.module.log_metrics(named, step=step)

    def close(self) -> None:
        self.module.end_run()


TRACKERS = {tracker.__name__.lower(): tracker for tracker in (TensorBoard, WandB, MLflow)}
