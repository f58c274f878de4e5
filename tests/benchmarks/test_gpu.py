"""`make gpu`, as far as a machine without a GPU can run it."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from kgfast.kernels.scores import SCORES
from support.paths import ROOT, TESTS

ABSENT = ("pydantic", "pydantic_core", "pykeen", "rich", "typer", "yaml", "safetensors")
ABSENT += ("setuptools", "hypothesis", "pandas", "matplotlib")


@pytest.fixture
def gpu(load):
    return load("gpu")


@pytest.fixture
def run(gpu, tmp_path):
    return gpu.Run(str(tmp_path / "h200"), {"A": "works"})


def rehearse(folder, *arguments):
    """Return the summary of a rehearsal by a python that has torch, Triton and numpy alone."""
    pytest.importorskip("triton")
    if "TRITON_INTERPRET" in os.environ:
        pytest.skip("Triton compiles here")
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({ABSENT}))\n"
    (folder / "sitecustomize.py").write_text(blocked)
    out = folder / "out"
    command = [sys.executable, "benchmarks/gpu.py", "--rehearse", "--out", str(out)]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert len(list(out.iterdir())) <= 8, done.stderr
    summary = json.loads((out / "rehearsal-summary.json").read_text())
    assert summary["void"]
    lines = (out / "rehearsal-cases.jsonl").read_text().splitlines()
    summary["cases"] = [json.loads(line) for line in lines]
    summary["log"] = (out / "rehearsal-log.txt").read_text()
    return summary


def test_kernels_are_checked_where_torch_and_triton_are_alone(tmp_path):
    found = rehearse(tmp_path, "--steps", "checks", "tests", "extension")
    verdicts = {name: it["verdict"] for name, it in found["steps"].items()}
    assert verdicts == {
        "checks": "good",
        "tests": "left out: needs hypothesis",
        "extension": "left out: needs setuptools",
    }, found["log"][-2000:]
    assert len(found["cases"]) == 4
    assert all(it["void"] and "relative_error" not in it for it in found["cases"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rehearsal_goes_through_all_steps(gpu, tmp_path):
    found = rehearse(tmp_path, "--minutes", 14)
    verdicts = {name: it["verdict"] for name, it in found["steps"].items()}
    assert tuple(verdicts) == gpu.STEPS
    for step in ("kernels", "checks", "headlines", *gpu.BENCHMARKS):
        assert verdicts.pop(step) == "good", found["log"][-2000:]
    assert all(it.startswith("left out: ") for it in verdicts.values())
    timed = [it for it in found["cases"] if "seconds" in it]
    assert len(timed) == 6
    assert all(it["void"] for it in found["cases"])


def test_there_is_a_step_for_each_name_and_a_case_for_each_score(gpu, run, tmp_path):
    steps = run.steps(tmp_path)
    assert tuple(steps) == gpu.STEPS
    assert steps.keys() >= gpu.NEEDS.keys()
    assert sorted(gpu.SCORES) == sorted(SCORES)
    files = set()
    for _, work in list(steps.values())[3:]:
        for word in work.args[0]:
            if word.startswith(("tests/", "benchmarks/")):
                assert (ROOT / word).exists(), word
            if word.endswith(".json"):
                files.add(word)
    assert len(files) + len(("summary", "cases", "log")) <= 8


def test_all_tests_that_wait_for_a_device_are_run(run, tmp_path):
    """Tests of engines say so when they skip; those that mark themselves are in `tests/gpu`."""
    words = run.steps(tmp_path)["tests"][1].args[0]
    calls = re.compile(r"^@(?:engines\(|on_triton\b)", re.MULTILINE)
    files = [it for it in TESTS.rglob("test_*.py") if calls.search(it.read_text())]
    assert len(files) > 10
    assert [it.name for it in files if it.relative_to(ROOT).as_posix() not in words] == []


@pytest.mark.parametrize(
    ("limit", "found", "error"),
    [
        (0.0, 1.0, None),
        (0.0, 2.0, "3 of 3 differ"),
        (1e-4, 1.00001, None),
        (1e-4, 1.1, "relative error 1.0e-01, allowed 1e-04"),
        (1e-4, float("nan"), "relative error nan"),
    ],
)
def test_a_check_compares_with_the_reference(load, limit, found, error):
    cases, results = load("lib.gpu_cases"), iter([found, 1.0])

    def call(problem):
        return [torch.full((3,), next(results), dtype=problem.queries.dtype)]

    if error is None:
        cases._compare(call, "dot", 8, limit)
    else:
        with pytest.raises(AssertionError, match=error):
            cases._compare(call, "dot", 8, limit)


def test_checks_of_a_score_hold_for_the_backend_of_the_host(load):
    cases = load("lib.gpu_cases")
    found = {name: call() for name, call in cases.checks("rotate")}
    assert len(found) >= 22
    assert all(it.get("relative_error", 0) <= cases.LOSSES for it in found.values())


def program(folder, text):
    (folder / "cases.py").write_text(f"import sys, os, time, json\n{text}")
    return [sys.executable, str(folder / "cases.py")]


CASES = """
for place in range(int(sys.argv[3]), 4):
    line = {"step": sys.argv[1], "case": str(place)}
    print(json.dumps(line | {"begins": place}), flush=True)
    if place == 1:
        os.kill(os.getpid(), 11)
    if place == 2:
        print(json.dumps(line | {"error": "of the device"}), flush=True)
        sys.exit(3)
    print(json.dumps(line), flush=True)
"""


def test_a_case_that_ends_its_process_ends_no_other(gpu, run, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "PROGRAM", program(tmp_path, CASES))
    outcome = run.cases("checks", ["dot"], 60)
    lines = [json.loads(it) for it in (tmp_path / "h200-cases.jsonl").read_text().splitlines()]
    assert [it["case"] for it in lines] == ["0", "1", "2", "3"]
    errors = [it.get("error") for it in lines]
    assert errors == [None, "ended its process: exit code -11", "of the device", None]
    assert outcome.verdict == "FAILED: 2 of 4 cases"
    assert outcome.is_bad


def test_results_of_steps_that_do_not_run_again_stay(gpu, tmp_path):
    summary, cases = tmp_path / "summary.json", tmp_path / "cases.jsonl"
    assert gpu.kept(summary, cases, ["checks"]) == {}
    cases.write_text('{"step": "kernels"}\n{"step": "checks"}\n')
    summary.write_text('{"steps": {"kernels": 1, "checks": 2, "tests": 3}}')
    assert gpu.kept(summary, cases, ["checks", "headlines"]) == {"kernels": 1, "tests": 3}
    assert cases.read_text() == '{"step": "kernels"}\n'


def test_a_command_says_how_it_ended(gpu, run, monkeypatch):
    monkeypatch.setattr(gpu, "PATIENCE", 0.5)
    sleeps = "import subprocess; print('begins', flush=True); subprocess.run(['sleep', '60'])"

    def verdict(code, seconds=60):
        return run.command([sys.executable, "-c", code], seconds).verdict

    started = time.monotonic()
    assert verdict("import os, sys; assert os.environ['A'] + sys.stdin.read() == 'works'") == "good"
    assert verdict("print('broken'); raise SystemExit(3)") == "FAILED: exit code 3"
    assert verdict(sleeps, 1.0) == "STOPPED: over its time"
    assert time.monotonic() - started < 30
    assert run.command(["no-such-tool"], 9).verdict == "left out: no-such-tool is not installed"
    with run.log() as log:
        assert "broken\n" in Path(log.name).read_text()


def test_without_a_gpu_it_says_so(gpu, monkeypatch):
    """And without torch, in one line each."""
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"sees no CUDA or ROCm device here.*--rehearse"):
        gpu.main()
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="has no torch; run this by a python that has"):
        gpu.main()
