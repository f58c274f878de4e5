"""`make gpu`: everything that needs a GPU, on a machine without a network, in under 8 minutes.

    python3 benchmarks/gpu.py

Uses the python that runs it, with whatever torch (2.11 or later) and Triton (3.6 or later) it has:
builds the package into build/gpu, runs the GPU tests, a small case under compute-sanitizer where
that is installed, eval_mem.py and eval_speed.py, and writes results/<gpu>-*.json beside a summary
with device, driver, versions and clocks. Steps that fail are reported, the others still run.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "gpu"
SECONDS = {"build": 90, "tests": 150, "sanitizer": 60, "eval_mem": 60, "eval_speed": 100}
SMALL_CASE = """
import torch
from kgfast import ops
torch.set_default_device("cuda")
table, targets = torch.randn(300, 34), torch.arange(5)
known = torch.zeros(6, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
for score in ("rotate", "dot", "l1", "l2"):
    print(score, ops.rank_counts(table[:5].clone(), table, targets, *known, score)[0])
"""


def main() -> int:
    """Run the steps; 1 if one of them failed."""
    started = time.monotonic()
    import torch

    if not torch.cuda.is_available():
        sys.exit("make gpu: torch sees no CUDA or ROCm device here")
    if _run("build", [sys.executable, "setup.py", "--quiet", "build", f"--build-lib={BUILD}"])[0]:
        return 1
    os.environ["PYTHONPATH"] = str(BUILD)
    tag, device = _device()
    results = ROOT / "benchmarks" / "results"
    steps: dict[str, list[str]] = {
        "tests": [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu"],
        "eval_mem": _benchmark("eval_mem.py", results / f"{tag}-eval-mem.json"),
        "eval_speed": _benchmark("eval_speed.py", results / f"{tag}-eval-speed.json"),
    }
    if sanitizer := shutil.which("compute-sanitizer"):
        steps["sanitizer"] = [
            *(sanitizer, "--error-exitcode", "1", "--padding", "4096"),
            *(sys.executable, "-c", SMALL_CASE),
        ]
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        outcome = {"sanitizer": _run("sanitizer", steps.pop("sanitizer"))}
        del os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"]
    else:
        outcome = {"sanitizer": (None, "compute-sanitizer is not installed")}
    outcome |= {name: _run(name, command) for name, command in steps.items()}
    _write_summary(results / f"{tag}-summary.json", device, outcome, time.monotonic() - started)
    return int(any(code for code, _ in outcome.values()))


def _benchmark(script: str, path: Path) -> list[str]:
    return [
        *(sys.executable, f"benchmarks/{script}", "--device", "cuda"),
        *("--json", str(path), "--plot", str(path.with_suffix(".png"))),
    ]


def _run(name: str, command: list[str]) -> tuple[int | None, str]:
    """Run a step within its time; its exit code and the end of what it printed."""
    print(f"== {name}", flush=True)
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS[name],
            check=False,
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        code, output = 124, (late.stdout or b"").decode() + f"\nover {SECONDS[name]} s: stopped"
    print(output, flush=True)
    return code, "\n".join(output.splitlines()[-12:])


def _device() -> tuple[str, dict[str, object]]:
    """A tag for file names, and what the results depend on."""
    sys.path.insert(0, str(BUILD))
    import torch
    from common import machine, machine_tag, versions

    query = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,memory.total"
    smi = shutil.which("nvidia-smi")
    clocks = (
        subprocess.run(
            [smi, f"--query-gpu={query}", "--format=csv"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.splitlines()
        if smi
        else []
    )
    about = {"machine": machine("cuda"), "versions": versions(), "cuda": torch.version.cuda}
    return machine_tag("cuda"), about | {"nvidia_smi": clocks}


def _write_summary(
    path: Path, device: dict[str, object], outcome: dict[str, tuple[int | None, str]], took: float
) -> None:
    from common import write_json

    write_json(
        path,
        {
            **device,
            "command": "make gpu",
            "seconds": took,
            "steps": {
                name: {"exit_code": code, "end_of_output": output}
                for name, (code, output) in outcome.items()
            },
        },
    )
    print(f"{took:.0f} s; wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
