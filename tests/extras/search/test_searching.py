"""A search: who goes on, what is kept, and that it ends the same however often it is cut off."""

import multiprocessing
import os
import signal

import pytest

from kgfast.datasets import Dataset
from kgfast.extras.search import plot_trials, read_trials, search, searching
from kgfast.extras.search.study import Study
from kgfast.extras.search.trials import Outcome
from kgfast.training import Config, Trainer, load_run
from kgfast.training.logs import read_rows
from kgfast.training.loop import Run
from kgfast.training.processes.placement import Placement
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
    folder, found = searched
    assert [trial.number for trial in found.all] == list(range(6))
    at = {rung: [trial for trial in found.all if rung in trial.rungs] for rung in (1, 2, 4)}
    assert len(at[1]) == 6
    assert 1 <= len(at[4]) <= len(at[2]) < 6
    for trial in found.all:
        assert trial.outcome == ("done" if trial.reached == 4 else "stopped")
        assert 4 <= trial.values["data.neg_size"] <= 16
    for rung, next_rung in ((1, 2), (2, 4)):
        values = [trial.rungs[rung] for trial in found.all if rung in trial.rungs]
        best = max(found.all, key=lambda trial: trial.rungs.get(rung, 0.0))
        assert next_rung in best.rungs, values
    assert found.best.mrr == max(trial.mrr for trial in at[4])
    assert read_trials(folder) == found


def test_the_best_is_what_training_its_config_gives(searched):
    folder, found = searched
    config = Config.from_yaml(folder / "best.yaml")
    assert config.search is None
    assert config.optim.lr == found.best.values["optim.lr"]
    result = Trainer(config, dataset=GRAPH, progress=False).fit()
    own = [
        row["mrr"] for row in read_rows(folder / "trials" / str(found.best.number)) if "mrr" in row
    ]
    assert result.best_step
    assert found.best.mrr == max(own) == result.valid["mrr"]


def test_only_the_best_keeps_its_checkpoints_and_its_test_can_be_ranked(searched):
    folder, found = searched
    for trial in found.all:
        run = folder / "trials" / str(trial.number)
        assert (run / "metrics.jsonl").exists()
        assert not (run / "result.json").exists()
        assert (run / "best.safetensors").exists() == (trial.number == found.best.number)
    run = folder / "trials" / str(found.best.number)
    assert load_run(run, False).model.dim == found.best.values["model.base_dim"]
    config = Config.from_yaml(folder / "best.yaml")
    result = Trainer(config, run, dataset=GRAPH, progress=False).fit(resume=True)
    assert result.valid["mrr"] == found.best.mrr
    assert result.test["mrr"] > 0
    (run / "result.json").unlink()


def test_only_valid_is_ranked(tmp_path, monkeypatch):
    splits, ranks = set(), Placement.ranks

    def noted(self, model, dataset, split, config):
        splits.add(split)
        return ranks(self, model, dataset, split, config)

    monkeypatch.setattr(Placement, "ranks", noted)
    found_by(tmp_path / "a", search_config(search={"trials": 2}))
    assert splits == {"valid"}


FOUR = search_config(search={"trials": 4})


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", [3, 19])
def test_a_search_that_was_cut_off_ends_as_if_nobody_had(searched, tmp_path, monkeypatch, moment):
    made = 0
    step = Run._step

    def counted(self, number):
        nonlocal made
        made += 1
        if made == moment:
            raise Killed
        return step(self, number)

    monkeypatch.setattr(Run, "_step", counted)
    with pytest.raises(Killed):
        found_by(tmp_path / "a", FOUR)
    kept = [trial for trial in read_trials(tmp_path / "a").all if trial.outcome != "open"]
    found = found_by(tmp_path / "a", FOUR, resume=True)
    assert without_times(found) == without_times(searched[1])[:4]
    assert found.all[: len(kept)] == tuple(kept)


def test_a_line_that_a_kill_cut_short_costs_nothing(searched, tmp_path):
    config = search_config(search={"trials": 1})
    found_by(tmp_path / "a", config)
    with (tmp_path / "a" / "trials.log").open("ab") as file:
        file.write(b'{"op_code":4,"wor')
    (tmp_path / "a" / "trials.log.lock").symlink_to("trials.log")
    config = search_config(search={"trials": 2})
    found = found_by(tmp_path / "a", config, resume=True)
    assert without_times(found) == without_times(searched[1])[:2]


@pytest.mark.parametrize("line", [b"no json\n", b"\xff\n", b"[3]\n", b'{"op_code": 99}\n'])
def test_a_journal_that_is_none_is_named(tmp_path, line):
    config = search_config(search={"trials": 1})
    found_by(tmp_path / "a", config)
    journal = tmp_path / "a" / "trials.log"
    journal.write_bytes(line + journal.read_bytes())
    with pytest.raises(ValueError, match=r"trials\.log: damaged: not the journal of a search"):
        read_trials(tmp_path / "a")
    with pytest.raises(ValueError, match=r"trials\.log: damaged: not the journal of a search"):
        found_by(tmp_path / "a", config, resume=True)


def test_a_search_goes_on_only_as_it_began(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no search"):
        read_trials(tmp_path / "a")
    config = search_config(search={"trials": 1})
    found_by(tmp_path / "a", config, resume=True)
    with pytest.raises(ValueError, match="holds a search: continue with --resume"):
        found_by(tmp_path / "a", config)
    for other in (
        search_config(optim={"lr": 0.1}),
        search_config({"optim.lr": {"low": 1e-3, "high": 0.3}}),
        search_config(search={"reduction": 4}),
        search_config(train={"epochs": 8}),
    ):
        with pytest.raises(ValueError, match="the search was started with another config"):
            found_by(tmp_path / "a", other, resume=True)


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


def test_a_trial_that_diverges_or_contradicts_is_recorded_and_the_search_goes_on(tmp_path):
    ranges = {
        "optim.lr": {"choices": [0.02, 1e30]},
        "loss.name": {"choices": ["nssa", "margin"]},
        "loss.alpha": {"choices": [1.0, 0.5]},
    }
    config = search_config(ranges, search={"trials": 8})
    found = found_by(tmp_path / "a", config)
    assert len(found.all) == 8  # each combination once
    for trial in found.all:
        values = trial.values
        if values["loss.name"] == "margin" and values["loss.alpha"] == 0.5:
            assert (trial.outcome, trial.mrr) == ("contradicts", None)
            assert "loss.alpha: only nssa has it" in trial.message
        elif values["optim.lr"] == 1e30:
            assert trial.outcome == "diverged"
            assert "try a lower optim.lr" in trial.message
        else:
            assert trial.outcome in ("done", "stopped")
    assert {"contradicts", "diverged", "done"} <= {trial.outcome for trial in found.all}
    assert found.best.outcome == "done"
    assert found.summary().startswith("8 trials: ")
    more = search_config(ranges, search={"trials": 9})
    assert without_times(found_by(tmp_path / "a", more, resume=True)) == without_times(found)


def test_a_trial_whose_queries_overflow_is_recorded_and_a_search_resumes(tmp_path, monkeypatch):
    """Tables stay finite, in training and where the ranks of a rung overflow first."""
    ranges = {"model.init_range": {"choices": [0.1, 1e18, 1e30]}}
    sections = {"model": {"name": "distmult", "gamma": 12.0}, "loss": {"name": "margin"}}
    config = search_config(ranges, search={"trials": 3}, **sections)
    end = Study.end

    def killed(self, *arguments, **options):
        raise Killed

    monkeypatch.setattr(Study, "end", killed)
    for _ in range(2):
        with pytest.raises(Killed):
            found_by(tmp_path / "a", config, resume=True)
    monkeypatch.setattr(Study, "end", end)
    found = found_by(tmp_path / "a", config, resume=True)
    outcomes = {trial.values["model.init_range"]: trial.outcome for trial in found.all}
    assert outcomes == {0.1: "done", 1e18: "diverged", 1e30: "diverged"}
    assert all("all tables are finite" in it.message for it in found.all if it.outcome != "done")


def test_an_evaluation_at_a_rung_that_overflows_is_a_divergence(tmp_path, monkeypatch):
    ranks = Placement.ranks

    def overflown(self, model, *arguments):
        model.entity.detach().fill_(1e30)
        model.relation.detach().fill_(1e30)
        return ranks(self, model, *arguments)

    monkeypatch.setattr(Placement, "ranks", overflown)
    sections = {"model": {"name": "distmult", "gamma": 12.0}, "train": {"eval_every": 0}}
    ranges = {"optim.lr": {"choices": [1e-3]}}
    config = search_config(ranges, search={"trials": 1}, **sections)
    (trial,) = found_by(tmp_path / "a", config).all
    assert trial.outcome == "diverged"
    assert trial.message.startswith("ranks of valid cannot be computed at step")


def test_a_trial_without_memory_is_recorded(tmp_path, monkeypatch):
    def step(self, number):
        raise MemoryError("a table of 1 TiB")

    monkeypatch.setattr(Run, "_step", step)
    (trial,) = found_by(tmp_path / "a", search_config(search={"trials": 1})).all
    assert (trial.outcome, trial.message) == ("out of memory", "a table of 1 TiB")


def test_a_search_that_comes_to_nothing_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(searching, "_FRUITLESS", 3)
    config = search_config({"optim.lr": {"low": 1e30, "high": 1e35, "log": True}})
    with pytest.raises(ValueError, match=r"the last 3 trials came to nothing.*diverged: the loss"):
        found_by(tmp_path / "a", config)


def test_time_that_is_up_leaves_a_trial_open_and_more_time_goes_on(searched, tmp_path, monkeypatch):
    clock = 0.0

    def monotonic():
        nonlocal clock
        clock += 1.0  # a second per look
        return clock

    with monkeypatch.context() as patched:
        patched.setattr(searching.time, "monotonic", monotonic)
        short = found_by(tmp_path / "a", search_config(search={"minutes": 0.2}))
    assert short.all[-1].outcome is Outcome.open
    assert len(short.all) == 1
    longer = search_config(search={"minutes": 60, "trials": 2})
    found = found_by(tmp_path / "a", longer, resume=True)
    assert without_times(found) == without_times(searched[1])[:2]


def test_rungs_count_steps_where_the_config_does(tmp_path):
    train = {"epochs": None, "steps": 9, "eval_every": 0}
    search_section = {"trials": 1, "reduction": 3, "first_rung": 2}
    found = found_by(tmp_path / "a", search_config(train=train, search=search_section))
    assert (found.unit, list(found.all[0].rungs)) == ("steps", [2, 6, 9])


def test_the_picture_shows_every_key(searched, tmp_path):
    pytest.importorskip("matplotlib")
    png, svg = plot_trials(searched[0], tmp_path / "picture")
    assert png.read_bytes()[:4] == b"\x89PNG"
    text = svg.read_text()
    assert all(key in text for key in ("epochs", "optim.lr", "model.base_dim", "data.neg_size"))


def _killed(folder, moment):
    """Let the child kill itself in the middle of what the search writes."""
    report, seen = Study.report, 0

    def counted(self, *arguments):
        nonlocal seen
        seen += 1
        if seen == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        report(self, *arguments)

    Study.report = counted
    found_by(folder, resume=True)


@pytest.mark.slow
def test_a_search_that_is_killed_again_and_again_ends_as_if_nobody_had(searched, tmp_path):
    for moment in (1, 2, 4, 3):
        child = _PROCESSES.Process(target=_killed, args=(tmp_path / "a", moment))
        child.start()
        child.join(200)
        assert child.exitcode == -signal.SIGKILL
    found = found_by(tmp_path / "a", resume=True)
    assert without_times(found) == without_times(searched[1])
