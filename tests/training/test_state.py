"""A state that does not fit is refused as a whole, and learning rates by hand."""

import math

import pytest
import torch

from kgfast.training import checkpoint
from kgfast.training.build import build_model
from kgfast.training.checkpoint import State, checked
from kgfast.training.config.sections import SchedConfig
from kgfast.training.optimizer import Optimizer
from support.small_runs import assert_same_tensors, ring_trainer, write_ring

DENSE = {"optim": {"name": "adam", "lr": 0.05}}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a folder with data, and runs that update rows or whole tables."""
    root = tmp_path_factory.mktemp("states")
    write_ring(root / "ring")
    for name, sections in (("lazy", {}), ("dense", DENSE)):
        ring_trainer(root, root / name, **sections).fit()
    return root


def check_of(root, name):
    """Return what a run that resumes does with a state, and the stored state."""
    trainer = ring_trainer(root, None, **(DENSE if name == "dense" else {}))
    trainer.begin()
    path = root / name / "last.safetensors"
    return lambda stored: trainer.take(stored, path), checkpoint.load(path)


CHANGES = {
    "one number": lambda it: it.reshape(-1)[:1].clone(),
    "transposed": lambda it: it.reshape(it.shape[::-1] if it.ndim == 2 else (1, 1)).clone(),
    "float64": lambda it: it.double(),
    "int32": lambda it: it.to(torch.int32),
    "longer": lambda it: torch.cat([it.reshape(-1), it.reshape(-1)]),
    "empty": lambda it: it.reshape(-1)[:0].clone(),
}


@pytest.mark.parametrize("kind", ["lazy", "dense"])
def test_tensors_of_another_shape_dtype_or_name_are_refused(root, kind):
    """Fused updates would read and write beyond such tensors."""
    check, (tensors, meta) = check_of(root, kind)
    check((tensors, meta))
    for name, tensor in tensors.items():
        what = name.replace("optim.", "optimizer.")
        others = {key: it for key, it in tensors.items() if key != name}
        for change in CHANGES.values():
            with pytest.raises(ValueError, match=f"{what} must be"):
                check((others | {name: change(tensor)}, meta))
        with pytest.raises(ValueError, match=f"{what} is missing"):
            check((others, meta))
    with pytest.raises(ValueError, match=r"optimizer\.entity\.more is not known"):
        check((tensors | {"optim.entity.more": tensors["model.entity"]}, meta))


@pytest.mark.parametrize("name", ["adam", "row_adam", "adagrad", "row_adagrad"])
def test_nothing_is_touched_before_all_is_checked(root, name):
    config = ring_trainer(root, None, optim={"name": name, "lr": 0.05}).config
    optimizer = Optimizer(build_model(config, 12, 2), config.optim, lazy=True)
    whole = {key: torch.rand_like(it) for key, it in optimizer.tensors().items()}
    optimizer.load(whole)
    assert_same_tensors(optimizer.tensors(), whole)
    last = sorted(whole)[-1]
    with pytest.raises(ValueError, match=f"optimizer.{last} must be"):
        optimizer.load({key: it + 1 for key, it in whole.items()} | {last: torch.ones(1, 1)})
    assert_same_tensors(optimizer.tensors(), whole)


def test_values_of_the_state(root):
    _, meta = checkpoint.load(root / "lazy" / "last.safetensors")
    whole = meta["state"]
    assert checked(State, whole).model_dump() == whole
    for key in whole:
        with pytest.raises(ValueError, match=rf"state\.{key} is missing"):
            checked(State, {name: it for name, it in whole.items() if name != key})
        for value in ("1", [], {"a": "b"}, {"a": []}, -1 if "count" in key else "x"):
            with pytest.raises(ValueError, match=rf"state\.{key}"):
                checked(State, whole | {key: value})
    for wrong in ({"steps": 1}, {"in_vain": 1.0}):
        with pytest.raises(ValueError, match=rf"state\.{next(iter(wrong))}"):
            checked(State, whole | wrong)


@pytest.mark.parametrize("value", [None, -1, 10**30, float("nan"), "x", [], {}, {"a": [1]}])
def test_whatever_stands_in_the_place_of_a_value_is_refused(root, value):
    load, (tensors, meta) = check_of(root, "lazy")
    for key in meta:
        with pytest.raises(ValueError, match=r"."):
            load((tensors, meta | {key: value}))


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
    found = [SchedConfig(**sched).rate(2.0, step, steps) for step in range(steps)]
    assert found == pytest.approx(expected)
