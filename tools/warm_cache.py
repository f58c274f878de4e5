"""Write the kernels of ``make gpu`` to a file, on a machine without a GPU.

    python tools/warm_cache.py FILE        then, on the machine with the GPU: make gpu CACHE=FILE

Both calls are rehearsed, which compiles the kernels for compute capability 9.0. Run this with the
Python, torch and Triton of the other machine: its step `device` says whether they are the same.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GPU = Path(__file__).resolve().parents[1] / "benchmarks" / "gpu.py"


def main(file: str, *options: str) -> int:
    """Rehearse in an empty folder and keep its kernels; return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TRITON_CACHE_DIR": f"{folder}/kernels"}
        command = [sys.executable, GPU, "--rehearse", "full", "--out", folder, *options, "--call"]
        codes = [subprocess.call([*command, call], env=env) for call in ("checks", "times")]
        shutil.copy(f"{folder}/rehearsal-cache.tgz", file)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
