"""`make gpu`, as far as a machine without a GPU can run it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from kgfast import ops
from support.paths import ROOT, TESTS

ABSENT = ("pydantic", "pydantic_core", "pykeen", "rich", "typer", "yaml", "safetensors")
ABSENT += ("setuptools", "hypothesis", "pandas", "matplotlib")


@pytest.fixture
def gpu(load):
    return load("gpu")


@pytest.fixture
def run(gpu, tmp_path):
    (tmp_path / "h200-log.txt").write_text("")
    return gpu.Run(str(tmp_path / "h200"), {"A": "works"})


compiles = pytest.mark.skipif(
    find_spec("triton") is None or "TRITON_INTERPRET" in os.environ, reason="Triton compiles here"
)


def rehearse(folder, *arguments, **environment):
    """Return the summary of a rehearsal by a python that has torch, Triton and numpy alone."""
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({ABSENT}))\n"
    (folder / "sitecustomize.py").write_text(blocked)
    out = folder / "out"
    command = [sys.executable, "benchmarks/gpu.py", "--rehearse", "--out", str(out)]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
    )
    assert len(list(out.iterdir())) >= 3, done.stderr
    summary = json.loads((out / "rehearsal-summary.json").read_text())
    assert summary["void"]
    lines = (out / "rehearsal-cases.jsonl").read_text().splitlines()
    summary["cases"] = [json.loads(line) for line in lines]
    summary["log"] = (out / "rehearsal-log.txt").read_text()
    return summary


@compiles
def test_cases_run_where_torch_and_triton_are_alone(tmp_path):
    found = rehearse(tmp_path, "--steps", "device", "cut", "failed")
    verdicts = {name: ended["verdict"] for name, ended in found["steps"].items()}
    assert verdicts == {"device": "good", "cut": "good", "failed": "left out: needs hypothesis"}, (
        found["log"][-2000:]
    )
    assert len(found["cases"]) == 4
    assert all(line["void"] for line in found["cases"])
    assert found["cases"][0]["key"]


@compiles
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_rehearsal_goes_through_the_times(gpu, tmp_path):
    found = rehearse(tmp_path)
    verdicts = {name: ended["verdict"] for name, ended in found["steps"].items()}
    assert verdicts.keys() == gpu.CALLS["times"][1].keys()
    assert verdicts.pop("failed").startswith("left out: ")
    assert verdicts.pop("captured") == "left out: needs pydantic and yaml"
    assert set(verdicts.values()) == {"good"}, found["log"][-2000:]
    times = Counter(line["step"] for line in found["cases"] if "seconds" in line)
    assert times == {"device": 1, "rates": 3, "headlines": 6, "batches": 16}
    assert all(line["void"] for line in found["cases"])
    found = rehearse(tmp_path, "--call", "checks")
    assert found["steps"]["memcheck"]["verdict"] == "good", found["log"][-2000:]


def key_of_roots(rates):
    """Return where Triton keeps the kernel of roots for an H200, as its binder describes it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.cache import get_cache_manager

    types = {"p_out": "*fp32", "turns": "i32", "LANES": "constexpr"}
    aligned = [["tt.divisibility", 16]]
    attributes = {(0,): aligned, (1,): aligned, (2,): []}
    source = ASTSource(rates.roots, types, {(2,): rates.LANES}, attributes)
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    return Path(get_cache_manager(code.hash).cache_dir)


@compiles
def test_carried_kernels_are_found_in_another_folder(gpu, load, monkeypatch, tmp_path):
    from triton import knobs

    hits, file = [], tmp_path / "cache.tgz"
    monkeypatch.setattr(
        knobs.compilation, "listener", lambda **said: hits.append(said["cache_hit"])
    )
    for folder in (tmp_path / "first", tmp_path / "second"):
        monkeypatch.setattr(knobs.cache, "dir", str(folder))
        if file.exists():
            gpu.unpack(file, folder)
            shutil.rmtree(tmp_path / "first")
        key_of_roots(load("lib.gpu_rates"))
        with tarfile.open(file, "w:gz") as packed:
            packed.add(folder, ".")
    assert hits == [False, True]


@compiles
@pytest.mark.slow
def test_kernels_made_without_a_gpu_are_those_of_a_gpu(load, tmp_path):
    file, steps = tmp_path / "cache.tgz", ("--steps", "device", "rates")
    subprocess.run([sys.executable, "tools/warm_cache.py", file, *steps], cwd=ROOT, check=True)
    with tarfile.open(file) as packed:
        assert f"./{key_of_roots(load('lib.gpu_rates')).name}" in packed.getnames()
    kernels = {"TRITON_CACHE_DIR": str(tmp_path / "kernels")}
    found = rehearse(tmp_path, *steps, "--rehearse", "full", "--cache", file, **kernels)
    assert found["cases"][0]["hit"]
    assert [line.get("compiled") for line in found["cases"]] == [None] * 5
    assert sum(line.get("cached", 0) for line in found["cases"]) == 3


def test_captured_steps_are_compared_with_eager_ones(load, monkeypatch):
    cases = load("lib.gpu_cases")
    sizes = {"ENTITIES": 60, "BATCH": 8, "DIM": 4, "POOL": 32}
    for name, value in (sizes | {"REHEARSES": True}).items():
        monkeypatch.setattr(cases, name, value)
    (_, shared), (_, per_row) = cases.captured()
    for call in (shared, per_row):
        assert call().keys() == {"seconds", "eager"}
    monkeypatch.setattr(torch, "equal", lambda *_: False)
    with pytest.raises(AssertionError, match="tables differ"):
        shared()


def test_calls_fit_their_limits_and_each_step_has_a_program(gpu, load):
    cases, commands = load("lib.gpu_cases"), gpu.commands_of_steps()
    for limit, steps in gpu.CALLS.values():
        assert sum(steps.values()) < limit
    for name in gpu.SECONDS:
        assert (name in commands) != (name in gpu.TIMES and callable(getattr(cases, name)))
    for command in commands.values():
        for word in command:
            if word.startswith(("tests/", "benchmarks/")):
                assert (ROOT / word.partition("::")[0]).exists(), word


def test_all_tests_that_wait_for_a_device_are_run(gpu):
    """Tests of engines say so when they skip; those that mark themselves are in `tests/gpu`."""
    commands = gpu.commands_of_steps()
    words = {*commands["checks"], *commands["tests"]}
    calls = re.compile(r"^@(?:engines\(|on_triton\b)", re.MULTILINE)
    files = [path for path in TESTS.rglob("test_*.py") if calls.search(path.read_text())]
    assert len(files) > 10
    assert [path.name for path in files if path.relative_to(ROOT).as_posix() not in words] == []


def test_tests_that_failed_on_a_device_run_again(gpu, run, monkeypatch, tmp_path):
    tests = gpu.failed_before()
    assert len(tests) >= 4
    for name in tests:
        path, _, function = name.partition("::")
        assert f"def {function.partition('[')[0]}(" in (ROOT / path).read_text()
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    command = gpu.commands_of_steps()["failed"]
    assert run.step("", command, 9)["verdict"] == "left out: no test failed before"


def test_integers_are_those_of_the_reference_and_of_the_file(load, monkeypatch, tmp_path):
    split = pytest.importorskip("kgfast.kernels.triton.host.split")
    cases = load("lib.gpu_cases")
    assert cases._same_integers("l1")["equal"] == 9 * 256
    stored = json.loads(cases.INTEGERS.read_text())
    assert stored["integers"].keys() == {*cases.QUERIES, cases.OF_GRAPH}
    assert len(stored["integers"][cases.OF_GRAPH]["greater"].split()) == 2 * 3134
    assert {"0", "1"} == {*stored["integers"]["rotate"]["equal"].split()}
    assert len({*stored["integers"][cases.HARD]["greater"].split()}) == len(split.BITS)
    greater = stored["integers"]["l1"]["greater"].split()
    stored["integers"]["l1"]["greater"] = " ".join([str(int(greater[0]) + 1), *greater[1:]])
    monkeypatch.setattr(cases, "INTEGERS", tmp_path / "integers.json")
    cases.INTEGERS.write_text(json.dumps(stored))
    with pytest.raises(AssertionError, match="greater: 1 differ"):
        cases._same_integers("l1")
    monkeypatch.setattr(cases, "ENTITIES", 300)
    for split, head in (("train", "a"), ("valid", "b"), ("test", "c")):
        (tmp_path / f"{split}.txt").write_text(f"{head}\tr\ta\n{head}\tr\tb\n{head}\tr\tc\n")
    monkeypatch.setattr(cases, "GRAPH", str(tmp_path))
    for name in (*cases.QUERIES, cases.OF_GRAPH):
        monkeypatch.setitem(cases.QUERIES, name, (16, 32))
        ours = cases._counted(name)
        with ops.use_backend("reference"):
            assert cases._counted(name) == ours


@compiles
def test_kernels_of_rates_make_what_is_counted(load):
    """A thread of 128 makes its numbers' roots, or minima, in a turn."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    rates = load("lib.gpu_rates")
    types = {"p_out": "*fp32", "turns": "i32", "LANES": "constexpr"}
    for name, instruction in (("roots", "sqrt.approx"), ("halves", "min.f16x2")):
        source = ASTSource(getattr(rates, name), types, {"LANES": rates.LANES})
        code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        assert code.asm["ptx"].count(instruction) == rates.LANES // 128


def test_the_page_has_times_and_outcomes(load, tmp_path):
    shutil.copy(ROOT / "benchmarks" / "results" / "static-step-counts.json", tmp_path)
    timing = {"median": 0.0125, "min": 0.012, "max": 0.013, "rounds": 9}
    lines = [{"step": "rates", "case": "roots", "seconds": timing}, {"step": "cut", "error": "so"}]
    lines.append({"step": "cut", "left_out": "no time was left"})
    for work in ({"case": "dot: ranks"}, {"case": "dot: nssa, pool", "relative_error": 2e-7}):
        lines.append({"step": "checks", **work})
    (tmp_path / "h-cases.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    names = {"torch": "1", "triton": "2", "kgfast": "3"}
    machine = {"name": "H", "driver": "4", "cuda": "5"}
    about = {"command": "make gpu", "machine": machine, "versions": names}
    (tmp_path / "h-summary.json").write_text(json.dumps(about))
    text = load("lib.pages.tables").gpu(tmp_path)
    assert re.search(r"\| rates: roots \| 12.5 ms \|", text), text
    assert "`rates` 1, of which 0 failed; `cut` 1, of which 1 failed;" in text, text
    assert "| `dot` | 1 | 2.0e-07 |" in text, text


def program(folder, text):
    (folder / "cases.py").write_text(f"import sys, os, time, json\n{text}")
    return [sys.executable, str(folder / "cases.py")]


CASES = """
for place in range(int(sys.argv[2]), 4):
    line = {"step": "rates", "case": str(place)}
    print(json.dumps(line | {"begins": place}), flush=True)
    if place == 1:
        os.kill(os.getpid(), 11)
    if place == 2:
        print(json.dumps(line | {"error": "of the device"}), flush=True)
        sys.exit(3)
    print(json.dumps(line), flush=True)
"""


def test_a_case_that_ends_its_process_ends_no_other(gpu, run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "PROGRAM", program(tmp_path, CASES))
    outcomes = run.cases({"rates": 60, "cut": 60}, time.time() + 60)
    lines = [json.loads(text) for text in (tmp_path / "h200-cases.jsonl").read_text().splitlines()]
    assert [line["case"] for line in lines] == ["0", "1", "2", "3"]
    errors = [line.get("error") for line in lines]
    assert errors == [None, "ended its process: exit code -11", "of the device", None]
    assert capsys.readouterr().out.count("rates: ") == 4  # each line as it comes
    assert outcomes["rates"]["verdict"] == "FAILED: 2 of 4 cases"
    assert outcomes["cut"]["verdict"] == "FAILED: 0 of 0 cases"


@pytest.mark.parametrize(("left", "verdict"), [(60, "good"), (0.5, "STOPPED: no time for 2 of 2")])
def test_a_step_ends_at_its_limit(gpu, load, monkeypatch, left, verdict):
    cases = load("lib.gpu_cases")
    lines = [cases.run(dict, time.time() + left) for _ in range(2)]
    assert gpu.outcome_of(lines)["verdict"].startswith(verdict)
    assert "void" not in cases.run(lambda: 1 / 0, time.time() + 60)
    assert cases.run(lambda: 1 / 0, time.time() + 60)["error"].startswith("ZeroDivisionError")


def test_results_of_steps_that_do_not_run_again_stay(gpu, tmp_path):
    summary, cases = tmp_path / "summary.json", tmp_path / "cases.jsonl"
    assert gpu.kept(summary, cases, ["checks"]) == {}
    cases.write_text('{"step": "kernels"}\n{"step": "checks"}\n')
    summary.write_text('{"steps": {"kernels": 1, "checks": 2, "tests": 3}}')
    assert gpu.kept(summary, cases, ["checks", "headlines"]) == {"kernels": 1, "tests": 3}
    assert cases.read_text() == '{"step": "kernels"}\n'


def test_a_command_says_how_it_ended(gpu, run, monkeypatch):
    wait = gpu._wait
    monkeypatch.setattr(gpu, "_wait", lambda process, seconds: wait(process, seconds / 5))
    monkeypatch.setattr(gpu, "PATIENCE", 0.5)
    sleeps = "import subprocess; print('begins', flush=True); subprocess.run(['sleep', '60'])"

    def verdict(code, seconds=60):
        return run.step("", [sys.executable, "-c", code], seconds)["verdict"]

    started = time.monotonic()
    assert verdict("import os, sys; assert os.environ['A'] + sys.stdin.read() == 'works'") == "good"
    assert verdict("print('broken'); raise SystemExit(3)") == "FAILED: exit code 3"
    assert verdict(sleeps, 5.0) == "STOPPED: over its time"
    assert time.monotonic() - started < 30
    assert run.step("", ["no-such-tool"], 9)["verdict"] == "left out: needs no-such-tool"
    assert run.step("", [sys.executable], 4)["verdict"] == "left out: no time was left"
    assert "broken\n" in Path(f"{run.files}-log.txt").read_text()


def test_without_a_gpu_it_says_so(gpu, monkeypatch):
    """And without torch, in one line each."""
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"sees no CUDA or ROCm device here.*--rehearse"):
        gpu.main()
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="has no torch; run this by a python that has"):
        gpu.main()
