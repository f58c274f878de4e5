"""Callbacks of a run: what they hear, their exceptions, and trackers."""

import json
import re
import sys
from functools import partial
from unittest.mock import MagicMock

import pytest

from kgfast.training import Callback, RunFolder, Trainer
from kgfast.training.logs import read_rows
from support.gloo import run_together, values
from support.small_runs import GRAPH, assert_same_tensors, config_of, trainer_of
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
    read = Trainer.read_losses
    monkeypatch.setattr(
        Trainer, "read_losses", lambda run: (counts.append(run.state.step), read(run))
    )
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


def named(row):
    """Return the numbers of a row by the names of their series."""
    group = f"valid/{row['dim']}" if "dim" in row else row.get("split", "train")
    return {f"{group}/{key}": it for key, it in row.items() if isinstance(it, float)}


def expected(folder, result):
    """Return what a tracker sends of a run: pairs of numbers and a step."""
    rows = [(named(row), row["step"]) for row in read_rows(folder)]
    by_group = {"test": result.test}
    by_group |= {f"test/{dim}": metrics for dim, metrics in result.test_of_submodels.items()}
    return rows + [
        ({f"{group}/{key}": it for key, it in metrics.items()}, result.steps)
        for group, metrics in by_group.items()
    ]


@pytest.fixture(params=["wandb", "mlflow"])
def tracked(request, monkeypatch):
    """Replace a tracker's package; return its name and the calls that send."""
    module = MagicMock(__name__=request.param)
    module.start_run.return_value.__enter__.return_value.info.run_id = "its id"
    monkeypatch.setitem(sys.modules, request.param, module)
    return request.param, module


@pytest.mark.parametrize("med", [{}, {"med": {"dims": [4, 16]}}])
def test_a_tracker_gets_each_row_and_the_result(tmp_path, tracked, med):
    name, module = tracked
    result = trainer_of(tmp_path, train=TRAIN | {"track": [name, name]}, **med).fit()
    log = module.init.return_value.log if name == "wandb" else module.log_metrics
    sent = [(each.args[0], each.kwargs["step"]) for each in log.call_args_list]
    at = "@" if name == "wandb" else "_at_"
    assert sent == [
        ({key.replace("@", at): it for key, it in values.items()}, step)
        for values, step in expected(tmp_path, result)
    ]
    run, client = module.init.return_value, module.MlflowClient.return_value
    ends = run.finish if name == "wandb" else client.set_terminated
    ends.assert_called_once_with(*["its id"] * (name == "mlflow"))


def test_a_resumed_run_continues_the_series(tmp_path, tracked):
    name, module = tracked
    trainer_of(tmp_path, train=TRAIN | {"track": [name]}).fit()
    longer = TRAIN | {"track": [name], "steps": 16}
    trainer_of(tmp_path, train=longer).fit(resume=True)
    if name == "wandb":
        first, second = (each.kwargs["id"] for each in module.init.call_args_list)
    else:
        before, again = (each.kwargs["run_id"] for each in module.start_run.call_args_list)
        assert before is None
        assert module.log_params.call_count == 1
        first, second = "its id", again
    assert first == second
    assert json.loads((tmp_path / "trackers.json").read_text()) == {name: first}


def test_a_tracker_that_is_not_installed_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    message = re.escape('train.track: wandb needs wandb: pip install "kgfast[wandb]"')
    with pytest.raises(ImportError, match=message):
        trainer_of(tmp_path, train=TRAIN | {"track": ["wandb"]})
    with pytest.raises(ValueError, match=r"train.track: a tracker needs a run folder"):
        trainer_of(None, train=TRAIN | {"track": ["wandb"]})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_the_real_tracker_has_the_series(tmp_path, monkeypatch, name):
    module = pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    folder = tmp_path / "run"
    trainer_of(folder, train=TRAIN | {"track": [name]}).fit()
    longer = TRAIN | {"track": [name], "steps": 16}
    result = trainer_of(folder, train=longer).fit(resume=True)
    trainer_of(folder, train=longer).fit(resume=True)  # ended: the test alone is sent again
    of_step = {row["step"]: row["mrr"] for row in read_rows(folder) if "mrr" in row}
    if name == "wandb":  # offline: files for `wandb sync`
        assert len(list(folder.glob("wandb/offline-run-*/*.wandb"))) == 3
        return
    if name == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        board = EventAccumulator(str(folder / "tensorboard"))
        board.Reload()
        seen = {each.step: each.value for each in board.Scalars("valid/mrr")}
        last = board.Scalars("test/mrr")[-1].value
    else:
        assert module.active_run() is None
        run_id = json.loads((folder / "trackers.json").read_text())["mlflow"]
        history = module.MlflowClient().get_metric_history(run_id, "valid/mrr")
        seen = {each.step: each.value for each in history}
        last = module.MlflowClient().get_metric_history(run_id, "test/mrr")[-1].value
    assert seen == pytest.approx(of_step)
    assert last == pytest.approx(result.test["mrr"])
