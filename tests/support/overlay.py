"""Environments of their own for libraries that nothing here depends on, on top of this one."""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from support.paths import ROOT


def run_tests_with(folder: Path, file: str, *packages: str) -> None:
    """Install packages into a new environment, and run the tests of a file named "real" there."""
    venv.create(folder, with_pip=True)
    (site,) = folder.glob("lib/python*/site-packages")
    here = sysconfig.get_path("purelib")
    (site / "zz_here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    python = folder / "bin" / "python"
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    made = subprocess.run([*command, *packages], capture_output=True, text=True)
    if made.returncode:
        reason = (made.stderr.strip() or "pip failed").splitlines()[-1]
        pytest.skip(f"{', '.join(packages)} cannot be installed here: {reason}")
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-k", "real", file],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    last = [it for it in done.stdout.splitlines() if " passed" in it]
    assert last, done.stdout
    assert "skipped" not in last[-1], done.stdout
