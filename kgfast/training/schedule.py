"""The learning rate of each step."""

import math

from kgfast.training.config.sections import SchedConfig


def rate(sched: SchedConfig, lr: float, step: int, steps: int) -> float:
    """Return the learning rate of a step, counted from 0, of a run of ``steps`` steps.

    Warm-up is linear from ``lr / warmup_steps``. After warm-up, ``cosine`` and ``linear`` go to 0.
    ``step`` multiplies by ``factor`` at fractions of the whole run.
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
    return lr
