"""Triton's own compiler, binder and launcher, over a driver that launches nothing.

The interpreter and compiling ahead of time do not show: code that an older Triton cannot compile,
arguments that the launcher refuses, grids and shared memory beyond a GPU's.
"""

import json
import os
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

import pytest

from kgfast.kernels import triton as backend
from kgfast.kernels.scores import SCORES
from support.stub_driver import SHARED, build
from support.triton_code import OF_3_9

pytest.importorskip("triton")

TESTS = Path(__file__).parents[2]
PROGRAM = TESTS / "support" / "real_jit.py"
ARCHS = sorted(SHARED)
OLDEST = "3.6.0"  # the Triton of torch 2.10
slow = pytest.mark.slow


def installed() -> Path:
    """Return the package of this environment."""
    return Path(util.find_spec("triton").origin).parent


@pytest.fixture(scope="module")
def oldest(tmp_path_factory) -> Path:
    """Return the oldest Triton that is served, in a folder of its own."""
    if metadata.version("triton") == OLDEST:
        return installed()
    folder = tmp_path_factory.mktemp("triton")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--target", str(folder), f"triton=={OLDEST}"]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"triton {OLDEST} cannot be installed here: {made.stderr.strip()[-200:]}")
    return folder / "triton"


def run_program(folder: Path, package: Path, arch: int, *arguments: str) -> dict:
    """Run a program with a Triton of some folder; return what it writes."""
    try:
        driver = build(folder, package)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    path = [str(TESTS)] + ([] if package == installed() else [str(package.parent)])
    own = {"PYTHONPATH": os.pathsep.join(path)}
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, str(PROGRAM), str(arch), *arguments]
    made = subprocess.run(
        command, env=environment | driver | own, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr[-2000:]
    return json.loads(made.stdout.splitlines()[-1])


# Bytes of stack: sine and cosine of large angles; two registers of slopes of l2, and
# two that 3.6 spills in the pull and in rows of negatives.
ANGLES = {"compose": 32, "compose_backward": 32}
STACKS = ANGLES | {"negative_slopes": 8}
OLDEST_STACKS = STACKS | {"pull": 8, "negative_rows": 8}
STACKS_OF_120 = STACKS | {"multiply_slopes": 8}  # two registers of gradients in plain float32


def check(found: dict, version: str, stacks: dict[str, int] = STACKS) -> None:
    """Check that every call launched its kernels, which spill nothing."""
    assert found["triton"] == version
    assert found["failures"] == {}
    assert found["launches"] + found["alike"] > found["calls"] >= 4
    assert found["launches"] > 10
    if version.startswith("3.9."):
        pytest.skip(OF_3_9)
    assert found["stacks"].items() <= stacks.items()


def test_a_few_calls_launch(tmp_path) -> None:
    found = run_program(tmp_path, installed(), 90, "dot", "few")
    check(found, metadata.version("triton"))
    assert found["stacks"] == ANGLES  # or nothing looks


@slow
@pytest.mark.parametrize("score", SCORES)
def test_every_call_launches(tmp_path, score) -> None:
    """Each score with each type of table, each formula, mask and crop."""
    check(run_program(tmp_path, installed(), 90, score, "choices"), metadata.version("triton"))


KINDS = "dot", "rotate", "rscf_rotate"


@slow
@pytest.mark.parametrize("arch", [arch for arch in ARCHS if arch != 90])
def test_every_kernel_fits_other_architectures(tmp_path, arch) -> None:
    """Each kernel of a score of each kind with each number of warps and registers."""
    found = run_program(tmp_path, installed(), arch, ",".join(KINDS), "settings")
    check(found, metadata.version("triton"), STACKS_OF_120 if arch == 120 else STACKS)


@slow
@pytest.mark.parametrize("score", [*KINDS, "l2"])
def test_every_call_launches_with_the_oldest_triton(tmp_path, oldest, score) -> None:
    check(run_program(tmp_path, oldest, 90, score, "choices"), OLDEST, OLDEST_STACKS)


@pytest.mark.parametrize("found", [(3, 2), (3, 5), (2, 1)])
def test_an_older_triton_does_not_serve(monkeypatch, found) -> None:
    monkeypatch.setattr(backend, "_version", lambda: found)
    assert not backend.is_available()
    version = ".".join(map(str, found))
    assert f"Triton {version} is installed, 3.6 is needed" in backend.what_is_missing()


def test_no_triton_does_not_serve(monkeypatch) -> None:
    monkeypatch.setattr(backend, "_version", tuple)
    assert not backend.is_available()
    assert "Triton is not installed" in backend.what_is_missing()
