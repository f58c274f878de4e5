"""The course of a run: the learning rate of each step, and an early end.

A run ends early after evaluations without a gain, out of time, or at an interrupt. Out of time, a
run ends so that the last evaluation, the test and saving still fit.
"""

import math
import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

from kgfast.training.config.sections import SchedConfig, TrainConfig

PARTS = (1, 32, 1024)  # triples of the rankings that time the first evaluation
SPANNING = ("step", "linear", "cosine")  # schedules with rates that depend on the length
_MARGIN = 1.25  # margin of the estimates: evaluations and the disk may be slower at the end
_BYTES_PER_SECOND = 1e8  # assumed for the first checkpoint


def rate(sched: SchedConfig, lr: float, step: int, steps: int, reductions: int = 0) -> float:
    """Return the learning rate of a step, counted from 0, of a run of ``steps`` steps.

    Warm-up is linear from ``lr / warmup_steps``. After warm-up, ``cosine`` and ``linear`` go to 0.
    ``step`` multiplies by ``factor`` at fractions of the whole run, ``plateau`` at ``reductions``.
    """
    warmup = sched.warmup_steps
    if step < warmup:
        return lr * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    if sched.name == "step":
        passed = sum(step >= fraction * steps for fraction in sched.milestones)
        return lr * sched.factor**passed
    if sched.name == "linear":
        return lr * (1 - done)
    if sched.name == "cosine":
        return lr * ((1 + math.cos(math.pi * done)) / 2)
    return lr * sched.factor**reductions


class Deadline:
    """Time left for steps, without evaluation, test and saving after the last step.

    ``began`` is the beginning of this invocation, by ``time.perf_counter()``. ``splits`` are names
    and numbers of triples of the splits that are ranked after the last step.

    >>> train = TrainConfig(steps=9, max_minutes=1.0)
    >>> splits = [("valid", 500), ("test", 500)]
    >>> deadline = Deadline(train, time.perf_counter() - 30.0, splits)
    >>> deadline.step, deadline.triple, deadline.saving = 0.1, 0.02, 0.0
    >>> deadline.is_up(spent=0.0)
    False
    >>> deadline.fixed = 5.0
    >>> deadline.is_up(spent=0.0)
    True
    """

    def __init__(
        self, train: TrainConfig, began: float, splits: Sequence[tuple[str, int]] = ()
    ) -> None:
        minutes = {"max_minutes": train.max_minutes, "max_total_minutes": train.max_total_minutes}
        self._limits = {key: 60 * it for key, it in minutes.items() if it is not None}
        self._began, self.splits = began, [it for it in splits if it[1]]
        self.step = 0.0  # seconds of the last step
        self.saving: float | None = None  # seconds of the last checkpoint, if known
        self.fixed = 0.0  # seconds of an evaluation of any number of triples
        self.triple: float | None = None  # seconds that each triple adds, if known

    @property
    def is_set(self) -> bool:
        """Return whether the config has a limit."""
        return bool(self._limits)

    @property
    def _end(self) -> float:
        """Seconds that evaluation, test and saving may take after the last step."""
        # Writes the best checkpoint and the last one, and reads the best one again.
        ranking = sum(self.fixed + count * (self.triple or 0.0) for _, count in self.splits)
        return _MARGIN * (ranking + 2 * (self.saving or 0.0))

    def expect_checkpoints_of(self, count: int) -> None:
        """Estimate the seconds of saving from a number of bytes."""
        self.saving = count / _BYTES_PER_SECOND

    def left(self, spent: float) -> float:
        """Return the seconds that are left for steps; infinity without a limit.

        ``spent`` are the seconds of training and evaluations of all invocations.
        """
        here = self._limits.get("max_minutes", math.inf) - (time.perf_counter() - self._began)
        return min(here, self._limits.get("max_total_minutes", math.inf) - spent) - self._end

    def is_up(self, spent: float) -> bool:
        """Return whether another step and the end do not fit any more."""
        return self.left(spent) < self.step

    def total_is_up(self, spent: float) -> bool:
        """Return whether another step and the end exceed the limit of all invocations together."""
        limit = self._limits.get("max_total_minutes", math.inf)
        return spent + self.step + self._end > limit

    def timed(self, parts: Sequence[tuple[int, float]]) -> None:
        """Learn the cost of an evaluation from numbers of triples and the seconds of each ranking.

        The last two tell the seconds of a triple from the seconds of any evaluation.
        """
        (few, first), (many, last) = parts[-2:] if len(parts) > 1 else ((0, 0.0), *parts)
        self.triple = max(0.0, last - first) / (many - few) if few else 0.0
        self.fixed = max(0.0, last - many * self.triple)

    def evaluated(self, count: int, seconds: float) -> None:
        """Learn the cost of a triple from an evaluation, which has the fixed cost."""
        self.fixed = min(self.fixed, seconds)
        self.triple = (seconds - self.fixed) / count

    def warning(self) -> str | None:
        """Return a warning if the end alone takes more time than there is."""
        for key, limit in self._limits.items():
            if self._end > limit:
                return (
                    f"train.{key}: evaluation, test and saving may take {self._end / 60:.3g} "
                    f"minutes of {limit / 60:.3g}: the run ends after the first step, and late"
                )
        return None


class Interrupts:
    """Note of the first interrupt, so that the run stops after the step; a second one raises.

    After an interrupt within an update, a table would belong to no step. Outside the main thread,
    and if the signal has another handler, nothing changes.

    >>> with Interrupts() as interrupts:
    ...     signal.raise_signal(signal.SIGINT)
    ...     interrupts.requested
    True
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Self:
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            signal.default_int_handler(number, frame)
        self.requested = True
