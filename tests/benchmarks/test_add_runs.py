"""benchmarks/add_runs.py: runs become rows, and nothing of the machine's folders does."""

import hashlib
import json
import shutil
from functools import partial

import pytest
import yaml

from support.paths import ROOT

CONFIG = ROOT / "configs/wn18rr/rotate_fast.yaml"
TEST = {"mrr": 0.4712, "mr": 3340.4, "hits@1": 0.43, "hits@3": 0.49, "hits@10": 0.55, "amr": 0.2}


@pytest.fixture
def add(call, tmp_path, page):
    """Run the script with arguments, on results and a page of its own."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "cpu-train-speed.json").write_text('{"rows": []}')
    return partial(call, "add_runs.py", "--results", tmp_path / "results", "--page", page)


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "results.md"
    path.write_text("# Before\n<!-- results:begin -->\n<!-- results:end -->\nAfter\n")
    return path


def write_files(folder, ending="\n"):
    """Write the files of triples of a graph."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_bytes(f"a\tr\t{split}{ending}".encode())


@pytest.fixture
def finished(tmp_path):
    """Return a run folder of configs/wn18rr/rotate_fast.yaml, as the trainer leaves it."""
    folder = tmp_path / "wn18rr-rotate_fast"
    folder.mkdir()
    result = {
        "test": TEST,
        "seconds_training": 361.0,
        "seconds_evaluating": 9.5,
        "steps": 15000,
        "machine": "Processor X, 2 cores",
        "threads": 2,
        "versions": {"python": "3.11.7", "kgfast": "0.1.0"},
        "command": f"kgfast train --config {ROOT}/configs/wn18rr/rotate_fast.yaml "
        f"--set dataset.root={tmp_path}/data",
    }
    (folder / "result.json").write_text(json.dumps(result))
    values = yaml.safe_load(CONFIG.read_text())
    values["dataset"]["root"] = values["train"]["out_dir"] = str(tmp_path / "data")
    values["seed"] = 7
    write_files(tmp_path / "data" / "wn18rr")
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    rows = []
    for step in range(1000, 15001, 1000):
        rows.append({"step": step, "loss": 0.5})
        rows.append({"step": step, "split": "valid", "mrr": step / 1e5, "hits@10": 0.5})
    rows.append({"step": 15000, "split": "test", **TEST})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_seeds_become_a_row_of_means(add, tmp_path, finished, page):
    of_seeds = tmp_path / "seeds" / finished.name
    for seed, mrr in ((10, 0.49), (9, 0.46)):
        folder = shutil.copytree(finished, of_seeds / f"seed-{seed}")
        result = json.loads((folder / "result.json").read_text())
        result["test"]["mrr"] = mrr
        (folder / "result.json").write_text(json.dumps(result))
    done = add(of_seeds)
    assert done.returncode == 0, done.stderr
    assert "mean of 2 seeds, MRR 0.4600 to 0.4900 | 0.475 | 0.430 |" in page.read_text()
    (copy,) = (tmp_path / "results" / "runs").glob("*.json")
    assert json.loads(copy.read_text())["test"]["mrr"] == 0.46


def test_a_run_becomes_a_row(add, tmp_path, finished, page):
    done = add(finished)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.startswith("# Before\n")
    assert text.endswith("-->\nAfter\n")
    assert (
        "| [wn18rr/rotate_fast](../../configs/wn18rr/rotate_fast.yaml) "
        "| 0.471 | 0.430 | 0.490 | 0.550 | 3,340 | 15,000 | 6 min |" in text
    )
    assert "machine (1 or 2 threads of Processor X), versions and notes." in text
    (copy,) = (tmp_path / "results" / "runs").glob("*.json")
    assert copy.name == "wn18rr-rotate_fast.json"
    assert str(tmp_path) not in copy.read_text()
    assert str(tmp_path) not in text
    saved = json.loads(copy.read_text())
    command = "kgfast train --config configs/wn18rr/rotate_fast.yaml --set dataset.root=DIR"
    assert saved["command"] == command
    assert len(saved["curve"]) == 15
    assert saved["seed"] == 7
    assert saved["data"]["name"] == "wn18rr"
    expected = hashlib.sha256(b"a\tr\tvalid\n").hexdigest()
    assert saved["data"]["sha256"]["valid.txt"] == expected
    assert saved["values"]["model"]["base_dim"] == 128


def test_sub_models_have_a_row_each_and_runs_a_note(add, tmp_path, finished, page):
    result = json.loads((finished / "result.json").read_text())
    result["test_of_submodels"] = {"64": TEST | {"mrr": 0.25}, "128": TEST}
    (finished / "result.json").write_text(json.dumps(result))
    rows = [
        {"step": 15000, "split": "valid", "dim": dim, "mrr": dim / 1e3, "hits@10": 0.5}
        for dim in (64, 128)
    ]
    (finished / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert add(finished, "--note", "on a busy machine").returncode == 0
    text = page.read_text()
    assert "rotate_fast.yaml), dim 64 | 0.250 |" in text
    assert "rotate_fast.yaml), dim 128 | 0.471 |" in text
    (copy,) = (tmp_path / "results" / "runs").glob("*.json")
    assert json.loads(copy.read_text())["note"] == "on a busy machine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-run", "must be named after its config, one of "),
        ("wn18rr-rotate", "has the run ended?"),
    ],
)
def test_what_cannot_be_added(add, tmp_path, name, message):
    (tmp_path / name).mkdir()
    done = add(tmp_path / name)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_line_ends_change_no_checksum(load, tmp_path):
    files = load("lib.graph_files")
    for name, ending in (("one", "\n"), ("two", "\r\n"), ("other", " \n")):
        write_files(tmp_path / name, ending)
    sums = {name: files.checksums(tmp_path / name) for name in ("one", "two", "other")}
    assert sums["one"] == sums["two"]
    files.check(tmp_path / "two", sums["one"])
    with pytest.raises(
        ValueError, match=r"train\.txt: its SHA-256, with line ends of one byte, is"
    ):
        files.check(tmp_path / "other", sums["one"])
