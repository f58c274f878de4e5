"""A search: who goes on, what is kept, and that it ends the same however often it is cut off."""

import multiprocessing
import os
import signal

import pytest

from kgfast.datasets import Dataset
from kgfast.extras.search import load_search, rows_of, search, searching
from kgfast.extras.search.searching import _Searching
from kgfast.training import Config, RunFolder, Trainer, load_run
from support.searches import GRAPH, search_config, without_times

_PROCESSES = multiprocessing.get_context("forkserver")


def found_by(folder, config=None, **options):
    options = {"dataset": GRAPH, "progress": False} | options
    return search(config or search_config(), folder, **options)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """Return a search that nobody cut off, and its folder."""
    folder = tmp_path_factory.mktemp("searches") / "whole"
    return folder, found_by(folder)


def test_half_of_the_trials_go_on_from_each_rung(searched):
    folder, study = searched
    rows = without_times(study)
    assert [row["number"] for row in rows] == list(range(6))
    at = {rung: [row["mrr"] for row in rows if rung in row["rungs"]] for rung in (1, 2, 4)}
    assert len(at[1]) == 6
    assert 1 <= len(at[4]) <= len(at[2]) < 6
    for row in rows:
        assert row["outcome"] == ("done" if 4 in row["rungs"] else "stopped")
        assert 4 <= row["values"]["data.neg_size"] <= 16
    for rung in (1, 2):
        best = max(rows, key=lambda row: row["rungs"].get(rung, 0.0))
        assert rung * 2 in best["rungs"]
    assert study.best_value == rows_of(study)[0]["mrr"] == max(at[4])
    assert rows_of(load_search(folder)) == rows_of(study)


def test_the_best_is_what_training_its_config_gives(searched):
    folder, study = searched
    config = Config.from_yaml(folder / "best.yaml")
    assert config.search is None
    assert config.optim.lr == study.best_params["optim.lr"]
    result = Trainer(config, dataset=GRAPH, progress=False).fit()
    assert study.best_value == result.valid["mrr"]
    best = study.best_trial.number
    for number in range(6):
        run = folder / "trials" / str(number)
        assert (run / "metrics.jsonl").exists()
        assert (run / "best.safetensors").exists() == (number == best)
    assert RunFolder(folder / "trials" / str(best)).read_result()["test"] == {}
    loaded = load_run(folder / "trials" / str(best), GRAPH)
    assert loaded.ranks("valid").mrr == study.best_value
    assert loaded.ranks("test").mrr > 0


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", [3, 25])
def test_a_search_that_was_cut_off_ends_as_if_nobody_had(searched, tmp_path, monkeypatch, moment):
    made, step = [], Trainer._step

    def counted(self, batch):
        made.append(batch.number)
        if len(made) == moment:
            raise Killed
        step(self, batch)

    monkeypatch.setattr(Trainer, "_step", counted)
    config = search_config(search={"trials": 4})
    with pytest.raises(Killed):
        found_by(tmp_path / "a", config)
    assert without_times(load_search(tmp_path / "a"))[-1]["outcome"] == "open"
    study = found_by(tmp_path / "a", config, resume=True)
    assert without_times(study) == without_times(searched[1])[:4]


def _killed(folder, moment):
    """Let the child kill itself in the middle of what the search writes."""
    evaluated, seen = _Searching.on_evaluation, []

    def counted(self, row):
        seen.append(row)
        if len(seen) == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        evaluated(self, row)

    _Searching.on_evaluation = counted
    found_by(folder, resume=True)


@pytest.mark.slow
def test_a_search_that_is_killed_again_and_again_ends_as_if_nobody_had(searched, tmp_path):
    for moment in (1, 2, 4, 3):
        child = _PROCESSES.Process(target=_killed, args=(tmp_path / "a", moment))
        child.start()
        child.join(200)
        assert child.exitcode == -signal.SIGKILL
    study = found_by(tmp_path / "a", resume=True)
    assert without_times(study) == without_times(searched[1])


def test_time_that_is_up_leaves_a_trial_open_and_more_time_goes_on(searched, tmp_path):
    short = found_by(tmp_path / "a", search_config(search={"minutes": 1e-6}))
    assert [row["outcome"] for row in rows_of(short)] == ["open"]
    longer = search_config(search={"minutes": 60, "trials": 2})
    study = found_by(tmp_path / "a", longer, resume=True)
    assert without_times(study) == without_times(searched[1])[:2]


def test_a_search_goes_on_only_as_it_began(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no search"):
        load_search(tmp_path / "a")
    config = search_config(search={"trials": 1})
    found_by(tmp_path / "a", config, resume=True)
    with pytest.raises(ValueError, match="holds a search: continue with --resume"):
        found_by(tmp_path / "a", config)
    for other in (
        search_config(optim={"lr": 0.1}),
        search_config({"optim.lr": {"low": 1e-3, "high": 0.3}}),
        search_config(search={"first_rung": 4}),
        search_config(train={"epochs": 8}),
    ):
        with pytest.raises(ValueError, match="the search was started with another config"):
            found_by(tmp_path / "a", other, resume=True)
    (tmp_path / "a" / "trials.db").write_bytes(b"no storage")
    for use in (lambda: load_search(tmp_path / "a"), lambda: found_by(tmp_path / "a", resume=True)):
        with pytest.raises(ValueError, match=r"trials\.db: damaged: not the storage of a search"):
            use()


def test_a_trial_that_cannot_be_built_ends_alone(tmp_path):
    config = search_config({"model.base_dim": {"choices": [4]}}, search={"trials": 2})
    study = found_by(tmp_path / "a", config.updated({"med.dims": [4, 8]}))
    outcomes = [row["outcome"] for row in without_times(study)]
    assert outcomes == ["contradicts: dims must be in 1 .. 4; got 8", "repeats trial 0"]


def test_a_search_whose_trials_have_nothing_new_to_train_ends(monkeypatch, tmp_path):
    monkeypatch.setattr(searching, "_IDLE", 20)
    ranges, train = {"loss.alpha": {"choices": [0.5, 1.0]}}, {"epochs": 1, "track": ["mlflow"]}
    few = search_config(ranges, {"trials": None, "minutes": 60}, train=train)
    folder = tmp_path / "with?mark"
    rows = rows_of(found_by(folder, few))
    assert 20 < len(rows) < 100
    assert sum(bool(row["seconds"]) for row in rows) == 2
    best = (folder / "best.yaml").rename(folder / "old.yaml").read_text()
    found_by(folder, few, resume=True)
    assert (folder / "best.yaml").read_text() == best  # of a search that was killed before


def test_what_a_search_lacks_is_said(tmp_path):
    bare = Config.from_dict({**search_config().to_dict(), "search": None})
    with pytest.raises(ValueError, match=r"search\.ranges is missing: give ranges of keys"):
        found_by(tmp_path / "a", bare)
    with pytest.raises(ValueError, match=r"search\.minutes: set the minutes"):
        found_by(tmp_path / "a", search_config(search={"trials": None}))
    splits = GRAPH.train, GRAPH.valid[:0], GRAPH.test
    dataset = Dataset("none", *splits, GRAPH.entities, GRAPH.relations)
    with pytest.raises(ValueError, match="none has no validation triples"):
        found_by(tmp_path / "a", dataset=dataset)


def test_trials_that_come_to_nothing_are_recorded_and_the_search_goes_on(tmp_path):
    ranges = {
        "optim.lr": {"choices": [0.02, 1e30]},
        "loss.name": {"choices": ["nssa", "margin"]},
        "loss.alpha": {"choices": [1.0, 0.5]},
    }
    study = found_by(tmp_path / "a", search_config(ranges, search={"trials": 16}))
    kinds = set()
    for number, row in enumerate(without_times(study)):
        ended, values = row["outcome"], row["values"]
        kinds.add(ended.partition(" ")[0])
        earlier = [it["values"] for it in without_times(study)[:number]]
        if values in earlier:
            assert ended == f"repeats trial {earlier.index(values)}"
        elif values["loss.name"] == "margin" and values["loss.alpha"] == 0.5:
            assert ended == "contradicts: loss.alpha: goes with loss.name nssa; loss.name is margin"
        elif values["optim.lr"] == 1e30:
            assert ended.startswith("diverged: the loss")
        else:
            assert ended in ("done", "stopped")
    assert kinds >= {"contradicts:", "diverged:", "done", "repeats"}
    assert rows_of(study)[0]["outcome"] == "done"


def test_rungs_count_steps_where_the_config_does_and_the_widest_of_sub_models(tmp_path):
    train = {"epochs": None, "steps": 9, "eval_every": 2}
    model = {"name": "rotate", "base_dim": 8, "gamma": 6.0}
    ranges = {"optim.lr": {"low": 1e-3, "high": 0.3, "log": True}}
    config = search_config(
        ranges, train=train, model=model, med={"dims": [4, 8]}, search={"trials": 1}
    )
    (row,) = rows_of(found_by(tmp_path / "a", config))
    assert list(row["rungs"]) == [2, 4, 6, 8, 9]
    assert row["mrr"] == max(row["rungs"].values())
    ranks = load_run(tmp_path / "a" / "trials" / "0", GRAPH).ranks("valid")
    assert row["mrr"] == ranks[8].mrr != ranks[4].mrr
