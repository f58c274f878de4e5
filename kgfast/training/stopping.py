"""When a run stops before all its steps are made: its time is up, or someone interrupts it.

A run ends for want of time so that its last evaluation, its test and saving still fit.
"""

import math
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

from kgfast.training.config.sections import TrainConfig

QUERIES = 64  # an evaluation is timed by these before there was one
_MARGIN = 1.25  # of the estimates: evaluations, and the disk, may be slower at the end
_BYTES_PER_SECOND = 1e8  # of a checkpoint, before there was one: assumed


class Deadline:
    """The time that is left for steps, once the end of the run has its own.

    Parameters
    ----------
    train : TrainConfig
        With ``max_minutes`` and ``max_total_minutes``.
    began : float
        When this invocation began, by ``time.perf_counter()``.
    triples : int
        Number of triples that are ranked after the last step.

    Attributes
    ----------
    step, saving, triple : float
        Seconds of the last step, of the last checkpoint and of an evaluation for each triple; None
        as long as nobody knows.

    Examples
    --------
    >>> train = TrainConfig(steps=9, max_minutes=1.0)
    >>> deadline = Deadline(train, time.perf_counter() - 30.0, triples=1_000)
    >>> deadline.step, deadline.triple, deadline.saving = 0.1, 0.02, 0.0
    >>> deadline.is_up(spent=0.0)
    False
    >>> deadline.triple = 0.03
    >>> deadline.is_up(spent=0.0)
    True
    """

    def __init__(self, train: TrainConfig, began: float, triples: int) -> None:
        minutes = {"max_minutes": train.max_minutes, "max_total_minutes": train.max_total_minutes}
        self._limits = {key: 60 * it for key, it in minutes.items() if it is not None}
        self._began, self._triples = began, triples
        self.step = 0.0
        self.saving: float | None = None
        self.triple: float | None = None

    @property
    def is_set(self) -> bool:
        """Return whether the config has a limit."""
        return bool(self._limits)

    @property
    def end(self) -> float:
        """Return the seconds that evaluation, test and saving may take after the last step."""
        # The best checkpoint, the last one, and reading the best one again.
        return _MARGIN * (self._triples * (self.triple or 0.0) + 2 * (self.saving or 0.0))

    def expect_checkpoints_of(self, count: int) -> None:
        """Estimate the seconds of saving from a number of bytes."""
        self.saving = count / _BYTES_PER_SECOND

    def is_up(self, spent: float) -> bool:
        """Return whether another step and the end do not fit any more.

        Parameters
        ----------
        spent : float
            Seconds of training and evaluations of all invocations.
        """
        needed = time.perf_counter() - self._began + self.step + self.end
        return needed > self._limits.get("max_minutes", math.inf) or self.total_is_up(spent)

    def total_is_up(self, spent: float) -> bool:
        """Return the same for all invocations together."""
        limit = self._limits.get("max_total_minutes", math.inf)
        return spent + self.step + self.end > limit

    def warning(self) -> str | None:
        """Return what to say where the end alone takes more than there is."""
        for key, limit in self._limits.items():
            if self.end > limit:
                return (
                    f"train.{key}: evaluation, test and saving may take {self.end / 60:.3g} "
                    f"minutes of {limit / 60:.3g}: the run ends after the first step, and late"
                )
        return None


class Interrupts:
    """Notes the first interrupt, for the trainer to stop after its step; a second one raises.

    Interrupted within an update, a table would be neither of this step nor of the next. Outside of
    the main thread, and where someone else handles the signal, nothing changes.

    Attributes
    ----------
    requested : bool
        Whether the run is to stop.

    Examples
    --------
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
