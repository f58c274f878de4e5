"""`make gpu`, as far as a machine without a GPU can run it."""

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
                assert Path(word).name.startswith("h200-")
    assert gpu.SECONDS < 480


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
