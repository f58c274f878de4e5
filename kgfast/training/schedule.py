"""The learning rate of a step, and the patience with evaluations that bring nothing."""

import math
from typing import Any

from kgfast.training.config.sections import SchedConfig

_LOWER_IS_BETTER = ("mr", "amr")


def gain(metric: str, value: float, best: float | None) -> float:
    """How much better a value is than the best so far; infinite if there is none."""
    if best is None:
        return math.inf
    return best - value if metric in _LOWER_IS_BETTER else value - best


class Patience:
    """Counts evaluations that do not gain ``min_delta`` on the best one.

    Parameters
    ----------
    metric : str
        Of `Ranks.metrics`; of ``mr`` and ``amr`` lower is better.
    patience : int
        How many such evaluations in a row are enough.
    min_delta : float

    Examples
    --------
    >>> patience = Patience("mrr", 2)
    >>> [patience.exhausted_by(value) for value in (0.1, 0.3, 0.2, 0.3)]
    [False, False, False, True]
    """

    def __init__(self, metric: str, patience: int, min_delta: float = 0.0) -> None:
        self._metric, self._patience, self._min_delta = metric, patience, min_delta
        self._best: float | None = None
        self._in_vain = 0

    def exhausted_by(self, value: float) -> bool:
        """Take an evaluation; True if it was one too many. Counting begins anew after that."""
        if gain(self._metric, value, self._best) > self._min_delta:
            self._best, self._in_vain = value, 0
            return False
        self._in_vain += 1
        if self._in_vain < self._patience:
            return False
        self._in_vain = 0
        return True

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"best": self._best, "in_vain": self._in_vain}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._best, self._in_vain = state["best"], state["in_vain"]


class Schedule:
    """The learning rate of every step of a run.

    Warm-up is linear from ``lr / warmup_steps``; ``cosine`` and ``linear`` go to 0 over the steps
    after it; ``step`` multiplies by ``factor`` at fractions of the whole run, ``plateau`` whenever
    ``patience`` evaluations were in vain.

    Parameters
    ----------
    config : SchedConfig
    lr : float
        The highest rate.
    steps : int
        Of the whole run.
    metric : str
        What plateau looks at.
    """

    def __init__(self, config: SchedConfig, lr: float, steps: int, metric: str = "mrr") -> None:
        self._config, self._lr, self._steps = config, lr, steps
        self._patience = Patience(metric, config.patience) if config.name == "plateau" else None
        self._reductions = 0

    def lr(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        warmup = self._config.warmup_steps
        if step < warmup:
            return self._lr * (step + 1) / warmup
        return self._lr * self._shape(step, (step - warmup) / max(1, self._steps - warmup))

    def _shape(self, step: int, done: float) -> float:
        name, factor = self._config.name, self._config.factor
        if name == "step":
            passed = sum(step >= fraction * self._steps for fraction in self._config.milestones)
            return factor**passed
        if name == "linear":
            return 1 - done
        if name == "cosine":
            return (1 + math.cos(math.pi * done)) / 2
        return factor**self._reductions

    def observe(self, value: float) -> None:
        """Take an evaluation."""
        if self._patience is not None and self._patience.exhausted_by(value):
            self._reductions += 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        if self._patience is None:
            return {}
        return {"reductions": self._reductions, **self._patience.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        if self._patience is not None and state:
            self._reductions = state["reductions"]
            self._patience.load(state)
