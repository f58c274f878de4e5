"""Learning rates by hand, and patience."""

import math

import pytest

from kgfast.training.config.sections import SchedConfig
from kgfast.training.schedule import rate
from kgfast.training.state import Patience, gain


def rates(steps, **sched):
    return [rate(SchedConfig(**sched), 2.0, step, steps) for step in range(steps)]


def test_constant_with_warm_up():
    assert rates(6, warmup_steps=4) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_step_divides_at_fractions_of_the_run():
    expected = [2.0] * 6 + [0.2] * 2 + [0.02] * 2
    assert rates(10, name="step", milestones=[0.6, 0.8]) == pytest.approx(expected)


def test_linear_and_cosine_go_to_zero_after_the_warm_up():
    assert rates(6, name="linear", warmup_steps=2) == [1.0, 2.0, 2.0, 1.5, 1.0, 0.5]
    cosine = rates(6, name="cosine", warmup_steps=2)
    expected = [1.0, 2.0, *(1 + math.cos(math.pi * k / 4) for k in range(4))]
    assert cosine == pytest.approx(expected)


def test_plateau_multiplies_at_each_reduction():
    sched = SchedConfig(name="plateau", factor=0.5, warmup_steps=4)
    assert [rate(sched, 2.0, 50, 100, reductions) for reductions in range(3)] == [2.0, 1.0, 0.5]
    assert rate(sched, 2.0, 0, 100, reductions=2) == 0.5


def test_patience_wants_a_gain_of_min_delta():
    patience = Patience()
    found = [
        patience.exhausted_by(value, "mrr", 2, min_delta=0.05)
        for value in (0.10, 0.14, 0.16, 0.17, 0.18, 0.3)
    ]
    assert found == [False, False, False, False, True, False]


def test_lower_ranks_are_a_gain():
    assert gain("mr", 10.0, 12.0) == 2.0
    assert gain("amr", 1.0, 0.5) == -0.5
    assert gain("mrr", 0.5, 0.25) == 0.25
    assert gain("mrr", 0.5, None) == math.inf
    assert not gain("mrr", math.nan, 0.2) > 0
    patience = Patience()
    assert [patience.exhausted_by(it, "mr", 1) for it in (9.0, 8.0, 8.5)] == [False, False, True]
