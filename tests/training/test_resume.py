"""A run that is killed, and resumed, ends bit-equal to one that nobody touched."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from kgfast.datasets import synthetic
from kgfast.training import Config, Trainer
from kgfast.training.logs import read_rows

STEPS = 60
GRAPH = (200, 6, 700, 40, 40)
CONFIGS = {
    "rotate, row_adam": {
        "model": {"name": "rotate", "base_dim": 16, "gamma": 6.0},
        "data": {
            "train_bs": 64,
            "neg_size": 16,
            "negatives": "per_row",
            "filter_negatives": True,
            "subsampling": True,
        },
        "optim": {"name": "row_adam", "lr": 0.02, "grad_clip": 1.0},
        "sched": {"name": "plateau", "patience": 1, "factor": 0.7, "warmup_steps": 5},
    },
    "conve, adam, dropout": {
        "model": {"name": "conve", "base_dim": 16, "embedding_height": 4, "channels": 4},
        "data": {"train_bs": 64},
        "train": {"mode": "kvsall", "amp": "bf16"},
        "loss": {"name": "bce", "label_smoothing": 0.1},
        "optim": {"name": "adam", "lr": 0.01},
        "sched": {"name": "cosine"},
    },
}
# The child does what the trainer does, slowly enough to be caught in the middle of it.
CHILD = """
import json, sys, time
from kgfast.datasets import synthetic
from kgfast.training import Config, Trainer
from kgfast.training.run import Run

step = Run._step
def slow(self, number):
    time.sleep(0.02)
    return step(self, number)
Run._step = slow

graph, config, folder = json.loads(sys.argv[1])
trainer = Trainer(Config.from_dict(config), folder, dataset=synthetic(*graph), progress=False)
trainer.fit(resume=True)
"""


def values_of(name):
    train = {"steps": STEPS, "log_every": 1, "eval_every": 11, "save_every": 4}
    values = {"threads": 1, "dataset": {"name": "synthetic"}, **CONFIGS[name]}
    return values | {"train": train | values.get("train", {})}


def trainer_of(name, folder):
    config = Config.from_dict(values_of(name))
    return Trainer(config, folder, dataset=synthetic(*GRAPH), progress=False)


def kill_after(name, folder, steps, seconds):
    """Run in a process of its own, killed so long after it logged so many steps."""
    import json

    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps([GRAPH, values_of(name), str(folder)])],
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        rows = read_rows(folder)
        if rows and rows[-1]["step"] >= steps:
            break
        time.sleep(0.005)
    time.sleep(seconds)
    process.kill()
    error = process.communicate()[1].decode()
    assert process.returncode == -signal.SIGKILL, error


@pytest.mark.parametrize("name", CONFIGS)
def test_killed_and_resumed_is_bit_equal(name, tmp_path):
    straight = trainer_of(name, tmp_path / "straight")
    result = straight.fit()
    pick, killed = random.Random(), tmp_path / "killed"
    moments = sorted(pick.sample(range(6, STEPS - 6), 2))
    for moment in moments:
        kill_after(name, killed, moment, pick.uniform(0, 0.02))
    resumed = trainer_of(name, killed)
    again = resumed.fit(resume=True)
    expected, found = (
        load_file(tmp_path / it / "last.safetensors") for it in ("straight", "killed")
    )
    assert expected.keys() == found.keys()
    assert any(key.startswith("optim.entity.") for key in expected)
    for key, tensor in expected.items():
        assert torch.equal(tensor, found[key]), f"{key} differs after kills at {moments}"
    for key, tensor in straight.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[key])
    assert again.test == result.test
    assert (again.steps, again.best_step) == (STEPS, result.best_step)
    logs = [
        [{key: it for key, it in row.items() if key != "time"} for row in read_rows(tmp_path / run)]
        for run in ("straight", "killed")
    ]
    assert logs[0] == logs[1]


def test_a_truncated_checkpoint_falls_back_to_the_one_before(tmp_path):
    name = "rotate, row_adam"
    straight = trainer_of(name, tmp_path / "straight")
    straight.fit()
    config = values_of(name)
    broken = tmp_path / "broken"
    Trainer(Config.from_dict(config), broken, dataset=synthetic(*GRAPH), progress=False).fit()
    last = broken / "last.safetensors"
    last.write_bytes(last.read_bytes()[:-100])
    resumed = trainer_of(name, broken)
    with pytest.warns(UserWarning, match="truncated"):
        resumed.fit(resume=True)
    assert torch.equal(resumed.model.entity, straight.model.entity)


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    name = "rotate, row_adam"
    first = trainer_of(name, tmp_path).fit()
    before = (tmp_path / "last.safetensors").read_bytes()
    again = trainer_of(name, tmp_path).fit(resume=True)
    assert (tmp_path / "last.safetensors").read_bytes() == before
    assert again.test == first.test
