"""benchmarks/reproduce.py: rows of docs/reference/results.md, trained again from their files."""

import json
import re
import sys
from types import SimpleNamespace

import pytest
import yaml

from kgfast.training import Config
from support.commands import run
from support.paths import BENCHMARKS, ROOT

RUNS = sorted((BENCHMARKS / "results" / "runs").glob("*.json"))


def train_files(folder):
    """Write a graph in which train.txt names every entity."""
    folder.mkdir(parents=True)
    edges = [f"e{i}\tr{i % 2}\te{(3 * i + 1) % 20}\n" for i in range(60)]
    edges += [f"e{(i % 20)}\tr1\te{(i + 7) % 20}\n" for i in range(40)]
    rows = [re.sub(r"e(\d+)", lambda it: f"e{int(it[1]) % 20}", edge) for edge in edges]
    rows = list(dict.fromkeys(rows))
    for name, part in (("train", rows[8:]), ("valid", rows[:4]), ("test", rows[4:8])):
        (folder / f"{name}.txt").write_text("".join(part))


@pytest.fixture
def fake(load, tmp_path):
    """Write a results folder with one row of a tiny graph, and the graph."""
    train_files(tmp_path / "data" / "tiny")
    values = {
        "seed": 3,
        "dataset": {"name": "tiny"},
        "model": {"name": "distmult", "base_dim": 8},
        "train": {"steps": 6, "max_minutes": None},
        "data": {"train_bs": 16, "neg_size": 4},
        "optim": {"lr": 0.01},
    }
    row = {
        "config": "configs/tiny/fast.yaml",
        "seed": 3,
        "data": {
            "name": "tiny",
            "sha256": load("lib.graph_files").checksums(tmp_path / "data" / "tiny"),
        },
        "steps": 6,
        "planned_steps": 6,
        "seconds_training": 2.0,
        "seconds_evaluating": 1.0,
        "machine": "Processor X, 2 cores",
        "threads": 1,
        "versions": {"python": "3.0", "kgfast": "0.1.0"},
        "command": "kgfast train",
        "note": "on a quiet machine",
        "test": {"mrr": 0.5, "hits@1": 0.4, "hits@3": 0.5, "hits@10": 0.6, "mr": 3.0},
        "values": values,
    }
    path = tmp_path / "results" / "runs" / "tiny-fast.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(row))
    return path


@pytest.fixture
def reproduce(call, tmp_path, fake):
    def run(*arguments):
        paths = ("--results", tmp_path / "results", "--out", tmp_path / "out")
        return call("reproduce.py", *arguments, *paths)

    return run


@pytest.fixture
def in_this_process(load, monkeypatch):
    """Run what the script would start a process for, which loads torch and the trainer, here."""

    def run_here(words, check):
        assert words[:3] == [sys.executable, "-m", "kgfast"]
        return SimpleNamespace(returncode=run(*words[3:]).exit_code)

    def switch():
        monkeypatch.setattr(load("reproduce").subprocess, "run", run_here)

    return switch


def test_without_a_row_it_lists_them(reproduce):
    done = reproduce()
    assert done.returncode == 0
    assert re.search(r"tiny/fast +0\.5000 +2\.0 s +1 +tiny", done.stdout)


def test_a_row_is_trained_and_stands_beside_ours(reproduce, in_this_process, tmp_path):
    done = reproduce("tiny/fast", "--data", tmp_path / "data")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "tiny-fast" / "result.json").read_text())
    mrr = found["test"]["mrr"]
    assert re.search(rf"MRR +0\.5000 +{mrr:.4f} +{re.escape(f'{mrr - 0.5:+.4f}')}\n", done.stdout)
    assert re.search(r"steps +6 +6 +\+0\n", done.stdout)
    assert re.search(rf"training +2\.0 s +.*x {found['seconds_training'] / 2:.2f}\n", done.stdout)
    assert "The row's run: on a quiet machine." in done.stdout
    config = yaml.safe_load((tmp_path / "out" / "tiny-fast" / "config.yaml").read_text())
    assert (config["seed"], config["threads"]) == (3, 1)
    in_this_process()
    again = reproduce("tiny/fast", "--data", tmp_path / "data")
    assert again.returncode == 0
    later = json.loads((tmp_path / "out" / "tiny-fast" / "result.json").read_text())
    assert later == found, "a finished run is not trained again"


def test_other_data_and_unknown_rows_are_refused(reproduce, tmp_path):
    (tmp_path / "data" / "tiny" / "valid.txt").write_text("e1\tr0\te2\n")
    done = reproduce("tiny/fast", "--data", tmp_path / "data")
    assert done.returncode == 1
    assert "valid.txt: its SHA-256" in done.stderr
    assert not (tmp_path / "out" / "tiny-fast").exists()
    done = reproduce("tiny/fats")
    assert (done.returncode, "rows are tiny/fast" in done.stderr) == (1, True)
    done = reproduce("tiny/fast", "--data", tmp_path / "nowhere")
    assert (done.returncode, "no dataset tiny" in done.stderr) == (1, True)


def test_the_graph_is_downloaded_unless_a_folder_is_named(
    reproduce, in_this_process, monkeypatch, tmp_path
):
    asked = []

    def download(name, *, root):
        asked.append(name)
        train_files(root / "tiny")
        return type("Graph", (), {"name": "tiny"})

    monkeypatch.setattr("kgfast.datasets.download", download)
    in_this_process()
    done = reproduce("tiny/fast")
    assert done.returncode == 0, done.stderr
    assert asked == ["tiny"]


SHORT = {  # rows with fewer steps than planned, and what their config then has
    "fb15k237/complex_n3_rp": {"epochs": None, "steps": 10_900},
    "fb15k237/rescal_dura": {"epochs": None, "steps": 23_958},
    "wn18rr/rotate_med_rscf": {"epochs": None},
    "wn18rr/complex_n3_rp": {"epochs": 40},  # patience ended these
    "wn18rr/distmult": {"epochs": 30},
}


def test_a_row_that_a_clock_ended_ends_at_the_same_step(load):
    script = load("reproduce")
    rows = script.rows_of(BENCHMARKS / "results")
    short = {name: row for name, row in rows.items() if row["steps"] < row.get("planned_steps", 0)}
    assert short.keys() == SHORT.keys()
    for name, row in short.items():
        values = script.config_of(row, ROOT, 2)
        assert values["threads"] == 2
        train = values["train"]
        limits = ({} if SHORT[name]["epochs"] is None else {"steps": None}) | SHORT[name]
        assert {key: train.get(key) for key in limits} == limits, name


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_row_holds_what_it_takes(load, path):
    run = json.loads(path.read_text())
    assert (ROOT / run["config"]).is_file()
    assert run["seed"] == run["values"]["seed"]
    assert set(run["data"]["sha256"]) == {"train.txt", "valid.txt", "test.txt"}
    assert run["data"]["name"] == run["values"]["dataset"]["name"]
    assert {"python", "kgfast", "torch"} <= run["versions"].keys()
    assert run["command"].startswith("kgfast train")
    values = load("reproduce").config_of(run, ROOT, None)
    Config.from_dict(values)  # raises for a key or a value that is none
