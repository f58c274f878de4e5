"""A step of the trainer waits for a GPU nowhere, and a graph may replay it; without a GPU."""

import json

import pytest

from kgfast.training.optimizer import Optimizer
from support import steps
from support.paths import BENCHMARKS
from support.small_runs import sections_of_table
from support.triton_code import compiled

pytest.importorskip("triton")
pytestmark = compiled
OTHERS = sections_of_table("""
filtered, weighted, clipped
    data.filter_negatives=true  data.subsampling=true  optim.name=row_adagrad  optim.grad_clip=1
all targets, clipped
    model.name=distmult  model.gamma=12  train.mode=kvsall  loss.name=bce  optim.grad_clip=1
all entities, penalised, relations
    model.name=complex  model.gamma=12  train.mode=1vsall  loss.name=cross_entropy
    regularizer.name=dura  regularizer.weight=0.1  loss.relation_weight=0.2  optim.name=adagrad
all entities, dropout
    model.name=conve  model.base_dim=64  model.embedding_height=8  model.gamma=12
    train.mode=1vsall  loss.name=bce  optim.name=adam
""")
ALL = OTHERS | {mode: sections for mode, (sections, _) in steps.MODES.items()}
CAPTURED = {name: it for name, it in ALL.items() if it.get("train", {}).get("mode") != "kvsall"}


@pytest.mark.parametrize("sections", OTHERS.values(), ids=OTHERS)
def test_other_steps_wait_nowhere(sections):
    assert not steps.count(sections).waits


@pytest.mark.parametrize("sections", CAPTURED.values(), ids=CAPTURED)
def test_steps_differ_in_the_values_of_tensors_alone(sections):
    """A replay repeats all other arguments of operators and kernels, and addresses of memory."""
    pairs = steps.traces(sections | {"sched": {"name": "cosine", "warmup_steps": 3}})
    assert pairs
    for second, third in pairs:
        assert len(second) > 50
        assert second == third


def test_a_rate_of_the_host_would_be_seen(monkeypatch):
    def of_host(self, lr):
        self._optimizer.param_groups[0]["lr"] = lr

    monkeypatch.setattr(Optimizer, "set_rate", of_host)
    ((second, third), *_) = steps.traces({"sched": {"name": "cosine"}})
    changed = {one[0] for one, other in zip(second, third, strict=True) if one != other}
    assert changed == {"update_adam", "_fused_adam_"}


@pytest.fixture(scope="module")
def counted():
    """Count what each mode's step asks a device for."""
    return {mode: steps.count(sections) for mode, (sections, _) in steps.MODES.items()}


@pytest.mark.parametrize("mode", steps.MODES)
def test_a_step_of_each_mode_waits_nowhere(counted, mode):
    assert not counted[mode].waits


@pytest.mark.parametrize("mode", steps.MODES)
def test_no_memory_outlives_a_step(counted, mode):
    assert counted[mode].kept == 0


@pytest.mark.parametrize(
    ("mode", "goal"), [(it, goal) for it, (_, goal) in steps.MODES.items() if goal]
)
def test_a_step_has_no_more_kernels_and_operators_than_its_goal(counted, mode, goal):
    assert counted[mode].together <= goal


def test_the_file_holds_what_a_step_has(counted):
    """Compare each mode with its row: no step has more."""
    found = json.loads((BENCHMARKS / "results" / "static-step-counts.json").read_text())
    rows = {row["mode"]: row for row in found["rows"]}
    assert rows.keys() == counted.keys()
    for mode, row in rows.items():
        for name in ("kernels", "operators", "within", "waits"):
            assert getattr(counted[mode], name).total() <= row[name], (mode, name)
