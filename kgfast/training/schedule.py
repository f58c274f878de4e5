"""The learning rate of each step, and interrupts between steps."""

import math
import signal
import threading
from types import FrameType
from typing import Any, Self

from kgfast.training.config.sections import SchedConfig


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
