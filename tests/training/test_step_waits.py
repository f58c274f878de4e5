"""A step of the trainer waits for a GPU nowhere, counted without one."""

import json
import os

import pytest

from kgfast.ops import row_updates
from kgfast.training.loop import Run
from support import steps
from support.paths import BENCHMARKS
from support.small_runs import GRAPH, sections_of_table, trainer_of
from support.waits import PretendDevice

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="needs kernels that are not interpreted"
)


@pytest.fixture
def device(monkeypatch):
    """Return a device of Triton that computes nothing."""
    from kgfast.kernels.triton.host import launch, status

    monkeypatch.setenv("KGFAST_BACKEND", "triton")
    monkeypatch.setattr(launch, "launch", lambda *_, **__: None)
    monkeypatch.setattr(launch, "num_multiprocessors", lambda device: 132)
    monkeypatch.setattr(launch, "architecture", lambda device: 90)
    monkeypatch.setattr(status.Report, "raise_if_bad", lambda report: None)
    monkeypatch.setattr(row_updates, "check_apart", lambda *_: None)  # none has memory
    return PretendDevice(1)


def run_on(device, **sections):
    """Return a run whose model is on the device, after its first step."""
    trainer = trainer_of(**sections)
    with device:
        run = Run(trainer.config, GRAPH, trainer.model.to("meta"))
        run.make_step()
        device.waits.clear()
    return run


STEPS = sections_of_table("""
pool
    optim.name=row_adam
lists
    data.negatives=per_row  optim.name=row_adam
filtered, weighted, clipped, accumulated
    data.filter_negatives=true  data.subsampling=true  optim.name=row_adagrad  optim.grad_clip=1
    train.accumulate=2
one against all
    model.name=complex  model.gamma=12  train.mode=1vsall  loss.name=cross_entropy
all targets, clipped
    model.name=distmult  model.gamma=12  train.mode=kvsall  loss.name=bce  optim.grad_clip=1
""")


@pytest.mark.parametrize("sections", STEPS.values(), ids=STEPS)
def test_a_step_waits_nowhere(device, sections):
    run = run_on(device, **sections)
    with device:
        run.make_step()
    assert not device.waits
    assert run._unread.first == 0
    with device, pytest.raises(AssertionError, match="_local_scalar_dense waits"):
        run.read_losses()


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
