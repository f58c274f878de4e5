"""The scripts of benchmarks/, each in a process of its own."""

import subprocess
import sys

from support.paths import BENCHMARKS


def run(script: str, *arguments: object, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    """Run a script to its end."""
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
