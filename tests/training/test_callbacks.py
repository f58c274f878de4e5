"""Callbacks of a run: what they hear, their exceptions, the recipes of docs/how-to/callbacks.md."""

import json
import sys
from functools import partial
from types import ModuleType
from unittest.mock import Mock, call

import pytest

from kgfast.training import Callback, RunFolder, Trainer
from kgfast.training.logs import read_rows
from kgfast.training.loop import Run
from support.gloo import run_together, values
from support.paths import ROOT
from support.small_runs import GRAPH, assert_same_tensors, config_of, trainer_of
from support.snippets import snippets
from support.trained_together import Heard, heard_together

TRAIN = {"steps": 12, "log_every": 2, "eval_every": 4}


def trainer(folder, *callbacks, **sections):
    made = trainer_of(folder, train=TRAIN, **sections)
    made.callbacks = callbacks
    return made


@pytest.mark.parametrize("med", [{}, {"med": {"dims": [4, 16]}}])
def test_callbacks_hear_what_the_log_has_and_the_result(tmp_path, med):
    heard = Heard()
    result = trainer(tmp_path, heard, Callback(), **med).fit()
    *rows, (last, ended) = heard.calls
    assert [row for _, row in rows] == read_rows(tmp_path)
    assert {name for name, row in rows if "split" in row} == {"evaluation"}
    assert {name for name, row in rows if "loss" in row} == {"step"}
    assert (last, ended) == ("end", result)
    assert [name for name, _ in heard.calls].count("end") == 1


def test_losses_are_read_as_often_with_callbacks_as_without(monkeypatch):
    counts = []
    read = Run.read_losses
    monkeypatch.setattr(Run, "read_losses", lambda run: (counts.append(run.state.step), read(run)))
    trainer(None).fit()
    alone = counts.copy()
    counts.clear()
    heard = Heard()
    made = Trainer(config_of(train=TRAIN), dataset=GRAPH, progress=False, callbacks=iter([heard]))
    made.fit()  # without a folder, and of an iterator
    assert counts == alone
    assert [row["step"] for name, row in heard.calls if name == "step"] == [2, 4, 6, 8, 10, 12]


def test_a_run_whose_callback_raised_resumes(tmp_path):
    trainer(tmp_path / "whole").fit()
    broken, heard = Heard(("step", 6)), Heard()
    with pytest.raises(ConnectionError, match="the tracker is away"):
        trainer(tmp_path / "cut", broken).fit()
    assert broken.calls[-1][1]["step"] == 6
    trainer(tmp_path / "cut", heard).fit(resume=True)
    assert heard.calls[0][1]["step"] == 6  # again, from the checkpoint of step 4
    logs = [[it.get("loss") for it in read_rows(tmp_path / it)] for it in ("cut", "whole")]
    assert logs[0] == logs[1]
    states = [RunFolder(tmp_path / name).load_last()[0] for name in ("cut", "whole")]
    assert_same_tensors(*states)


def test_an_end_that_raised_is_called_again(tmp_path):
    with pytest.raises(ConnectionError):
        trainer(tmp_path, Heard(("end", None))).fit()
    assert json.loads((tmp_path / "result.json").read_text())["steps"] == 12
    heard = Heard()
    result = trainer(tmp_path, heard).fit(resume=True)
    assert heard.calls == [("end", result)]


def test_what_is_no_callback_is_an_error():
    with pytest.raises(TypeError, match=r"callbacks\[0\] must be a kgfast.* got function"):
        Trainer(config_of(), dataset=GRAPH, callbacks=[lambda row: None])


def test_of_several_processes_the_first_calls(tmp_path):
    first, other = values(run_together(2, partial(heard_together, tmp_path / "a", None)))
    assert first == (["step"] * 4 + ["evaluation"] + ["step"] * 4 + ["evaluation", "end"], "fitted")
    assert other == ([], "fitted")


@pytest.mark.slow
def test_the_exception_of_a_callback_ends_all_processes(tmp_path):
    work = partial(heard_together, tmp_path / "b", ("step", 3))
    first, other = values(run_together(2, work))
    assert first == (["step"] * 3, "ConnectionError('the tracker is away')")
    assert "process 0 of 2: ConnectionError: the tracker is away" in other[1]
    again, _ = values(run_together(2, partial(heard_together, tmp_path / "b", None)))
    assert again[1] == "fitted"


def recipe(package):
    """Run the block of the page that imports a package; return its names."""
    page = (ROOT / "docs/how-to/callbacks.md").read_text()
    (code,) = [it.code for it in snippets(page) if f"import {package}\n" in it.code]
    names = {}
    exec(code, names)
    return names


def named(row):
    """Return a row under the names that the recipes give to its columns."""
    of = f"valid/{row['dim']}" if "dim" in row else row.get("split", "train")
    return {f"{of}/{key}": it for key, it in row.items()}


@pytest.mark.parametrize("med", [{}, {"med": {"dims": [4, 16]}}])
def test_the_recipe_of_wandb_sends_each_row_and_the_result(tmp_path, monkeypatch, med):
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    run = Mock()
    result = trainer(tmp_path, recipe("wandb")["ToWandb"](run), **med).fit()
    rows = read_rows(tmp_path)
    assert run.mock_calls == [
        *(call.log(named(row), step=row["step"]) for row in rows),
        call.summary.update({f"test/{key}": it for key, it in result.test.items()}),
        call.finish(),
    ]
    sent = [name for it in run.log.call_args_list for name in it.args[0]]
    widths = ["/4", "/16"] if med else [""]
    assert [name for name in sent if name.endswith("/mrr")] == [
        f"valid{it}/mrr" for it in widths
    ] * 3
