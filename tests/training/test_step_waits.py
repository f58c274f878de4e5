"""A step of the trainer waits for a GPU nowhere, counted without one."""

import json

import pytest

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
""")


@pytest.mark.parametrize("sections", OTHERS.values(), ids=OTHERS)
def test_other_steps_wait_nowhere(sections):
    assert not steps.count(sections).waits


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
