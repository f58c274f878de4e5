"""The Triton cases of a test file, in a process where its kernels are interpreted."""

import os
import subprocess
import sys

import pytest


def run_interpreted(path: str, cases: str = "triton") -> None:
    """Run the cases of a file that ``-k`` selects, with ``TRITON_INTERPRET=1``."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=900"]
    done = subprocess.run(
        [*command, path, "-k", cases],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
