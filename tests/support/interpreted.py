"""The Triton cases of test files, in a process where its kernels are interpreted."""

import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest


def others_are_slow(scores: Iterable[str], *fast: str) -> list[Any]:
    """Parametrize by scores, of which all but some are left to ``make test-all``."""
    slow = pytest.mark.slow
    return [it if it in fast else pytest.param(it, marks=slow) for it in scores]


def run_interpreted(marks: str, *paths: str | Path) -> None:
    """Run the cases of Triton that ``-m`` selects in files, with ``TRITON_INTERPRET=1``."""
    pytest.importorskip("triton")
    if metadata.version("triton").startswith("3.6."):
        pytest.skip("Triton 3.6 interprets a named tuple as a tuple without names")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=900"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *paths, "-k", "triton", "-m", marks],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
