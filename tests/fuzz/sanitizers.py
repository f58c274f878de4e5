"""The extension under sanitizers: its build, and the environment that its processes need.

* ``address``: AddressSanitizer and UndefinedBehaviorSanitizer. Leaks are not looked for (Python
  keeps memory until it ends), and limits of memory are not set (the shadow takes terabytes).
* ``thread``: ThreadSanitizer. Only the extension is instrumented, so torch's own threads (of an
  OpenMP runtime that it does not know) would be reported for what they do right: calls from
  libraries that are not instrumented are not looked at.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

from fuzz.surroundings import worker_environment

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("address", "thread")
PATIENCE = 10.0  # a case may take this many times as long
_OPTIONS = {
    "address": {
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:handle_abort=1:"
        "detect_odr_violation=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    },
    "thread": {
        "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1:exitcode=66:"
        "die_after_fork=0:report_signal_unsafe=0",
    },
}
_LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so"}


def build(name: str) -> Path:
    """Build the package with a sanitizer into a folder of its own, which is returned."""
    base = Path("build") / f"sanitize-{name}"
    built = ROOT / base / "lib"
    for old in built.rglob("*.py*"):  # modules that are gone since; the extension is kept
        old.unlink()
    command = [sys.executable, "setup.py", "-q", "build", "--build-base", str(base)]
    command += ["--build-lib", str(base / "lib")]
    done = subprocess.run(  # with thousands of lines of warnings about intrinsics
        command,
        cwd=ROOT,
        env={**os.environ, "KGFAST_SANITIZE": name},
        capture_output=True,
        text=True,
    )
    if done.returncode or not list((built / "kgfast" / "kernels").glob("_cpu*.so")):
        raise RuntimeError(f"no extension with the {name} sanitizer: {done.stderr[-4000:]}")
    return built


def environment(name: str, built: Path) -> dict[str, str]:
    """Make the environment of a process that imports the build."""
    compiler = os.environ.get("CXX", "g++").split()[-1]
    libraries = [_LIBRARIES[name], "libstdc++.so"]  # exceptions are looked up before torch is there
    found = [
        subprocess.run(
            [compiler, f"-print-file-name={it}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for it in libraries
    ]
    given = {"LD_PRELOAD": " ".join(found), "PYTHONPATH": str(built), **_OPTIONS[name]}
    _check(name, built, given)
    return given


def _check(name: str, built: Path, given: dict[str, str]) -> None:
    """Expect that a process started so imports the build."""
    ask = "from kgfast.kernels import _cpu; print(_cpu.__file__)"
    done = subprocess.run(
        [*launcher(name), sys.executable, "-c", ask],
        env=worker_environment(given),
        capture_output=True,
        text=True,
    )
    if not done.stdout.startswith(str(built)):
        raise RuntimeError(f"{name}: the extension is {done.stdout.strip()}: {done.stderr[-2000:]}")


def launcher(name: str) -> list[str]:
    """List the words before a command: ThreadSanitizer of gcc 12 needs fixed addresses."""
    return ["setarch", platform.machine(), "-R"] if name == "thread" else []
