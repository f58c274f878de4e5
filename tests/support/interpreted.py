"""The Triton cases of a test file, in a process where its kernels are interpreted."""

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

# Of a file that has slow cases, too, the outer test is made twice.
fast_and_slow = pytest.mark.parametrize(
    "marks", ["not slow", pytest.param("slow", marks=pytest.mark.slow)]
)


def others_are_slow(scores: Iterable[str], *fast: str) -> list[Any]:
    """Parametrize by scores, of which all but some are left to ``make test-all``."""
    slow = pytest.mark.slow
    return [it if it in fast else pytest.param(it, marks=slow) for it in scores]


def run_interpreted(path: str, cases: str = "triton", marks: str = "") -> None:
    """Run the cases of a file that ``-k`` and ``-m`` select, with ``TRITON_INTERPRET=1``."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=900"]
    done = subprocess.run(
        [*command, path, "-k", cases, "-m", marks],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
