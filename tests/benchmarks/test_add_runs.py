"""benchmarks/add_runs.py: runs become rows, and nothing of the machine's folders does."""

import doctest
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


def test_a_run_becomes_a_row(add, tmp_path, finished, page):
    done = add(finished)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.startswith("# Before\n")
    assert text.endswith("-->\nAfter\n")
    assert (
        "| [wn18rr/rotate_fast](../../configs/wn18rr/rotate_fast.yaml) "
        "| 0.471 | 0.430 | 0.490 | 0.550 | 3,340 | 15,000 | 6 min | MRR >= 0.46: met, 8 min: met |"
        in text
    )
    command = "kgfast train --config configs/wn18rr/rotate_fast.yaml --set dataset.root=DIR"
    assert f"- `{command}` on Processor X, 2 cores, 2 threads: python 3.11.7, kgfast" in text
    assert "wn18rr/rotate_fast: 2,000: 0.020, 4,000: 0.040" in text
    assert "14,000: 0.140, 15,000: 0.150" in text
    (copy,) = (tmp_path / "results" / "runs").glob("*.json")
    assert copy.name == "wn18rr-rotate_fast.json"
    assert str(tmp_path) not in copy.read_text()
    assert str(tmp_path) not in text
    saved = json.loads(copy.read_text())
    assert len(saved["curve"]) == 15
    assert saved["seed"] == 7
    assert saved["data"]["name"] == "wn18rr"
    expected = hashlib.sha256(b"a\tr\tvalid\n").hexdigest()
    assert saved["data"]["sha256"]["valid.txt"] == expected
    assert saved["values"]["model"]["base_dim"] == 128


def test_a_run_that_ended_before_its_last_step_says_so(add, tmp_path, finished, page):
    result = json.loads((finished / "result.json").read_text())
    (finished / "result.json").write_text(json.dumps(result | {"planned_steps": 20000}))
    assert add(finished).returncode == 0
    assert "| 3,340 | 15,000 of 20,000 | 6 min |" in page.read_text()


@pytest.mark.parametrize(
    ("seconds", "cpu_seconds", "training", "verdict"),
    [
        (1200.0, 400.0, "20 min, 7 min of CPU", "8 min of CPU: met"),
        (400.0, 700.0, "7 min, 12 min of CPU", "8 min: met"),
        (600.0, 700.0, "10 min, 12 min of CPU", "8 min: missed"),
    ],
)
def test_the_fewer_minutes_of_clock_and_cpu_count(
    add, finished, page, seconds, cpu_seconds, training, verdict
):
    result = json.loads((finished / "result.json").read_text())
    times = {"seconds_training": seconds, "seconds_cpu": cpu_seconds}
    (finished / "result.json").write_text(json.dumps(result | times))
    assert add(finished).returncode == 0
    assert f"| {training} | MRR >= 0.46: met, {verdict} |" in page.read_text()


def test_codex_stands_beside_published_figures(add, tmp_path, finished, page):
    run = finished.rename(tmp_path / "codex-m-transe")
    values = yaml.safe_load((ROOT / "configs/codex-m/transe.yaml").read_text())
    values["dataset"]["root"] = str(tmp_path / "data")
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    write_files(tmp_path / "data" / "codex-m")
    assert add(run).returncode == 0
    text = page.read_text()
    assert "| codex-m/transe | 0.471 | 0.430 | 0.550 | 0.303 | 0.223 | 0.454 | Safavi" in text
    assert "| codex-m/tucker |  |  |  | 0.328 | 0.259 | 0.458 | Safavi" in text


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
    assert "wn18rr/rotate_fast: 15,000: 0.128\n" in text
    assert "2 threads (on a busy machine): " in text


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


def test_other_values_of_a_config_stand_in_a_table(add, tmp_path, finished, page):
    values = yaml.safe_load((finished / "config.yaml").read_text())
    other = tmp_path / "other"
    other.mkdir()
    for name in ("result.json", "metrics.jsonl"):
        (other / name).write_text((finished / name).read_text())
    values["model"]["gamma"], values["train"]["out_dir"] = 4.5, "elsewhere"
    (other / "config.yaml").write_text(yaml.safe_dump(values))
    of = ("--variants-of", CONFIG)
    done = add(finished, other, *of)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "| `model.gamma` | steps | last MRR on valid | MRR on test |" in text
    assert "| 6.0 | 15,000 | 0.1500 | 0.4712 |\n| 4.5 | 15,000 | 0.1500 | 0.4712 |" in text
    assert "rotate_fast.yaml) with other values; in all rows `model.base_dim=128`, " in text
    (copy,) = (tmp_path / "results" / "runs" / "variants").glob("*.json")
    assert str(tmp_path) not in copy.read_text()
    command = "kgfast train --config configs/wn18rr/rotate_fast.yaml --set dataset.root=DIR"
    assert [it["command"] for it in json.loads(copy.read_text())["variants"]] == [command] * 2
    (other / "result.json").unlink()
    done = add(other, *of)
    assert (done.returncode, "result.json" in done.stderr) == (1, True)


def test_the_run_of_a_config_is_no_variant(add, finished):
    assert add(finished).returncode == 0
    done = add(finished, "--variants-of", CONFIG)
    assert done.returncode == 1
    assert "no variant, but values and steps of wn18rr-rotate_fast.json" in done.stderr


@pytest.fixture
def other(tmp_path, finished):
    """Return a run with another gamma than `finished`, on another machine."""
    folder = tmp_path / "other" / finished.name
    shutil.copytree(finished, folder)
    values = yaml.safe_load((folder / "config.yaml").read_text())
    values["model"]["gamma"] = 4.5
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    result = json.loads((folder / "result.json").read_text())
    result |= {"machine": "Processor Y", "test": TEST | {"mrr": 0.4812}}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_a_row_that_is_replaced_becomes_a_variant(add, tmp_path, finished, other, page):
    variants = tmp_path / "results" / "runs" / "variants" / "wn18rr-rotate_fast.json"
    assert add(finished).returncode == add(finished).returncode == 0
    assert not variants.exists()  # values and steps are the same
    assert add(other).returncode == 0
    assert "| 0.481 | 0.430 |" in page.read_text()
    assert "| 6.0 | 15,000 | 0.1500 | 0.4712 |" in page.read_text()
    (former,) = json.loads(variants.read_text())["variants"]
    assert add(finished, "--variants-of", CONFIG).returncode == 0
    assert json.loads(variants.read_text())["variants"] == [former]
    assert add(finished).returncode == 0  # a row again, and no variant
    assert "| 4.5 | 15,000 | 0.1500 | 0.4812 |" in page.read_text()
    assert "| 6.0 | 15,000 | 0.1500 | 0.4712 |" not in page.read_text()
    assert add(other).returncode == 0
    variants.unlink()
    assert add(finished).returncode == 0
    assert len(json.loads(variants.read_text())["variants"]) == 1


def test_a_variant_that_becomes_the_row_leaves_the_variants(add, tmp_path, finished, other, page):
    assert add(other, "--variants-of", CONFIG).returncode == 0
    variants = tmp_path / "results" / "runs" / "variants" / "wn18rr-rotate_fast.json"
    assert variants.exists()
    assert add(other).returncode == 0
    assert not variants.exists()
    assert "with other values" not in page.read_text()


def test_variants_are_added_to_those_of_before_once(add, tmp_path, finished, other):
    variants = tmp_path / "results" / "runs" / "variants" / "wn18rr-rotate_fast.json"
    for run in (finished, other, finished):
        assert add(run, "--variants-of", CONFIG).returncode == 0
    gammas = [it["values"]["model.gamma"] for it in json.loads(variants.read_text())["variants"]]
    assert gammas == [4.5, 6.0]


def test_variants_of_two_machines_name_both(add, finished, other, page):
    assert add(finished, other, "--variants-of", CONFIG).returncode == 0
    text = page.read_text()
    assert "\nRow 1 on Processor X, 2 cores, 2 threads: python 3.11.7, kgfast 0.1.0; " in text
    assert "row 2 on Processor Y, 2 threads: python 3.11.7, kgfast 0.1.0.\n" in text


def test_a_variant_of_a_version_without_a_key_has_its_default(add, finished, other, page):
    values = yaml.safe_load((other / "config.yaml").read_text())
    values["data"]["subsampling"] = True
    (other / "config.yaml").write_text(yaml.safe_dump(values))
    assert "subsampling" not in (finished / "config.yaml").read_text()
    assert add(finished, other, "--variants-of", CONFIG).returncode == 0
    assert "| 6.0 | false | 15,000 | 0.1500 |" in page.read_text()
    assert "| 4.5 | true | 15,000 | 0.1500 |" in page.read_text()


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


def test_earlier_files_get_checksums_once_and_say_so(add, tmp_path, finished, other):
    assert add(other, "--variants-of", CONFIG).returncode == add(finished).returncode == 0
    runs = tmp_path / "results" / "runs"
    for path in (runs / "wn18rr-rotate_fast.json", runs / "variants" / "wn18rr-rotate_fast.json"):
        before = json.loads(path.read_text())
        earlier = {name: it for name, it in before.items() if name not in ("data", "seed")}
        path.write_text(json.dumps(earlier))
        done = add("--checksums", tmp_path / "data")
        assert (done.returncode, done.stdout.splitlines()) == (0, [str(path)])
        after = json.loads(path.read_text())
        note = after["data"].pop("note")
        assert after == before
        assert note.endswith("of a copy of the data, not by the run")
    assert add("--checksums", tmp_path / "data").stdout == ""
    assert add("--checksums", tmp_path / "nowhere").returncode == 0  # nothing is missing
    assert add().returncode == 2


def test_a_run_whose_data_are_gone_is_not_added(add, tmp_path, finished):
    (tmp_path / "data" / "wn18rr" / "test.txt").unlink()
    done = add(finished)
    assert done.returncode == 1
    assert "test.txt" in done.stderr


def test_its_doctests(load):
    for name in ("add_runs", "lib.pages.runs"):
        results = doctest.testmod(load(name))
        assert (results.failed, results.attempted) == (0, 1), name
