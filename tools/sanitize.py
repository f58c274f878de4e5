"""Property tests with the extension under a sanitizer: `make sanitize`.

    python tools/sanitize.py address      AddressSanitizer and UndefinedBehaviorSanitizer
    python tools/sanitize.py thread       ThreadSanitizer

The build stands in build/sanitize-NAME. Leaks are not looked for: Python keeps memory until it
ends. ThreadSanitizer looks at the extension alone: torch's threads, which are not instrumented,
would be reported for what they do right. Further words go to pytest.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ["tests/kernels", "tests/ops", "tests/test_fuzz.py"]
LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so"}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:handle_abort=1:"
    "detect_odr_violation=0:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1:exitcode=66:"
    "die_after_fork=0:report_signal_unsafe=0",
}


def build(name: str) -> Path:
    """Build the package with a sanitizer into a folder of its own."""
    base = Path("build") / f"sanitize-{name}"
    built = ROOT / base / "lib"
    for old in built.rglob("*.py*"):  # modules that are gone since; the extension is kept
        old.unlink()
    words = ["setup.py", "-q", "build", "--build-base", str(base), "--build-lib", str(base / "lib")]
    subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "KGFAST_SANITIZE": name, "KGFAST_REQUIRE_EXTENSION": "1"},
        stderr=subprocess.DEVNULL,  # thousands of lines of warnings about intrinsics
        check=True,
    )
    return built


def main() -> int:
    """Build, and run the property tests with the build; the exit code is pytest's."""
    name, *more = sys.argv[1:] or ["address"]
    if name not in LIBRARIES:
        sys.exit(f"sanitizers are {', '.join(LIBRARIES)}; got {name}")
    built = build(name)
    compiler = os.environ.get("CXX", "g++").split()[-1]
    preloaded = [
        subprocess.run(
            [compiler, f"-print-file-name={it}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for it in (
            LIBRARIES[name],
            "libstdc++.so",
        )  # exceptions are looked up before torch is there
    ]
    environment = {
        **os.environ,
        **OPTIONS,
        "LD_PRELOAD": " ".join(preloaded),
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": str(built),
        "PYTHONSAFEPATH": "1",  # the package under test is the one on the path, not in the folder
        "EXAMPLES": os.environ.get("EXAMPLES", "200"),
    }
    # ThreadSanitizer of gcc 12 needs fixed addresses.
    fixed = ["setarch", platform.machine(), "-R"] if name == "thread" else []
    ask = "import kgfast.kernels._cpu as it; print(it.__file__)"
    words = [*fixed, sys.executable]
    found = subprocess.run(
        [*words, "-c", ask], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if not found.stdout.startswith(str(built)):
        sys.exit(f"the extension is {found.stdout.strip()}, not of {built}: {found.stderr[-2000:]}")
    tests = ["-m", "pytest", "-q", "--timeout=3000", "-m", "hypothesis and not slow", *TESTS, *more]
    return subprocess.call([*words, *tests], cwd=ROOT, env=environment)


if __name__ == "__main__":
    sys.exit(main())
