"""Trial of a search: a run that pauses at rungs, for comparison with other trials."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kgfast.extras.search.study import Study
from kgfast.extras.search.trials import Outcome
from kgfast.training import Run, Trainer


class Course:
    """Trial in progress, which reports to the study and learns whether to stop."""

    def __init__(self, study: Study, drawn: Any, is_late: Callable[[], bool]) -> None:
        self._study, self._drawn, self._is_late = study, drawn, is_late
        self._reported = study.reported(drawn)
        self.on_step: Callable[[Run], None] = lambda run: None
        self._run: Run | None = None

    @property
    def seconds(self) -> float:
        """Seconds of training and evaluations so far."""
        state = None if self._run is None else self._run.state
        return 0.0 if state is None else state.seconds_training + state.seconds_evaluating

    def at_rung(self, rung: int, mrr: Callable[[], float]) -> bool:
        """Report the MRR of a rung, computed if unknown; return whether the trial stops there."""
        if rung not in self._reported:
            self._reported[rung] = mrr()
            self._study.report(self._drawn, rung, self._reported[rung])
            self._study.spent(self._drawn, self.seconds)
        return self._study.stops(self._drawn)

    def at_end(self, reached: int, mrr: float) -> None:
        """Report the MRR of the whole run."""
        if reached not in self._reported:
            self._study.report(self._drawn, reached, mrr)

    def made_step(self, run: Run) -> bool:
        """Show a step; return whether the time is up."""
        self._run = run
        self.on_step(run)
        return self._is_late()


@dataclass(frozen=True)
class End:
    """End of a trial; a trial that is done has epochs or steps, and an MRR."""

    outcome: Outcome
    reached: int = 0
    mrr: float | None = None
    message: str = ""


def train_trial(trainer: Trainer, course: Course, first_rung: int, reduction: int) -> End:
    """Train to the end, to a rung where others were better, or until time is up.

    An existing run folder is continued. The evaluations at rungs belong to the search: early
    stopping and the log do not see them, so the run is equal to a run of the config. Ctrl-C raises
    KeyboardInterrupt when the current step is done and saved.
    """
    try:
        with trainer.opened(resume=True, tests=False) as run:
            return _trained(run, course, _stations(trainer, run, first_rung, reduction))
    except FloatingPointError as error:
        return End(Outcome.diverged, message=str(error))
    except (MemoryError, torch.OutOfMemoryError) as error:
        return End(Outcome.memory, message=str(error))


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
    reached = max(1, round(total * run.state.step / run.steps))  # fewer, if it stopped early
    return End(Outcome.done, reached, run.state.valid["mrr"])


def _stations(trainer: Trainer, run: Run, first_rung: int, reduction: int) -> list[tuple[int, int]]:
    """Return rungs and their steps; the last is the end of the run, without a comparison."""
    train = trainer.config.train
    total = train.epochs or run.steps
    found, rung = [], first_rung
    while rung < total:
        found.append((rung, math.ceil(run.steps * rung / total)))
        rung *= reduction
    return [*found, (total, run.steps)]
