"""A run: what its folder holds, and how it stops early or at a divergence."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from kgfast import RESCAL
from kgfast.processes.assignment import Assignment
from kgfast.training import Config, RunFolder
from kgfast.training.checkpoint import load
from kgfast.training.logs import read_rows
from kgfast.training.trainer import Trainer
from support.small_runs import GRAPH, assert_same_tensors, trainer_of

EMPTY = replace(GRAPH, valid=GRAPH.valid[:0], test=GRAPH.test[:0])
DISTMULT = {"name": "distmult", "gamma": 12.0}


def changed(monkeypatch, method, before=None, after=None):
    """Let a method of runs call functions of the run before and after it."""
    inner = getattr(Trainer, method)

    def outer(self, *args):
        if before is not None:
            before(self)
        result = inner(self, *args)
        if after is not None:
            after(self)
        return result

    monkeypatch.setattr(Trainer, method, outer)


def spoiling(table, rows, value, step):
    """Return a function that writes a value to rows of a table at a step."""

    def spoil(run):
        if run.state.step == step:
            with torch.no_grad():
                getattr(run.model, table)[rows] = value

    return spoil


def test_a_run_folder_holds_what_happened(tmp_path):
    train = {"steps": 20, "eval_every": 8, "log_every": 5, "save_every": 10}
    trainer = trainer_of(tmp_path / "run", train=train)
    result = trainer.fit()
    rows = read_rows(tmp_path / "run")
    assert [row["step"] for row in rows if "loss" in row] == [5, 10, 15, 20]
    assert [row["step"] for row in rows if row.get("split") == "valid"] == [8, 16, 20]
    assert (rows[0]["lr"], rows[0]["epoch"]) == (0.02, 0.25)
    held = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"last.safetensors", "best.safetensors", "config.yaml"} <= held
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["test"] == result.test
    assert {"machine", "threads", "versions", "command", "seconds_training"} <= written.keys()
    assert 0 < written["seconds_cpu"] == result.seconds_cpu
    assert Config.from_yaml(tmp_path / "run" / "config.yaml") == trainer.config
    assert "20 steps in" in repr(result)
    assert "\ntest triples, filtered, by the best checkpoint on valid (step" in repr(result)


def test_the_best_state_is_tested(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path, train={"steps": 30, "eval_every": 10})
    values, evaluate, states = iter([0.1, 0.9, 0.2]), Assignment.ranks, []

    def evaluated(self, model, dataset, split, batch_size):
        ranks = evaluate(self, model, dataset, split, batch_size)
        states.append(model.entity.detach().clone())
        if split == "valid":
            metrics = ranks.metrics() | {"mrr": next(values)}
            ranks.metrics = lambda **_: metrics
        return ranks

    monkeypatch.setattr(Assignment, "ranks", evaluated)
    result = trainer.fit()
    assert (result.best_step, result.valid["mrr"]) == (20, 0.9)
    assert torch.equal(states[3], states[1])
    assert not torch.equal(states[2], states[1])
    last = load_file(tmp_path / "last.safetensors")
    assert torch.equal(last["model.entity"], states[2])


def test_models_are_kept_and_their_rates_logged(tmp_path):
    train = {"steps": 12, "keep_every": 5, "log_every": 12}
    trainer_of(tmp_path, train=train, sched={"name": "linear"}).fit()
    names = [path.name for path in RunFolder(tmp_path).models()]
    assert names == ["model_5.safetensors", "model_10.safetensors"]
    kept, meta = load(tmp_path / "model_5.safetensors")
    assert (set(kept), meta["step"]) == ({"model.entity", "model.relation"}, 5)
    rates = {row["step"]: row["lr"] for row in read_rows(tmp_path) if "lr" in row}
    assert rates == pytest.approx({step: 0.02 * (1 - (step - 1) / 12) for step in (5, 10, 12)})


@pytest.mark.parametrize(("eval_every", "unit"), [(0, "steps"), (3, "steps"), (5, "epochs")])
def test_a_finished_run_goes_on_as_one_of_more_steps(tmp_path, eval_every, unit):
    more = {"optim": {"lr": 0.02, "grad_clip": 0.1}}
    short, long = ({"steps": 20}, {"steps": 40})
    if unit == "epochs":  # an epoch has 20 steps
        short, long = ({"steps": None, "epochs": 1}, {"steps": None, "epochs": 2})
    trained = {"eval_every": eval_every, "save_best_metric": "mr"}
    trainer_of(tmp_path / "one", train=long | trained, **more).fit()
    trainer_of(tmp_path / "two", train=short | trained, **more).fit()
    assert RunFolder(tmp_path / "two").read_result()["steps"] == 20
    with trainer_of(tmp_path / "two", train=long | trained, **more).opened(resume=True):
        assert not RunFolder(tmp_path / "two").result.exists()
    result = trainer_of(tmp_path / "two", train=long | trained, **more).fit(resume=True)
    assert (result.steps, result.planned_steps) == (40, 40)
    assert Config.from_yaml(tmp_path / "two" / "config.yaml").train.steps == long["steps"]
    one, _ = load(tmp_path / "one" / "last.safetensors")
    two, _ = load(tmp_path / "two" / "last.safetensors")
    assert_same_tensors(two, one)
    again = trainer_of(tmp_path / "two", train=long | trained, **more).fit(resume=True)
    assert again == result
    with pytest.raises(ValueError, match=rf"train\.{unit}: 20 steps, but .* made 40 alr"):
        trainer_of(tmp_path / "two", train=short | trained, **more).fit(resume=True)


def test_a_run_says_what_it_trains_each_loss_and_the_time_left(tmp_path, capsys):
    """Without a terminal: lines."""

    def said(resume=False, **train):
        train = {"steps": 12, "log_every": 4} | train
        sections = {"model": {"use_rscf": True}, "med": {"dims": [8, 16]}}
        trainer = trainer_of(tmp_path / "run", train=train, **sections)
        trainer.progress = True
        trainer.fit(resume)
        return capsys.readouterr().err.splitlines()

    first = said()
    assert first[0] == (
        f"MED of RSCF of RotatE, dim 16; 300 entities, 6 relations, 1,200 triples; 12 steps; cpu; "
        f"{tmp_path / 'run'}"
    )
    steps = [line.split("  ") for line in first[1:] if line.startswith("step ")]
    assert [it[0] for it in steps] == [f"step {it} of 12" for it in (4, 8, 12, 12)]
    assert all(it[1].startswith("loss ") and it[-1].endswith(" min left") for it in steps)
    assert said(True) == [f"{tmp_path / 'run'} was finished already, and stays unchanged"]
    assert said(True, steps=20)[0].endswith("/run; resumed after step 12")


@pytest.mark.parametrize("negatives", ["shared", "per_row"])
def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path, monkeypatch, negatives):
    changed(monkeypatch, "_step", spoiling("entity", [17, 250], torch.nan, 13))
    data = {"negatives": negatives, "neg_size": 300}
    trainer = trainer_of(tmp_path, train={"steps": 40, "save_every": 5}, data=data)
    name = GRAPH.entities.name(17)
    with pytest.raises(FloatingPointError, match=rf"at step 13: row 17 of the entity .*{name}"):
        trainer.fit()
    kept = load_file(tmp_path / "last.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in kept.values())
    monkeypatch.undo()
    assert trainer_of(tmp_path, train={"steps": 40}, data=data).fit(resume=True).steps == 40


OVERFLOWING = {
    "queries": {},
    "queries of all entities": {
        "train": {"steps": 4, "mode": "1vsall"},
        "loss": {"name": "cross_entropy"},
    },
    "queries of kvsall": {"train": {"steps": 4, "mode": "kvsall"}, "loss": {"name": "bce"}},
    "scores": {"model": DISTMULT | {"init_range": 1e15}},
    "penalty": {
        "model": DISTMULT | {"init_range": 1e11},
        "loss": {"name": "margin"},
        "regularizer": {"name": "n3", "weight": 1e10},
    },
    "norms of rscf": {"model": {"name": "rotate", "use_rscf": True, "init_range": 1e38}},
    "sub-models": {"med": {"dims": [8, 16]}, "data": {"neg_size": 8}},
    "angles of rscf": {"model": {"name": "rotate", "use_rscf": True, "init_range": 1e7}},
}


@pytest.mark.parametrize("sections", OVERFLOWING.values(), ids=OVERFLOWING.keys())
def test_an_overflow_of_finite_tables_is_a_divergence(sections):
    sections = {"model": DISTMULT | {"init_range": 1e30}, "train": {"steps": 4}} | sections
    with pytest.raises(FloatingPointError, match=r"at step 0: all tables are finite.*: try a low"):
        trainer_of(**sections).fit()


@pytest.mark.parametrize(
    ("value", "why"), [(1e30, "all tables are finite"), (torch.nan, "row 0 of the entity table")]
)
def test_an_evaluation_that_overflows_is_a_divergence(monkeypatch, value, why):
    def large(run):
        with torch.no_grad():
            run.model.entity.fill_(value)
            run.model.relation.fill_(min(value, 1e30))

    changed(monkeypatch, "make_step", after=large)
    monkeypatch.setattr(Trainer, "_step", lambda self, batch: None)
    with pytest.raises(FloatingPointError, match=f"ranks of .* cannot be .* at step 3: {why}"):
        trainer_of(model=DISTMULT, train={"steps": 3, "eval_every": 3}).fit()


def test_tables_are_checked_before_they_are_saved_and_at_the_end(tmp_path, monkeypatch):
    changed(monkeypatch, "_step", after=spoiling("entity", 3, torch.inf, 0))
    with pytest.raises(FloatingPointError, match="at step 1: row 3 of the entity table"):
        trainer_of(None, EMPTY, train={"steps": 1}).fit()
    monkeypatch.undo()
    changed(monkeypatch, "make_step", after=spoiling("relation", 2, torch.inf, 10))
    with pytest.raises(FloatingPointError, match="row 2 of the relation table"):
        trainer_of(tmp_path, train={"steps": 40, "save_every": 5}).fit()
    assert bool(load_file(tmp_path / "last.safetensors")["model.relation"].isfinite().all())


def test_early_stopping_needs_valid_triples(tmp_path):
    train = {"steps": 9, "eval_every": 2, "early_stopping": {"patience": 1}}
    with pytest.raises(ValueError, match="early_stopping: needs evaluations, but dataset 'synth"):
        trainer_of(tmp_path, replace(GRAPH, valid=GRAPH.valid[:0]), train=train).fit()
    assert not (tmp_path / "last.safetensors").exists()


def all_entities(mode="1vsall", **sections):
    name = "cross_entropy" if mode == "1vsall" else "bce"
    model = {"name": "complex", "gamma": 12.0}
    return {"model": model, "train": {"mode": mode, "steps": 6}, "loss": {"name": name}} | sections


@pytest.mark.parametrize(
    "optim",
    [
        {"name": "adagrad", "lr": 0.1},
        {"name": "adagrad", "lr": 0.1, "grad_clip": 0.01},
        {"name": "adagrad", "lr": 0.1, "weight_decay": 0.1},
        {"name": "adam", "lr": 0.01},
        {"name": "sgd", "lr": 0.1},
    ],
)
def test_matrices_that_a_step_does_not_use_stay_as_they_are(optim, monkeypatch):
    sections = all_entities(
        model={"name": "rescal", "base_dim": 6, "gamma": 12.0, "reciprocal": True},
        train={"mode": "1vsall", "steps": 5},
        data={"train_bs": 16},
        regularizer={"name": "dura", "weight": 0.05},
        optim=optim,
    )
    tables = []
    for wide in (True, False):  # with a gradient of rows, or of the whole table
        monkeypatch.setattr(RESCAL, "has_wide_relations", wide)
        trainer = trainer_of(**sections)
        shapes = []
        trainer.model.relation.register_post_accumulate_grad_hook(
            lambda table, shapes=shapes: shapes.append(table.grad.is_sparse)
        )
        with trainer.opened():
            trainer.train()
            state = trainer._optimizer.tensors()
        assert any(shapes) is wide
        tables.append((trainer.model.entity.detach(), trainer.model.relation.detach()))
        if optim["name"] == "adagrad":
            assert int(state["model.relation.step"]) == 5
    for ours, whole in zip(*tables, strict=True):
        if "grad_clip" in optim:  # sums of other parts
            torch.testing.assert_close(ours, whole)
        else:
            assert torch.equal(ours, whole)
