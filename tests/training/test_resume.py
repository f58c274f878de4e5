"""A run that is killed, and resumed, ends bit-equal to one that nobody touched."""

import errno
import random

import pytest
import torch

from kgfast.datasets import synthetic
from kgfast.training import Config, Trainer
from kgfast.training import checkpoint as files
from kgfast.training.checkpoint import load
from kgfast.training.logs import read_rows
from support.killed_runs import run_and_kill
from support.small_runs import assert_same_tensors, content, crashing, sections_of_table

STEPS = 60
GRAPH = (200, 6, 700, 40, 40)
CONFIGS = sections_of_table("""
rotate, row_adam
    model.name=rotate  model.base_dim=16  model.gamma=6.0  data.train_bs=64  data.neg_size=16
    data.negatives=per_row  data.filter_negatives=true  data.subsampling=true
    optim.name=row_adam  optim.lr=0.02  optim.grad_clip=1.0  sched.name=linear
    sched.warmup_steps=5
conve, adam, dropout
    model.name=conve  model.base_dim=16  model.embedding_height=4  model.channels=4
    data.train_bs=64  train.mode=kvsall  train.amp=bf16  loss.name=bce  loss.label_smoothing=0.1
    optim.name=adam  optim.lr=0.01  sched.name=cosine
""")
# Every mode, optimizer, schedule and precision, and what else a run remembers.
COMBINATIONS = sections_of_table("""
shared, row_adam, step
    data.train_bs=64  data.neg_size=8  data.negatives=shared
    optim.name=row_adam  optim.lr=0.02  sched.name=step  sched.milestones=[0.6]
rows, row_adagrad, linear
    data.train_bs=64  data.neg_size=8  data.negatives=per_row
    optim.name=row_adagrad  optim.lr=0.1  optim.grad_clip=0.5  sched.name=linear
    sched.warmup_steps=3
margin, sgd, bf16, stopping
    model.name=transe  model.base_dim=16  data.train_bs=64  data.neg_size=8
    data.negatives=shared  train.amp=bf16  train.early_stopping.patience=2
    train.save_best_metric=hits@1  loss.name=margin  loss.margin=2.0  optim.name=sgd
    optim.lr=0.1
1vsall, adam, cosine, n3
    model.name=complex  model.base_dim=16  data.train_bs=64  train.mode=1vsall
    loss.name=cross_entropy  regularizer.name=n3  regularizer.weight=0.01
    optim.name=adam  optim.lr=0.02  sched.name=cosine
cp with inverses, 1vsall, row_adagrad, relations
    model.name=cp  model.base_dim=16  model.reciprocal=true  model.init_std=0.1
    data.train_bs=64  data.target_weights=true  train.mode=1vsall  loss.name=cross_entropy
    loss.relation_weight=0.5  regularizer.name=n3  regularizer.weight=0.01
    optim.name=row_adagrad  optim.lr=0.1
rescal, rows, row_adam, dura, bf16
    model.name=rescal  model.base_dim=8  data.train_bs=64  data.neg_size=8
    data.negatives=per_row  train.amp=bf16  regularizer.name=dura  regularizer.weight=0.1
    optim.name=row_adam  optim.lr=0.02
kvsall, adagrad, bf16
    model.name=conve  model.base_dim=16  model.embedding_height=4  model.channels=4
    data.train_bs=64  train.mode=kvsall  train.amp=bf16  loss.name=bce  optim.name=adagrad
    optim.lr=0.05
med
    model.name=rotate  model.base_dim=16  model.gamma=6.0  med.dims=[4,8,16]
    med.submodels_per_step=2  data.train_bs=64  data.neg_size=16  data.negatives=shared
    optim.lr=0.01
med of rscf
    model.name=rotate  model.base_dim=16  model.gamma=6.0  model.use_rscf=true
    med.dims=[4,8,16]  med.submodels_per_step=2  data.train_bs=64  data.neg_size=16
    data.negatives=shared  optim.lr=0.01
""")


def values_of(name, **more):
    train = {"steps": STEPS, "log_every": 1, "eval_every": 11, "save_every": 4}
    if name in COMBINATIONS:
        train |= {"steps": 21, "eval_every": 3}
    model = {"name": "rotate", "base_dim": 16, "gamma": 6.0}
    values = {"threads": 1, "dataset": {"name": "synthetic"}, "model": model}
    values |= CONFIGS.get(name) or COMBINATIONS[name]
    return values | {"train": train | values.get("train", {}) | more}


def trainer_of(name, folder, **more):
    config = Config.from_dict(values_of(name, **more))
    return Trainer(config, folder, dataset=synthetic(*GRAPH), progress=False)


def assert_same_ends(tmp_path, other):
    """Compare the last state of a run with that of the straight one."""
    (tensors, meta), (expected, expected_meta) = (
        load(tmp_path / it / "last.safetensors") for it in (other, "straight")
    )
    assert_same_tensors(tensors, expected)
    for key in ("step", "best", "in_vain"):
        assert meta["state"][key] == expected_meta["state"][key]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * ("conve" in name)) for name in CONFIGS]
)
def test_killed_and_resumed_is_bit_equal(name, tmp_path):
    straight = trainer_of(name, tmp_path / "straight")
    result = straight.fit()
    pick, killed = random.Random(), tmp_path / "killed"
    moments = pick.randrange(6, 24), pick.randrange(30, STEPS - 6)
    for moment in moments:
        run_and_kill(GRAPH, values_of(name), killed, moment, pick.uniform(0, 0.02))
        assert read_rows(killed)[-1]["step"] >= moment
    resumed = trainer_of(name, killed)
    again = resumed.fit(resume=True)
    print(f"killed in steps {moments}")
    assert_same_ends(tmp_path, "killed")
    assert_same_tensors(resumed.model.state_dict(), straight.model.state_dict())
    assert again.test == result.test
    assert (again.steps, again.best_step) == (STEPS, result.best_step)
    logs = [
        [{key: it for key, it in row.items() if key != "time"} for row in read_rows(tmp_path / run)]
        for run in ("straight", "killed")
    ]
    assert logs[0] == logs[1]


@pytest.mark.parametrize("name", COMBINATIONS)
def test_whatever_a_run_remembers_is_resumed(name, tmp_path):
    """Two crashes, between which nothing but the folder is left."""
    straight = trainer_of(name, tmp_path / "straight")
    result = straight.fit()
    for step in (6, 15):
        if step < result.steps:
            with crashing(step), pytest.raises(MemoryError):
                trainer_of(name, tmp_path / "resumed").fit(resume=True)
    resumed = trainer_of(name, tmp_path / "resumed")
    again = resumed.fit(resume=True)
    assert_same_tensors(resumed.model.state_dict(), straight.model.state_dict())
    assert_same_ends(tmp_path, "resumed")
    assert again.stopped_early == ("stopping" in name)
    for key in ("steps", "test", "test_of_submodels", "valid_of_submodels"):
        assert getattr(again, key) == getattr(result, key)


def test_a_disk_that_was_full_costs_nothing(tmp_path, monkeypatch):
    name, write = "rotate, row_adam", files.write
    straight = trainer_of(name, tmp_path / "straight")
    straight.fit()
    left = iter(range(7))

    def full(*arguments):
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(OSError, match="No space left on device; the old file is intact") as caught:
        trainer_of(name, tmp_path / "full").fit()
    assert str(caught.value.filename).startswith(str(tmp_path / "full"))
    monkeypatch.undo()
    resumed = trainer_of(name, tmp_path / "full")
    resumed.fit(resume=True)
    assert torch.equal(resumed.model.entity, straight.model.entity)


@pytest.mark.parametrize("name", ["rotate, row_adam", "margin, sgd, bf16, stopping"])
def test_resuming_a_finished_run_changes_nothing(name, tmp_path):
    first = trainer_of(name, tmp_path)
    result = first.fit()
    assert result.stopped_early == ("stopping" in name)
    before = content(tmp_path)
    assert {"best.safetensors", "metrics.jsonl", "result.json"} <= before.keys()
    again = trainer_of(name, tmp_path)
    assert again.fit(resume=True) == result
    assert content(tmp_path) == before
    assert_same_tensors(again.model.state_dict(), first.model.state_dict())
