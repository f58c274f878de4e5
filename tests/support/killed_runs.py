"""Runs in processes of their own that are killed in the middle of a step."""

import os
import signal
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from kgfast.datasets import synthetic
from kgfast.training import Batch, Config, Trainer
from support.forked import PROCESSES


def run_and_kill(
    graph: tuple[int, ...], values: dict[str, Any], folder: Path, moment: int, seconds: float
) -> None:
    """Go on with a run until it is killed, so long after it began a step."""
    child = PROCESSES.Process(target=_killed, args=(graph, values, folder, moment, seconds))
    child.start()
    child.join(200)
    said = folder.with_suffix(".error")
    why = said.read_text() if said.exists() else "which said nothing"
    assert child.exitcode == -signal.SIGKILL, f"ended with {child.exitcode}: {why}"


def _killed(
    graph: tuple[int, ...], values: dict[str, Any], folder: Path, moment: int, seconds: float
) -> None:
    """Kill this child from another thread, whatever the trainer is in the middle of."""
    step = Trainer._step

    def watched(self: Trainer, batch: Batch) -> None:
        if batch.number >= moment:  # the run before may have saved a later step than this
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        step(self, batch)

    Trainer._step = watched  # type: ignore[method-assign]
    try:
        config = Config.from_dict(values)
        trainer = Trainer(config, folder, dataset=synthetic(*graph), progress=False)
        trainer.fit(resume=True)
    except BaseException:  # nobody sees what a server's child prints
        folder.with_suffix(".error").write_text(traceback.format_exc())
        raise
    time.sleep(60)  # for an end that came sooner
