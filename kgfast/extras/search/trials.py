"""Trials of a search: each as a row, and the best trial."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """End of a trial."""

    open = "open"
    done = "done"
    stopped = "stopped"
    diverged = "diverged"
    contradicts = "contradicts"
    memory = "out of memory"


@dataclass(frozen=True)
class Trial:
    """One trial of a search.

    Attributes
    ----------
    number : int
        Number of the trial; ``trials/<number>`` is its run folder.
    values : dict
        Values of the keys that have ranges.
    outcome : {"open", "done", "stopped", "diverged", "contradicts", "out of memory"}
        ``done``: trained to the end; ``stopped`` at a rung, where others were better; ``open``: the
        search ended before.
    rungs : dict of int to float
        Filtered MRR on valid by the number of epochs (or steps, if the config counts steps).
    mrr : float, optional
        MRR of the best state of a done trial, else at the last rung; None without a rung.
    seconds : float
        Seconds of training and evaluations.
    message : str
        Reason of divergence, or of contradiction.
    """

    number: int
    values: dict[str, Any]
    outcome: Outcome
    rungs: dict[int, float]
    mrr: float | None
    seconds: float
    message: str = ""

    @property
    def reached(self) -> int:
        """Last rung; 0 if the trial saw none."""
        return max(self.rungs, default=0)

    @property
    def merit(self) -> tuple[bool, int, float]:
        """Sort key: done or not, rungs, MRR."""
        done = self.outcome is Outcome.done  # also done if it stopped early
        return done, 0 if done else self.reached, self.mrr or 0.0

    def row(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        rungs = {str(rung): value for rung, value in self.rungs.items()}
        return {**vars(self), "outcome": self.outcome.value, "rungs": rungs}


@dataclass(frozen=True)
class Trials:
    """The trials of a search.

    Attributes
    ----------
    all : tuple of Trial
        Trials by number.
    unit : {"epochs", "steps"}
        Unit of rungs.
    """

    all: tuple[Trial, ...]
    unit: str

    @property
    def best(self) -> Trial | None:
        """Best of the trials that are done; without any, of the trials that got furthest."""
        seen = [trial for trial in self.all if trial.mrr is not None]
        return max(seen, key=lambda trial: (*trial.merit, -trial.number), default=None)

    @property
    def ended(self) -> list[Trial]:
        """Trials that are not open."""
        return [trial for trial in self.all if trial.outcome is not Outcome.open]

    @property
    def seconds(self) -> float:
        """Seconds of training and evaluations of all trials."""
        return sum(trial.seconds for trial in self.all)

    def by_merit(self) -> list[Trial]:
        """Return all trials, the best first."""
        return sorted(self.all, key=lambda trial: (*trial.merit, -trial.number), reverse=True)

    def summary(self) -> str:
        """Return the number of trials for each outcome, in a line.

        >>> Trials((), "epochs").summary()
        '0 trials'
        """
        counts = {
            outcome.value: sum(trial.outcome is outcome for trial in self.all)
            for outcome in Outcome
        }
        parts = [f"{count} {outcome}" for outcome, count in counts.items() if count]
        total = f"{len(self.all)} trial{'' if len(self.all) == 1 else 's'}"
        return f"{total}: {', '.join(parts)}" if parts else total

    def to_dict(self) -> dict[str, Any]:
        """Return all trials for JSON."""
        return {"unit": self.unit, "trials": [trial.row() for trial in self.all]}
