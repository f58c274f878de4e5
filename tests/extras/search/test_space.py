"""Ranges of a search: every mistake is named with its key before anything is trained."""

import optuna
import pytest

from kgfast.extras.search.searching import Space
from support.searches import search_config


def space_of(ranges, **sections):
    return Space(search_config(ranges, **sections))


def test_draws_have_the_types_of_their_keys():
    space = space_of(
        {
            "optim.lr": {"low": 1e-4, "high": 1e-1, "log": True},
            "data.neg_size": {"low": 4.0, "high": 16},
            "loss.options.alpha": {"choices": [0.5, 1]},
            "loss.options.power": {"low": 1, "high": 4},  # of one's own loss, where it is whole
            "model.use_rscf": {"choices": [True, False]},
            "train.early_stopping": {"choices": [{"patience": 2}, {"patience": 3}]},
            "model.init_range": {"choices": [None, 0.1]},
        },
        data={"negatives": "per_row"},
        loss={"name": "own:Loss", "options": {"alpha": 0.7, "power": 2}},
    )
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(8):
        trial = study.ask()
        values = space.draw(trial)
        rate, negatives = trial.distributions["optim.lr"], trial.distributions["data.neg_size"]
        assert (rate.low, rate.high, rate.log) == (1e-4, 1e-1, True)
        assert (negatives.low, negatives.high, type(values["data.neg_size"])) == (4, 16, int)
        assert trial.distributions["loss.options.alpha"].choices == (0.5, 1)
        assert type(values["loss.options.power"]) is int
        assert values["train.early_stopping"] in ({"patience": 2}, {"patience": 3})
        assert space.draw(trial) == values
        config = space.base.updated(values)
        assert config.search is None
        assert config.model.init_range == values["model.init_range"]


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"model.dim": {"choices": [8]}}, "model.dim: 8 cannot be: unknown key model.dim"),
        ({"optimm.lr": {"low": 1, "high": 2}}, "unknown key optimm; did you mean optim?"),
        ({"model.base_dim": {"low": 4.5, "high": 8}}, "base_dim: Input should be a valid integer"),
        ({"optim.lr": {"low": 0, "high": 1}}, "0.0 cannot be: optim.lr: Input should be greater"),
        ({"model.name": {"choices": ["rotat"]}}, "model.name: must be one of rotate, "),
        ({"model.name": {"low": 1, "high": 2}}, "model.name: 1.0 cannot be: model.name: Input"),
        ({"model": {"choices": [1]}}, "search.ranges.model: 1 cannot be: model: must be a section"),
        ({"train.log_every": {"low": 1, "high": 2}}, "log_every: must be equal in all"),
        ({"dataset.name": {"choices": ["a", "b"]}}, "dataset.name: must be equal in all"),
        ({"search.trials": {"low": 2, "high": 3}}, "search.trials: must be equal in all"),
        (
            {"loss.margin": {"low": 2, "high": 3}},
            "loss.margin: 2.0 cannot be: loss.margin: goes with loss.name margin; loss",
        ),
    ],
    ids=lambda it: next(iter(it)) if isinstance(it, dict) else "",
)
def test_a_range_that_cannot_be_is_named(ranges, message):
    with pytest.raises(ValueError, match=r"^search\.ranges\.") as caught:
        space_of(ranges, train={"epochs": None, "steps": 5})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_contradicts_the_base_may_fit_other_ranges():
    space = space_of(
        {"loss.name": {"choices": ["nssa", "margin"]}, "loss.margin": {"choices": [1.0, 2.0]}}
    )
    with pytest.raises(ValueError, match=r"loss\.margin: goes with loss\.name margin"):
        space.base.updated({"loss.name": "nssa", "loss.margin": 2.0})
    assert space.base.updated({"loss.name": "margin", "loss.margin": 2.0}).loss.margin == 2.0
