"""A state that does not fit is refused as a whole; learning rates by hand, and patience."""

import functools
import math
import random

import pytest
import torch

from kgfast.training import Run, RunFolder, checkpoint
from kgfast.training.build import build_model
from kgfast.training.config.sections import SchedConfig
from kgfast.training.optimizer import Optimizer
from kgfast.training.schedule import rate
from kgfast.training.state import Patience, State, gain
from support.small_runs import assert_same_tensors, ring_trainer, write_ring

DENSE = {"optim": {"name": "adam", "lr": 0.05}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Half a run, lazy and dense: states of steps 4 and 8, and the end of one that was not cut."""
    root = tmp_path_factory.mktemp("states")
    write_ring(root / "ring")
    made = {}
    for name, sections in (("lazy", {}), ("dense", DENSE)):
        ring_trainer(root, root / name, **sections).fit()
        folder = RunFolder(root / name)
        ends = checkpoint.load(folder.last)[0]
        folder.result.unlink()
        folder.last.unlink()
        eighth = checkpoint.load(folder.previous)
        made[name] = (eighth, ends, sections)
    return root, made


def resumed(runs, tmp_path, kind, tensors=None, meta=None):
    """Resume a run whose last state (of step 8) was changed; the one before is whole."""
    root, made = runs
    (old_tensors, old_meta), _, sections = made[kind]
    folder = RunFolder(tmp_path / "run")
    source = RunFolder(root / kind)
    folder.path.mkdir()
    folder.graph.write_bytes(source.graph.read_bytes())
    folder.previous.write_bytes(source.previous.read_bytes())
    tensors = old_tensors if tensors is None else tensors
    checkpoint.save(folder.last, tensors, old_meta if meta is None else meta)
    trainer = ring_trainer(root, folder.path, **sections)
    trainer.fit(resume=True)
    return checkpoint.load(folder.last)[0]


NAMES = {
    "lazy": [
        "optim.entity.exp_avg",
        "optim.relation.exp_avg_sq",
        "optim.relation.step",
        "model.entity",
    ],
    "dense": ["optim.entity.exp_avg_sq", "optim.relation.exp_avg", "optim.entity.step"],
}
CHANGES = {
    "one number": lambda it: it.reshape(-1)[:1].clone(),
    "transposed": lambda it: it.reshape(it.shape[::-1] if it.ndim == 2 else (1, 1)).clone(),
    "float64": lambda it: it.double(),
    "int32": lambda it: it.to(torch.int32),
    "longer": lambda it: torch.cat([it.reshape(-1), it.reshape(-1)]),
    "empty": lambda it: it.reshape(-1)[:0].clone(),
    "missing": lambda it: None,
}


class TestOptimizerStates:
    """Point by point what made the fused updates read and write beyond their tensors."""

    @pytest.mark.parametrize("kind", NAMES)
    @pytest.mark.parametrize("change", CHANGES)
    def test_another_shape_or_dtype_falls_back(self, runs, tmp_path, kind, change):
        (tensors, _), ends, _ = runs[1][kind]
        for place, name in enumerate(NAMES[kind]):
            changed = {key: it for key, it in tensors.items() if key != name}
            wrong = CHANGES[change](tensors[name])
            if wrong is not None:
                changed[name] = wrong
            what = name.replace("optim.", "optimizer.")
            (tmp_path / str(place)).mkdir()
            with pytest.warns(UserWarning, match=rf"{what} (must be|is missing).*; resuming from"):
                found = resumed(runs, tmp_path / str(place), kind, changed)
            assert_same_tensors(found, ends)

    @pytest.mark.parametrize("kind", NAMES)
    def test_a_state_of_something_else(self, runs, tmp_path, kind):
        (tensors, _), ends, _ = runs[1][kind]
        changed = tensors | {"optim.entity.max_exp_avg_sq": tensors["optim.relation.exp_avg"]}
        with pytest.warns(UserWarning, match="optimizer.entity.max_exp_avg_sq is not known"):
            assert_same_tensors(resumed(runs, tmp_path, kind, changed), ends)

    @pytest.mark.parametrize("name", ["adam", "row_adam", "adagrad", "row_adagrad", "sgd"])
    def test_nothing_is_touched_before_all_is_checked(self, runs, name):
        trainer = ring_trainer(runs[0], None, optim={"name": name, "lr": 0.05})
        trainer.fit()
        config = trainer.config

        def fresh():
            model = build_model(config, 12, 2)
            return Optimizer(model, config.optim, lazy=True)

        whole = {key: torch.rand_like(it) for key, it in fresh().tensors().items()}
        if not whole:
            assert name == "sgd"
            with pytest.raises(ValueError, match=r"optimizer\.entity\.exp_avg is not known"):
                fresh().load({"entity.exp_avg": torch.ones(12, 8)})
            return
        optimizer = fresh()
        optimizer.load(whole)
        assert_same_tensors(optimizer.tensors(), whole)
        last = sorted(whole)[-1]
        before = {key: it.clone() for key, it in optimizer.tensors().items()}
        with pytest.raises(ValueError, match=f"optimizer.{last} must be"):
            optimizer.load({key: it + 1 for key, it in whole.items()} | {last: torch.ones(1, 1)})
        with pytest.raises(ValueError, match=f"optimizer.{last} is missing"):
            optimizer.load({key: it + 1 for key, it in whole.items() if key != last})
        assert_same_tensors(optimizer.tensors(), before)

    def test_a_parameter_without_a_gradient_so_far(self, runs):
        """A state is written with its first values; torch makes it at the first gradient only."""
        config = ring_trainer(runs[0], None, **DENSE).config
        model = build_model(config, 12, 2)
        optimizer = Optimizer(model, config.optim, lazy=False)
        model.entity.grad = torch.ones_like(model.entity)
        optimizer.step(0, 0.1)
        tensors = optimizer.tensors()
        assert not tensors["relation.step"]
        assert not tensors["relation.exp_avg"].any()
        again_model = build_model(config, 12, 2)
        again_model.load_state_dict(model.state_dict())
        again = Optimizer(again_model, config.optim, lazy=False)
        again.load(tensors)
        for it, one in ((optimizer, model), (again, again_model)):
            one.entity.grad, one.relation.grad = (
                torch.full_like(table, 0.5) for table in (one.entity, one.relation)
            )
            it.step(1, 0.1)
        assert_same_tensors(again_model.state_dict(), model.state_dict())
        assert_same_tensors(again.tensors(), optimizer.tensors())


class TestMeta:
    @pytest.mark.parametrize(
        "change",
        [
            {"step": "8"},
            {"step": 9},
            {"step": True},
            {"step": None},
            {"config": []},
            {"config": {}},
            {"config": {"model": 3}},
            {"config": functools.reduce(lambda deep, _: {"a": deep}, range(400), {})},
            {"state": None},
            {"state": [1, 2]},
            {"graph": None},
            {"graph": "00"},
        ],
        ids=lambda it: str(it)[:40],
    )
    def test_a_value_of_another_type_falls_back(self, runs, tmp_path, change):
        (_, meta), ends, _ = runs[1]["lazy"]
        with pytest.warns(UserWarning, match=r"last\.safetensors: .*; resuming from"):
            assert_same_tensors(resumed(runs, tmp_path, "lazy", meta=meta | change), ends)

    def test_values_of_the_state(self, runs):
        (_, meta), _, _ = runs[1]["lazy"]
        whole = meta["state"]
        assert State.of(whole).model_dump() == whole
        for key in whole:
            others = {name: it for name, it in whole.items() if name != key}
            with pytest.raises(ValueError, match=rf"state\.{key} is missing"):
                State.of(others)
            for value in ("1", [], {"a": "b"}, {"a": []}, -1 if "count" in key else "x"):
                with pytest.raises(ValueError, match=rf"state\.{key}"):
                    State.of(whole | {key: value})
        for wrong in ({"steps": 1}, {"stopping": {"best": None, "in_vain": 1.0}}):
            with pytest.raises(ValueError, match=rf"state\.{next(iter(wrong))}"):
                State.of(whole | wrong)

    def test_random_mutations_end_in_a_fallback(self, runs):
        """Whatever stands in the place of a value: a ValueError, never another error."""
        (tensors, meta), _, _ = runs[1]["lazy"]
        trainer = ring_trainer(runs[0], None)
        pick, refused = random.Random(0), 0
        values = [None, True, -1, 10**30, 1e400, float("nan"), "x", [], {}, [[]], {"a": [1]}]
        graph = RunFolder(runs[0] / "lazy").load_graph()
        check = Run(trainer.config, trainer.dataset, trainer.model, graph=graph)._resumable.check
        check((tensors, meta))
        for _ in range(400):
            try:
                key = pick.choice(sorted(meta))
                check((tensors, meta | {key: mutated(meta[key], pick, values)}))
            except ValueError:
                refused += 1
        assert refused > 200


def mutated(value, pick, values):
    """Return a copy in which one value, at any depth, is another, or a key is gone."""
    if not isinstance(value, dict) or not value or pick.random() < 0.2:
        return pick.choice(values)
    key = pick.choice(sorted(value))
    if pick.random() < 0.15:
        return {name: it for name, it in value.items() if name != key}
    return value | {key: mutated(value[key], pick, values)}


RATES = [
    ({"warmup_steps": 4}, [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]),
    ({"name": "step", "milestones": [0.6, 0.8]}, [2.0] * 6 + [0.2] * 2 + [0.02] * 2),
    ({"name": "linear", "warmup_steps": 2}, [1.0, 2.0, 2.0, 1.5, 1.0, 0.5]),
    (
        {"name": "cosine", "warmup_steps": 2},
        [1.0, 2.0, *(1 + math.cos(math.pi * k / 4) for k in range(4))],
    ),
]


@pytest.mark.parametrize(("sched", "expected"), RATES)
def test_rates_of_each_schedule(sched, expected):
    steps = len(expected)
    found = [rate(SchedConfig(**sched), 2.0, step, steps) for step in range(steps)]
    assert found == pytest.approx(expected)


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
