"""Callbacks of a run: what they hear, their exceptions, the recipes of docs/callbacks.md."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from kgfast import load_run
from kgfast.training import Callback, RunFolder
from kgfast.training.logs import read_rows
from kgfast.training.loop import Run
from support.gloo import run_together, values
from support.paths import ROOT
from support.small_runs import assert_same_tensors, crashing, trainer_of
from support.snippets import snippets
from support.trained_together import Heard, heard_together

TRAIN = {"steps": 12, "log_every": 2, "eval_every": 4}


def trainer(folder, *callbacks, **train):
    made = trainer_of(folder, train={**TRAIN, **train})
    made.callbacks = callbacks
    return made


@pytest.mark.parametrize("med", [{}, {"med": {"dims": [4, 16]}}])
def test_callbacks_hear_what_the_log_has_and_the_result(tmp_path, med):
    heard = Heard()
    made = trainer_of(tmp_path, train=TRAIN, **med)
    made.callbacks = [heard, Callback()]
    result = made.fit()
    *rows, (last, ended) = heard.calls
    assert [row for _, row in rows] == read_rows(tmp_path)
    assert {name for name, row in rows if "split" in row} == {"evaluation"}
    assert {name for name, row in rows if "loss" in row} == {"step"}
    assert (last, ended) == ("end", result)
    assert [name for name, _ in heard.calls].count("end") == 1


def test_callbacks_hear_without_a_folder():
    heard = Heard()
    trainer(None, heard).fit()
    assert [row["step"] for name, row in heard.calls if name == "step"] == [2, 4, 6, 8, 10, 12]


def test_losses_are_read_as_often_with_callbacks_as_without(monkeypatch):
    counts = []
    read = Run.read_losses
    monkeypatch.setattr(Run, "read_losses", lambda run: (counts.append(run.state.step), read(run)))
    trainer(None).fit()
    alone = counts.copy()
    counts.clear()
    trainer(None, Heard()).fit()
    assert counts == alone


def test_a_callback_changes_no_row_of_another(tmp_path):
    class Rude(Callback):
        def on_step(self, row):
            row.clear()

    heard = Heard()
    trainer(tmp_path, Rude(), heard).fit()
    assert [row for name, row in heard.calls if name != "end"] == read_rows(tmp_path)


@pytest.mark.parametrize("failing", [("step", 6), ("evaluation", 8), ("step", 12)])
def test_a_run_whose_callback_raised_goes_on_where_it_was(tmp_path, failing):
    trainer(tmp_path / "whole").fit()
    broken, heard = Heard(failing), Heard()
    with pytest.raises(ConnectionError, match="the tracker is away"):
        trainer(tmp_path / "cut", broken).fit()
    assert "end" not in [name for name, _ in broken.calls]
    assert not (tmp_path / "cut" / "result.json").exists()
    _, meta = RunFolder(tmp_path / "cut").load_last()
    assert meta["step"] == min(failing[1] + 1, 12)
    trainer(tmp_path / "cut", heard).fit(resume=True)
    steps = [(row["step"], "split" in row) for _, row in [*broken.calls, *heard.calls[:-1]]]
    rows = read_rows(tmp_path / "whole")
    expected = [(row["step"], "split" in row) for row in rows]
    if failing == ("step", 12):  # the evaluation of the last step was made, and not heard of
        expected.pop()
    assert steps == expected
    assert [row.get("loss") for row in read_rows(tmp_path / "cut")] == [
        it.get("loss") for it in rows
    ]
    states = [RunFolder(tmp_path / name).load_last()[0] for name in ("cut", "whole")]
    assert_same_tensors(*states)


def test_a_resumed_run_calls_on(tmp_path):
    with pytest.raises(MemoryError), crashing(7):
        trainer(tmp_path, save_every=3).fit()
    heard = Heard()
    trainer(tmp_path, heard, save_every=3).fit(resume=True)
    assert [row["step"] for name, row in heard.calls if name == "step"] == [8, 10, 12]


def test_an_end_that_raised_is_called_again(tmp_path):
    with pytest.raises(ConnectionError):
        trainer(tmp_path, Heard(("end", None))).fit()
    assert json.loads((tmp_path / "result.json").read_text())["steps"] == 12
    heard = Heard()
    result = trainer(tmp_path, heard).fit(resume=True)
    assert heard.calls == [("end", result)]


def test_what_is_no_callback_is_an_error():
    from kgfast.training import Trainer
    from support.small_runs import GRAPH, config_of

    with pytest.raises(TypeError, match=r"must be kgfast\.training\.Callback; got function"):
        Trainer(config_of(), dataset=GRAPH, callbacks=[lambda row: None])


def test_of_several_processes_the_first_calls(tmp_path):
    first, other = values(run_together(2, partial(heard_together, tmp_path / "a", None)))
    assert first == (["step"] * 4 + ["evaluation"] + ["step"] * 4 + ["evaluation", "end"], "fitted")
    assert other == ([], "fitted")


def test_the_exception_of_a_callback_ends_all_processes(tmp_path):
    work = partial(heard_together, tmp_path / "b", ("step", 3))
    first, other = values(run_together(2, work))
    assert first == (["step"] * 3, "ConnectionError('the tracker is away')")
    assert other == ([], "KeyboardInterrupt()")
    again, _ = values(run_together(2, partial(heard_together, tmp_path / "b", None)))
    assert again[1] == "fitted"


def recipe(package):
    """Run the block of the page that imports a package; return its names."""
    pytest.importorskip(package, reason=f"the recipe for {package} needs it")
    page = (ROOT / "docs" / "callbacks.md").read_text()
    (code,) = [it.code for it in snippets(page) if f"import {package}\n" in it.code]
    names = {}
    exec(code, names)
    return names


def test_the_recipe_of_wandb_offline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    names = recipe("wandb")
    made = trainer("run")
    to = names["ToWandb"](made.config, "a-run")
    made.callbacks = [to]
    made.fit()
    (written,) = Path("wandb").glob("offline-run-*-a-run/*.wandb")
    assert written.stat().st_size > 1000


def test_the_recipe_of_mlflow_in_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer releases ask for it
    names = recipe("mlflow")
    mlflow = names["mlflow"]
    mlflow.set_tracking_uri(f"file:{tmp_path / 'mlflow'}")
    made = trainer("run")
    to = names["ToMLflow"](made.config)
    made.callbacks = [to]
    result = made.fit()
    client = mlflow.MlflowClient()
    losses = client.get_metric_history(to.run, "train/loss")
    rows = [row for row in read_rows("run") if "loss" in row]
    assert [(it.step, it.value) for it in losses] == [(row["step"], row["loss"]) for row in rows]
    data = client.get_run(to.run).data
    assert data.metrics["test/hits_at_10"] == result.test["hits@10"]
    assert data.params["model.name"] == "rotate"


def test_the_recipe_of_the_hub_without_a_network(tmp_path, monkeypatch):
    names = recipe("huggingface_hub")
    hub, sent = names["huggingface_hub"], {}

    def upload(folder_path, repo_id):
        sent.update(files=sorted(it.name for it in folder_path.iterdir()), repo=repo_id)
        sent["card"] = hub.ModelCard.load(folder_path / "README.md")
        sent["run"] = load_run(folder_path)
        sent["entity"] = sent["run"].model.entity.clone()

    monkeypatch.setattr(hub, "create_repo", lambda repo, exist_ok: None)
    monkeypatch.setattr(hub, "upload_folder", upload)
    made = trainer(tmp_path / "run", names["ToHub"](tmp_path / "run", "you/a-model"))
    made.fit()
    assert sent["repo"] == "you/a-model"
    assert {"README.md", "config.json"} <= set(sent["files"])
    assert sent["card"].data.library_name == "kgfast"
    assert "test triples, filtered" in sent["card"].text
    assert torch.equal(sent["entity"], made.model.entity)
    assert sent["run"].vocabulary.entities == made.dataset.entities
