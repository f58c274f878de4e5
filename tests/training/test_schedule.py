"""Learning rates by hand, patience, and what a checkpoint keeps of them."""

import math

import pytest

from kgfast.training.config.sections import SchedConfig
from kgfast.training.schedule import Patience, Schedule, gain


def rates(steps, **sched):
    schedule = Schedule(SchedConfig(**sched), 2.0, steps)
    return [schedule.lr(step) for step in range(steps)]


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


def test_plateau_waits_for_its_patience():
    schedule = Schedule(SchedConfig(name="plateau", patience=2, factor=0.5), 2.0, 100)
    seen = []
    for value in (0.1, 0.2, 0.2, 0.1, 0.2, 0.1, 0.3):
        schedule.observe(value)
        seen.append(schedule.lr(50))
    assert seen == [2.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.5]


def test_a_loaded_plateau_goes_on():
    config = SchedConfig(name="plateau", patience=2, factor=0.5)
    schedule, other = Schedule(config, 2.0, 100), Schedule(config, 2.0, 100)
    for value in (0.3, 0.1, 0.1, 0.1):
        schedule.observe(value)
    other.load(schedule.state())
    for it in (schedule, other):
        it.observe(0.1)
    assert other.lr(9) == schedule.lr(9) == 0.5
    assert Schedule(SchedConfig(), 1.0, 10).state() == {}


def test_patience_wants_a_gain_of_min_delta():
    patience = Patience("mrr", 2, min_delta=0.05)
    values = (0.10, 0.14, 0.16, 0.17, 0.18, 0.3)
    assert [patience.exhausted_by(it) for it in values] == [False, False, False, False, True, False]


def test_lower_ranks_are_a_gain():
    assert gain("mr", 10.0, 12.0) == 2.0
    assert gain("amr", 1.0, 0.5) == -0.5
    assert gain("mrr", 0.5, 0.25) == 0.25
    assert gain("mrr", 0.5, None) == math.inf
    assert not gain("mrr", math.nan, 0.2) > 0
    patience = Patience("mr", 1)
    assert [patience.exhausted_by(it) for it in (9.0, 8.0, 8.5)] == [False, False, True]
