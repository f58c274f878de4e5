"""Evaluating again and again takes no more memory, and a step makes no big temporaries."""

import json
import sys

import pytest

from support.processes import finish, run_script

EVALUATIONS = 20
CASES = [*(("rotate", dim) for dim in (128, 256, 512)), ("complex", 512), ("med + rscf", 512)]
# Twenty evaluations of each run; a batch of 64 x 512 negatives that, done naively, holds tensors of
# 64 x 512 x 2 dim numbers: 134 MB at dim 512.
CHILD = """
import ctypes, gc, json, sys
from pathlib import Path

import torch

from kgfast.datasets import synthetic
from kgfast.processes.assignment import Assignment
from support.small_runs import sections_of_table, trainer_of

ranks = Assignment.ranks
# Before an evaluation a step has used nearly every row: the system commits the pages of a state
# when they are first written.
SECTIONS = sections_of_table('''
rotate
    model.name=rotate  data.train_bs=64  data.neg_size=512  train.eval_every=8
complex
    model.name=complex  model.gamma=12  data.train_bs=64  train.eval_every=2  train.mode=1vsall
    loss.name=cross_entropy
med + rscf
    model.use_rscf=true  data.train_bs=64  data.neg_size=512  train.eval_every=4
''')


def bytes_of(*fields):
    found = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(found[field].split()[0]) << 10 for field in fields)


def trainer_of_case(name, dim):
    sections = {key: dict(section) for key, section in SECTIONS[name].items()}
    sections["model"]["base_dim"] = dim
    sections["train"]["steps"] = sections["train"]["eval_every"] * evaluations
    if "med" in name:
        sections["med"] = {"dims": [dim // 4, dim // 2, dim]}
    return trainer_of(dataset=graph, optim={"lr": 1e-3}, **sections)


def settle():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # the allocator keeps more or less of what was freed


def measure(name, dim):
    trainer, own = trainer_of_case(name, dim), []

    def measured(self, model, dataset, split, config):
        found = ranks(self, model, dataset, split, config)
        settle()
        own.append(bytes_of("RssAnon", "VmSwap"))
        return found

    Assignment.ranks = measured
    settle()
    Path("/proc/self/clear_refs").write_text("5")
    before = bytes_of("VmRSS")
    trainer.fit()
    table = trainer.model.entity.nbytes
    return {"own": own, "table": table, "peak": bytes_of("VmHWM") - before}


cases, evaluations = json.loads(sys.argv[1])
graph = synthetic(2000, 8, 6000, 50, 50)
for name in SECTIONS:
    trainer_of_case(name, 4).fit()  # what torch imports when it is first used is not the trainer's
gc.freeze()  # later collections have less to look at
print(json.dumps([measure(name, dim) for name, dim in cases]))
"""


@pytest.fixture(scope="module")
def found():
    """Return the measurements of a process of its own, by case."""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    given = json.dumps([CASES, EVALUATIONS])
    printed = finish(run_script(CHILD, arguments=[given]), timeout=280)
    return dict(zip(CASES, json.loads(printed), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[f"{name}-{dim}" for name, dim in CASES])
def test_memory_is_steady_over_evaluations(found, case):
    own = found[case]["own"][:EVALUATIONS]  # the last one is of the test set
    assert len(own) == EVALUATIONS
    assert abs(own[-1] - own[0]) <= 0.01 * own[0], own
    # Two states of the optimizer and a gradient are of the size of the table.
    assert found[case]["peak"] <= 3 * found[case]["table"] + (64 << 20)
