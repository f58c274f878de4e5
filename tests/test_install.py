"""An install without a compiler gives a working package that says what it lacks."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import sys
sys.meta_path[:] = [it for it in sys.meta_path if "editable" not in repr(it)]  # not this checkout
import kgfast, torch, warnings
from kgfast.kernels import cpu
assert kgfast.__file__.startswith({site!r}), kgfast.__file__
assert not cpu.is_available()
model = kgfast.RotatE.init(20, 2, 4, seed=0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ranks = kgfast.rank(model, [(0, 1, 2)])
print(ranks.realistic.tolist(), [str(it.message) for it in caught])
"""


def test_without_a_compiler(tmp_path):
    pytest.importorskip("pybind11")
    source, site = tmp_path / "source", tmp_path / "site"
    for folder in ("kgfast", "kernels"):
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / file, source)
    environment = {**os.environ, "CC": "no-such-compiler", "CXX": "no-such-compiler"}
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path), str(source)),
        ],
        env=environment,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("kgfast-*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    assert not list(site.glob("**/*.so"))
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(site=str(site))],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    ranks, messages = run.stdout.strip().split("] [", 1)
    assert ranks.startswith("[[")
    assert "the C++ extension is not built" in messages
    assert messages.count("RuntimeWarning") == 0
    assert messages.count("kgfast:") == 1
