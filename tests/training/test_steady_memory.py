"""Evaluating again and again takes no more memory, and a step makes no big temporaries."""

import json
import subprocess
import sys

import pytest

EVALUATIONS = 20
# Twenty evaluations of a run; a batch of 256 x 256 negatives that, done naively, holds a tensor of
# 256 x 256 x 2 dim numbers: 268 MB at dim 512.
CHILD = """
import ctypes, gc, json, sys
from pathlib import Path

import torch

from kgfast.datasets import synthetic
from kgfast.training import Config, Trainer


def status(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10


dim, evaluations, model = json.loads(sys.argv[1])
sections = {
    "rotate": {
        "model": {"name": "rotate"},
        "data": {"train_bs": 256, "neg_size": 256, "negatives": "shared"},
    },
    "complex": {
        "model": {"name": "complex"},
        "data": {"train_bs": 256},
        "train": {"mode": "1vsall"},
        "loss": {"name": "cross_entropy"},
    },
}[model]
# A few steps first: the system commits the pages of a state when they are first written.
train = {"steps": 4 * evaluations, "eval_every": 4} | sections.pop("train", {})
graph = synthetic(2000, 8, 6000, 50, 50)


def trainer_of(dim):
    values = {"threads": 1, "dataset": {"name": "synthetic"}, "optim": {"lr": 1e-3}, "train": train}
    model = sections["model"] | {"base_dim": dim}
    config = Config.from_dict(values | sections | {"model": model})
    return Trainer(config, dataset=graph, progress=False)


trainer_of(2).fit()  # what torch imports when it is first used is not the trainer's
trainer = trainer_of(dim)
resident, evaluate = [], trainer.evaluate


def measured(split):
    ranks = evaluate(split)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # the allocator keeps more or less of what was freed
    resident.append(status("VmRSS"))
    return ranks


trainer.evaluate = measured
ctypes.CDLL(None).malloc_trim(0)
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
trainer.fit()
table = trainer.model.entity.nbytes
print(json.dumps({"resident": resident, "table": table, "peak": status("VmHWM") - before}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize(
    ("model", "dim"), [("rotate", 128), ("rotate", 256), ("rotate", 512), ("complex", 512)]
)
def test_memory_is_steady_over_evaluations(model, dim):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps([dim, EVALUATIONS, model])],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    resident = found["resident"][:EVALUATIONS]  # the last one is of the test set
    assert len(resident) == EVALUATIONS
    assert abs(resident[-1] - resident[0]) <= 0.01 * resident[0], resident
    # Two states of the optimizer and a gradient are of the size of the table.
    assert found["peak"] <= 3 * found["table"] + (64 << 20)
