"""Build the extension for 64-bit ARM and run its suite there, emulated: ``make arm64``.

Debian's cross compiler builds the extension. ``qemu-aarch64-static`` runs the suite with Debian's
Python for ARM and torch's wheel for ARM, which are fetched once into ``build/arm64``. Nothing is
installed, and no rights are needed. The run shows that results are right; emulated times say
nothing.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pybind11 import get_include

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build" / "arm64"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
SUITE = ["tests/kernels/cpu"]
# Debian's Python for ARM, with the libraries that Python and torch load.
PACKAGES = [
    *("libc6", "libgcc-s1", "libstdc++6", "libgomp1", "zlib1g", "libexpat1", "libssl3"),
    *("libffi8", "libbz2-1.0", "liblzma5", "libsqlite3-0", "libuuid1", "libcrypt1"),
    *("libpython3.11-minimal", "libpython3.11-stdlib", "python3.11-minimal", "python3.11"),
    "libpython3.11-dev",
]
# torch 2.8's wheel is the last one for ARM that holds no CUDA; the extension links no torch.
TORCH = "torch==2.8.0"
WHEELS = ["numpy", "pydantic", "pyyaml", "rich", "safetensors", "typer"]
WHEELS += ["filelock", "fsspec", "jinja2", "networkx", "sympy"]  # packages that torch needs
TEST_WHEELS = ["hypothesis", "pytest", "pytest-timeout"]
FLAGS = [
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-Werror=switch", "-Wno-psabi", "-fPIC", "-fvisibility=hidden"),
]


def main(arguments: Sequence[str]) -> int:
    """Fetch, build and test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", nargs="+", default=SUITE, help="arguments of pytest")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    for program in (COMPILER, EMULATOR):
        if shutil.which(program) is None:
            print(f"{program} is missing: apt-get install g++-aarch64-linux-gnu qemu-user-static")
            return 2
    fetch()
    build(chosen.jobs)
    # Tests that start a process of their own would start a process of this machine's architecture.
    return run(
        "-m",
        "pytest",
        *("-p", "no:cacheprovider", "-q", "-m", "not slow", "--timeout", "3600"),
        *("--deselect", "tests/kernels/cpu/test_processes.py"),
        *("-k", "not peak_memory and not the_line_stands"),
        *chosen.tests,
    )


def fetch() -> None:
    """Fetch Python and the wheels, once."""
    if (HOME / "fetched").exists():
        return
    packages, wheels = HOME / "packages", HOME / "wheels"
    packages.mkdir(parents=True, exist_ok=True)
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (HOME / "apt" / folder).mkdir(parents=True, exist_ok=True)
    apt = [
        "apt-get",
        *("-o", "APT::Architecture=arm64", "-o", "APT::Architectures=arm64"),
        *("-o", f"Dir::State={HOME}/apt/state", "-o", f"Dir::Cache={HOME}/apt/cache"),
    ]
    subprocess.run([*apt, "update", "-qq"], check=True)
    subprocess.run([*apt, "download", *PACKAGES], cwd=packages, check=True)
    for package in sorted(packages.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(HOME / "root")], check=True)
    platforms = [f"--platform=manylinux{it}_aarch64" for it in ("_2_28", "_2_17", "2014")]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", *platforms]
    pip += ["--python-version=3.11", "--implementation=cp", f"--dest={wheels}"]
    # pip would ask for the torch of this machine
    subprocess.run([*pip, "--no-deps", TORCH], check=True)
    subprocess.run([*pip, *WHEELS, *TEST_WHEELS], check=True)
    for wheel in sorted(wheels.glob("*.whl")):
        shutil.unpack_archive(wheel, HOME / "site", "zip")
    (HOME / "fetched").touch()


def build(jobs: int) -> None:
    """Lay out the package as an install does, with the extension for ARM."""
    site, objects = HOME / "kgfast", HOME / "objects"
    shutil.rmtree(site, ignore_errors=True)
    setup = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(site)]
    subprocess.run(setup, cwd=ROOT, check=True)
    objects.mkdir(parents=True, exist_ok=True)
    sources = ROOT / "kernels" / "cpu" / "csrc"
    headers = HOME / "root" / "usr" / "include"
    folders = [sources, headers / "python3.11", headers, Path(get_include())]
    included = [f"-I{folder}" for folder in folders]

    def compile_one(source: Path) -> str:
        made = str(objects / f"{source.stem}.o")
        command = [COMPILER, *FLAGS, *included, "-c", str(source), "-o", made]
        subprocess.run(command, check=True)
        return made

    with ThreadPoolExecutor(jobs) as pool:
        made = list(pool.map(compile_one, sorted(sources.glob("*/*.cpp"))))
    name = site / "kgfast" / "kernels" / "_cpu.so"
    subprocess.run([COMPILER, "-shared", "-pthread", *made, "-o", str(name)], check=True)


def run(*arguments: str) -> int:
    """Run Python for ARM, emulated, at the root of the tree; return the exit code."""
    environment = {
        **os.environ,
        "PYTHONHOME": str(HOME / "root" / "usr"),
        "PYTHONPATH": os.pathsep.join([str(HOME / "kgfast"), str(HOME / "site")]),
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": "1",
    }
    python = HOME / "root" / "usr" / "bin" / "python3.11"
    command = [EMULATOR, "-L", str(HOME / "root"), str(python), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
