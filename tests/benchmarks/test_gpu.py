"""`make gpu`, as far as a machine without a GPU can run it."""

import json
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from support.paths import ROOT

SCRIPT = """
import sys
import kgfast, kgfast.kernels.triton.rank
from kgfast.kernels import reference
print(kgfast.__file__, reference.__file__, "editable" in repr(sys.meta_path))
"""


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu

    return gpu


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_steps_run_one_after_the_other_and_all_are_reported(gpu) -> None:
    sleeps = "import subprocess; subprocess.run(['sleep', '60'])"
    started = time.monotonic()
    outcomes = gpu.run(
        [
            gpu.Step("good", 60, python("import os; print(os.environ['A'])"), {"A": "works"}),
            gpu.Step("bad", 60, python("print('broken'); raise SystemExit(3)")),
            gpu.Step("reads", 60, python("import sys; print(repr(sys.stdin.read()))")),
            gpu.Step("slow", 2, python("print('begins', flush=True);" + sleeps)),
            gpu.Step("absent", 60, ["no-such-tool"]),
        ],
        started + 300,
    )
    assert time.monotonic() - started < 30
    found = {name: (it.exit_code, it.end_of_output) for name, it in outcomes.items()}
    assert found == {
        "good": (0, "works"),
        "bad": (3, "broken"),
        "reads": (0, "''"),
        "slow": (124, "begins\n\nover 2 s: stopped"),
        "absent": (None, "no-such-tool is not installed"),
    }


def test_no_step_begins_after_the_end(gpu) -> None:
    outcome = gpu.run([gpu.Step("late", 60, python("print(1)"))], time.monotonic() + 1)["late"]
    assert (outcome.exit_code, outcome.end_of_output) == (None, "no time was left")


def test_the_steps_are_those_of_this_tree(gpu) -> None:
    steps = gpu.steps("h200")
    assert len({step.name for step in steps}) == len(steps)
    for step in steps:
        for word in step.command:
            if word.startswith(("tests/", "benchmarks/")):
                assert (ROOT / word).exists(), word
            if word.endswith((".json", ".png")):
                assert Path(word).parent == ROOT / "benchmarks" / "results"
                is_measured = Path(word).name != gpu.PREDICTIONS
                assert Path(word).name.startswith("h200-") == is_measured
    assert gpu.SECONDS < 480


def test_what_the_readme_lacks_comes_first(gpu) -> None:
    names = [step.name for step in gpu.steps("h200")]
    assert names.index("loss_speed") < names.index("eval_mem")
    assert names[-5:] == ["memcheck", "racecheck", "synccheck", "loss_mem", "predictions"]
    commands = {step.name: list(step.command) for step in gpu.steps("h200")}
    for tool in ("memcheck", "racecheck", "synccheck"):
        words = commands[tool]
        assert words[words.index("--tool") + 1] == tool
        assert gpu.SMALL_CASE in words


def test_a_step_that_fails_does_not_lose_the_others(gpu, tmp_path, monkeypatch) -> None:
    """Nor does one that cannot be started at all; what there is is kept after each."""
    monkeypatch.setattr(gpu.shutil, "which", lambda name: name)
    not_a_program = tmp_path / "plain.txt"
    not_a_program.write_text("")
    kept: list[list[str]] = []
    outcomes = gpu.run(
        [
            gpu.Step("broken", 60, [str(not_a_program)]),
            gpu.Step("good", 60, python("print('works')")),
        ],
        time.monotonic() + 300,
        lambda so_far: kept.append(list(so_far)),
    )
    assert kept == [["broken"], ["broken", "good"]]
    assert outcomes["broken"].exit_code == 1
    assert "PermissionError" in outcomes["broken"].end_of_output
    assert outcomes["good"].exit_code == 0


def test_the_summary_is_for_a_person(gpu, tmp_path) -> None:
    measured, old, broken = (tmp_path / f"{name}.json" for name in ("new", "old", "broken"))
    line = {"what": "bce dot against torch", "measured": "2.0x", "goal": ">= 1x"}
    for path in (measured, old):
        path.write_text(json.dumps({"ratios": [line], "rows": []}))
    broken.write_text("{")
    os.utime(old, (1, 1))
    about = {
        "machine": {"name": "A GPU", "driver": "580.1"},
        "versions": {"kgfast": "1", "torch": "2", "triton": "3"},
    }
    outcomes = {
        "loss_speed": gpu.Outcome(0, 12.3, ""),
        "eval_mem": gpu.Outcome(3, 4.0, "first\nTraceback\nValueError: bad"),
        "eval_speed": gpu.Outcome(124, 120.0, "over 120 s: stopped"),
        "racecheck": gpu.Outcome(None, 0.0, "compute-sanitizer is not installed"),
    }
    files = {"loss_speed": measured, "eval_mem": old, "eval_speed": broken}
    text = gpu.summary(about, outcomes, files, since=1000.0)
    assert "A GPU, driver 580.1; kgfast 1, torch 2, triton 3" in text
    assert "bce dot against torch: 2.0x  (goal >= 1x)" in text
    assert "FAILED: exit code 3" in text
    assert "| ValueError: bad" in text
    assert "old.json is of an earlier run" in text
    assert "STOPPED: over its time" in text
    assert "no results in broken.json" in text
    assert "left out: compute-sanitizer is not installed" in text


def test_predictions_stand_beside_what_was_measured(gpu, tmp_path) -> None:
    path = gpu.RESULTS / gpu.PREDICTIONS
    lines = gpu.predicted_for("NVIDIA H200", path)
    assert lines[1] == "PREDICTED, not measured (static-roofline.json):"
    assert all(" ms, limited by " in line for line in lines[2:])
    assert any("rotate, WN18RR" in line for line in lines)
    assert gpu.predicted_for("A GPU of tomorrow", path) == []
    assert gpu.predicted_for("x", tmp_path / "none.json")[1].startswith("no predictions in none")


def test_without_a_gpu_it_says_so(gpu, monkeypatch) -> None:
    """And without torch, in one line each."""
    import torch

    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"sees no CUDA or ROCm device here.*--predict"):
        gpu.main()
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="has no torch; run this by a python that has"):
        gpu.main()


@pytest.mark.slow
def test_the_small_case_runs(gpu) -> None:
    """What the sanitizers are given, with the backends of the CPU."""
    code = gpu.SMALL_CASE.replace('"cuda"', '"cpu"')
    done = subprocess.run(python(code), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = "rotate", "rscf_l2", "nested", "top", "many", "losses dot", "adversarial", "gradients"
    for word in words:
        assert f"\n{word}" in f"\n{done.stdout}"


@pytest.mark.slow
def test_the_build_works_without_an_installation(gpu, monkeypatch, tmp_path) -> None:
    """In the layout of the tree (kernels/ is kgfast.kernels), and without a network."""
    monkeypatch.setattr(gpu, "BUILD", tmp_path / "built")
    monkeypatch.setenv("CC", "no-such-compiler")  # the extension is optional; it takes a minute
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert gpu.run([gpu.build_step()], time.monotonic() + 100)["build"].exit_code == 0
    monkeypatch.setenv("PYTHONPATH", sysconfig.get_path("purelib"))
    done = subprocess.run(
        [sys.executable, "-S", "-c", SCRIPT],  # without the editable install of this checkout
        env={**os.environ, **gpu.environment()},
        cwd=ROOT,  # where the steps run, beside a kgfast/ that has no kernels
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    package, kernels, is_editable = done.stdout.split()
    assert package == str(gpu.BUILD / "kgfast" / "__init__.py")
    assert kernels == str(gpu.BUILD / "kgfast" / "kernels" / "reference" / "__init__.py")
    assert is_editable == "False"
