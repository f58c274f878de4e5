"""``kgfast plan``."""

import json
import re
import shlex
from itertools import product

import pytest

from kgfast.extras.planning.devices import rates_of
from kgfast.extras.planning.rates import save_rates
from support.commands import run
from support.paths import ROOT

SIZES = ("--entities", "91e6", "--dim", "128", "--dtype", "float16", "--queries", "15000")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KGFAST_DATA", str(tmp_path))
    return tmp_path


def plan(*arguments, code=0):
    done = run("plan", *arguments)
    assert done.exit_code == code, done.output
    return done


def test_the_plan_of_the_issue():
    options = ("--workers", "8", "--device", "h200", "--disk", "2GB/s", "--network", "25Gb/s")
    found = json.loads(plan(*SIZES, *options, "--format", "json").stdout)
    assert found["table_bytes"] == 91_000_000 * 512
    assert found["binding"] == "compute"
    assert found["compute_seconds"] == pytest.approx(91e6 / 8 * 30_000 * 128 / 4e12, rel=0.01)
    assert found["load_seconds"] == pytest.approx(91e6 * 512 / 8 / 2e9)
    assert "not measured" in found["source"]
    text = plan(*SIZES, *options).stdout
    for line in ("table    46.6 GB in all, in memory", "binding  compute", "network "):
        assert line in text


def test_options_change_the_plan():
    device = (*SIZES, "--device", "h200", "--format", "json")

    def found(*options):
        return json.loads(plan(*device, *options).stdout)

    whole = found()
    assert found("--side", "tail")["compute_seconds"] < 0.51 * whole["compute_seconds"]
    assert found("--known", "6e8")["memory_bytes"] > whole["memory_bytes"] + 10**10
    streamed = found("--from-file", "--disk", "1GB/s", "--max-memory", "100MiB")
    assert streamed["streamed"]
    assert streamed["passes"] > 1
    assert streamed["memory_bytes"] < 2 * 10**8
    assert found("--model", "transe-l2")["compute_seconds"] < whole["compute_seconds"]
    assert found("--top", "10")["binding"] == "compute"


def test_without_calibration_memory_is_said_and_rates_are_marked():
    text = plan(*SIZES).stdout
    assert "memory   421.7 MB, of which 154.4 MB the process\n" in text
    assert "rates    defaults, not measured here: " in text
    assert "kgfast plan --calibrate" in text
    for dtype, model, top in product(("float16", "float64"), ("transe", "complex"), ((), ("5",))):
        options = ("--dtype", dtype, "--model", model, *(it for k in top for it in ("--top", k)))
        found = json.loads(plan(*SIZES, *options, "--format", "json").stdout)
        assert found["memory_bytes"] > found["process_bytes"] == 154_439_680


def test_rates_that_cannot_be_read_are_said_and_replaced(cache):
    (cache / "rates.json").write_text("{}")
    done = plan(*SIZES)
    assert "warning: " in done.stderr
    assert "rates.json: not measured rates of this version" in done.stderr
    assert "rates    defaults, not measured here" in done.stdout


def test_the_page_of_scale_plans_what_it_says_was_measured():
    """The command plans the ranking of the sentence below it, and says its memory."""
    text = (ROOT / "docs/explanation/scale.md").read_text()
    (line,) = re.findall(r"^    kgfast plan (.*--from-file)$", text, flags=re.MULTILINE)
    found = json.loads(plan(*shlex.split(line), "--format", "json").stdout)
    rows = json.loads((ROOT / "benchmarks/results/cpu-scale.json").read_text())["rows"]
    (row,) = (it for it in rows if it["section"] == "stream" and it["entities"] > 9e7)
    assert found["table_bytes"] == row["file_bytes"]
    assert found["memory_bytes"] == pytest.approx(row["anonymous_bytes"], rel=0.01)
    said = f"{row['anonymous_bytes'] / 1e6:.0f} MB"
    assert f"This plan says {said}" in text
    assert f"ranked for {row['queries']} queries in {said}" in text


def test_what_is_missing_or_wrong():
    assert "a plan needs --dim, --queries" in plan("--entities", "5", code=2).output
    assert "a plan needs" in plan(code=2).output
    device = (*SIZES, "--device", "h200")
    assert "relations are few" in plan(*device, "--side", "relation", code=2).output
    assert "a rate is like 2GB/s" in plan(*device, "--disk", "2", code=2).output


def test_measured_rates_serve_the_next_call(monkeypatch):
    from kgfast.extras.planning import calibration

    monkeypatch.setattr(calibration, "calibrate", lambda folder: rates_of("h200"))
    said = plan("--calibrate").stderr
    assert re.search(r"^measured in .* s, stored in .*rates\.json$", said, flags=re.MULTILINE)
    assert json.loads(plan(*SIZES, "--format", "json").stdout)["binding"] == "compute"
    save_rates(rates_of("a100"))
    assert "A100" in plan(*SIZES, "--in-memory").stdout
