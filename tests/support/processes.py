"""Scripts in processes of their own: what ends, hangs or limits a process is tried on those."""

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from .paths import TESTS


def run_script(
    script: str, *prelude: str, arguments: Sequence[Any] = (), **kwargs: Any
) -> subprocess.Popen[str]:
    """Start ``script``, indented as one likes, after the ``prelude``; it may import `support`."""
    text = "\n".join(textwrap.dedent(part) for part in (*prelude, script))
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=TESTS,
        **kwargs,
    )


def finish(process: subprocess.Popen[str], timeout: float = 60) -> str:
    """Return what a process printed, once it ended well; kill it after the timeout."""
    try:
        output, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, f"exit status {process.returncode}: {errors[-4000:]}"
    return output
