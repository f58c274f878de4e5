"""C++ that a benchmark compiles for the machine it runs on."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
NATIVE = ("-march=native",)


def compiled(name: str, folder: str, flags: Sequence[str] = NATIVE, *, shared: bool = True) -> Path:
    """Compile a file of benchmarks/lib to a library or a program within a folder; return its path.

    Raises
    ------
    OSError, subprocess.CalledProcessError
        No compiler, or one that refuses the file.
    """
    made = Path(folder) / Path(name).with_suffix(".so" if shared else "").name
    kind = ["-shared", "-fPIC"] if shared else []
    words = ["g++", "-std=c++17", "-O3", "-fno-math-errno", *flags, *kind, str(FOLDER / name)]
    subprocess.run([*words, "-o", str(made)], check=True, capture_output=True)
    return made
