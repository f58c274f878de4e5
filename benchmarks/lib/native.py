"""C++ that a benchmark compiles for the machine it runs on."""

import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent


def compiled(name: str, folder: str) -> Path:
    """Compile a file of benchmarks/lib to a library within a folder; return its path.

    Raises
    ------
    OSError, subprocess.CalledProcessError
        No compiler, or one that refuses the file.
    """
    made = Path(folder) / Path(name).with_suffix(".so").name
    words = ["g++", "-std=c++17", "-O3", "-fno-math-errno", "-march=native", "-shared", "-fPIC"]
    subprocess.run([*words, str(FOLDER / name), "-o", str(made)], check=True, capture_output=True)
    return made
