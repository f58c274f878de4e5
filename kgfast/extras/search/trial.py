"""One trial: a run that pauses at rungs, where it is compared with the others."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from kgfast.extras.search.trials import Outcome
from kgfast.training import Run, Trainer, first_bad_row


class Course(Protocol):
    """What a trial asks of its search."""

    def at_rung(self, rung: int, mrr: Callable[[], float]) -> bool:
        """Take the MRR of a rung, where it is not known yet; whether the trial stops there."""

    def made_step(self, run: Run) -> bool:
        """Take a step; whether the time is up."""


@dataclass(frozen=True)
class End:
    """How a trial ended; where it is done, after how many epochs or steps, with what MRR."""

    outcome: Outcome
    reached: int = 0
    mrr: float | None = None
    message: str = ""


def train_trial(trainer: Trainer, course: Course, first_rung: int, reduction: int) -> End:
    """Train until the end, a rung where others were better, or the end of time.

    What the run folder holds is gone on with. Evaluations at rungs are those of the search: neither
    early stopping nor the log sees them, so that the run is that of its config.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C, when the step that it fell into is done and saved.
    """
    try:
        with trainer.opened(resume=True, tests=False) as run:
            return _trained(run, course, _stations(trainer, run, first_rung, reduction))
    except FloatingPointError as error:
        return End(Outcome.diverged, message=str(error))
    except (MemoryError, torch.OutOfMemoryError) as error:
        return End(Outcome.memory, message=str(error))
    except ValueError as error:
        if first_bad_row(trainer.model) is None:
            raise
        return End(Outcome.diverged, message=str(error))  # an evaluation met what a step made


def _trained(run: Run, course: Course, stations: list[tuple[int, int]]) -> End:
    for rung, step in stations:
        is_late = False

        def pauses(step: int = step) -> bool:
            nonlocal is_late
            is_late = course.made_step(run)
            return is_late or run.state.step >= step

        if not run.train(pauses):
            raise KeyboardInterrupt
        if run.is_over():
            break
        if run.state.step < step:
            return End(Outcome.open)
        if course.at_rung(rung, lambda: run.evaluated("valid")[0]["mrr"]):
            return End(Outcome.stopped)
    total = stations[-1][0]
    reached = max(1, round(total * run.state.step / run.steps))  # less, if it stopped early
    return End(Outcome.done, reached, run.state.valid["mrr"])


def _stations(trainer: Trainer, run: Run, first_rung: int, reduction: int) -> list[tuple[int, int]]:
    """The rungs of a run, each with its step; the last is the end, where nobody is compared."""
    train = trainer.config.train
    total = train.epochs or run.steps
    found, rung = [], first_rung
    while rung < total:
        found.append((rung, math.ceil(run.steps * rung / total)))
        rung *= reduction
    return [*found, (total, run.steps)]
