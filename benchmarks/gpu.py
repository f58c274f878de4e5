"""`make gpu`: everything that needs a GPU, on a machine without a network, in under 8 minutes.

    python3 benchmarks/gpu.py
    python3 benchmarks/gpu.py --predict      without a GPU: predictions alone

Uses the python that runs it, with whatever torch (2.11 or later) and Triton (3.6 or later) it has:
builds the package into build/gpu, then runs the steps of `steps`: the GPU tests, the benchmarks,
and a small case under the tools of compute-sanitizer where that is installed. Writes
results/<gpu>-*.json beside a summary with device, driver, versions and clocks, which is written
anew after every step. Steps that fail are reported, the others still run; what no time is left for
is left out and said so. Ends with what became of every step, what its results say, and beside them
what was predicted for this GPU; predictions are labelled so and are written by the same script,
where there is a GPU last, if time is left.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "gpu"
RESULTS = ROOT / "benchmarks" / "results"
SECONDS = 460  # of everything
PREDICT_SECONDS = 1800  # of predictions alone: some minutes of a quiet machine
PREDICTIONS = "static-roofline.json"
SANITIZERS = "memcheck", "racecheck", "synccheck"  # of compute-sanitizer
WORKERS = min(16, os.cpu_count() or 1)  # of the tests: most of their time is compiling kernels
SMALL_CASE = """
import torch
from kgfast import ops
torch.set_default_device("cuda")
table, targets = torch.randn(300, 34), torch.arange(5)
known = torch.zeros(6, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
for score in ("rotate", "dot", "l1", "l2"):
    print(score, ops.rank_counts(table[:5].clone(), table, targets, *known, score)[0])
given = targets, *known
wide, narrow = (torch.randn(300, width).requires_grad_() for width in (34, 17))
widths = {"rscf_rotate": 85, "rscf_l1": 51, "rscf_l2": 51}
for score, width in widths.items():
    rows = wide if score == "rscf_rotate" else narrow
    queries, factor = (torch.randn(n, d).requires_grad_() for n, d in ((5, width), (300, 17)))
    plain = [it.detach() for it in (queries, rows, factor)]
    print(score, ops.rank_counts(*plain[:2], *given, score, factor=plain[2])[0])
    print(score, ops.topk(*plain[:2], 7, score=score, factor=plain[2])[1])
    ops.pairwise_scores(queries, rows, score, factor=factor).sum().backward()
    print(score, queries.grad.norm(), factor.grad.norm())
many = torch.randn(40, 34)
print("many", ops.rank_counts(many, table, torch.arange(40), torch.zeros(41, dtype=torch.int64),
    known[1], "rotate")[0], ops.topk(many, table, 7, score="rotate")[1][0])
for score, rows in (("rotate", 40), ("dot", 40), ("rotate", 260)):
    leaves = table[:rows].clone().requires_grad_(), table.clone().requires_grad_()
    positives = torch.arange(rows + 1), torch.arange(rows)
    ops.bce(*leaves, None, *positives, 1.0, 0.0, score).sum().backward()
    ops.cross_entropy(*leaves, None, torch.arange(rows), 0.1, score).sum().backward()
    print("losses", score, *(leaf.grad.norm() for leaf in leaves))
scores = torch.randn(9, 1030).requires_grad_()
ops.adversarial_rows(scores, 0.5).sum().backward()
print("adversarial", scores.grad.norm())
print("nested", ops.rank_counts(table[:5].clone(), table, *given, "rotate", dims=[5, 17])[0])
print("top", ops.topk(table[:5].clone(), table, 7, score="rotate")[1])
leaves = table[:5].clone().requires_grad_(), table.clone().requires_grad_()
index = torch.randint(300, (5, 40))
ops.pairwise_scores(*leaves, "rotate").sum().backward()
ops.indexed_scores(*leaves, index, "rotate").sum().backward()
ops.pairwise_scores(*leaves, "rotate", dims=[5, 17]).sum().backward()
ops.indexed_scores(*leaves, index, "rotate", dims=[5, 17]).sum().backward()
print("gradients", *(leaf.grad.norm() for leaf in leaves))
"""


@dataclass(frozen=True)
class Step:
    """A command and the most time that it may take."""

    name: str
    seconds: float
    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    patience: float = 0  # seconds from an interrupt to its end: to report what it has found


@dataclass(frozen=True)
class Outcome:
    """What became of a step; ``exit_code`` None: it was left out."""

    exit_code: int | None
    seconds: float
    end_of_output: str


def steps(tag: str) -> list[Step]:
    """What is run, in this order: first what the README lacks. A new benchmark is a new line."""
    return [
        Step(
            "tests",
            150,
            _pytest(
                "tests/gpu",
                "tests/kernels/test_bounds.py",
                "tests/kernels/test_gradients.py",
                "tests/kernels/test_lists.py",
                "tests/kernels/test_ranks.py",
                "tests/kernels/test_topk.py",
                "tests/kernels/triton/test_scratch.py",
            ),
            {"OMP_NUM_THREADS": "2"},  # of each worker, for what is computed on the CPU
            patience=15,
        ),
        Step("loss_speed", 90, _benchmark("loss_speed.py", tag)),
        Step("eval_mem", 90, _benchmark("eval_mem.py", tag, has_plot=True)),
        Step("eval_speed", 120, _benchmark("eval_speed.py", tag)),
        Step("topk_speed", 80, _benchmark("topk_speed.py", tag)),
        *(_sanitizer(tool) for tool in SANITIZERS),
        # Last, as it starts forty processes: it has what time the others left.
        Step("loss_mem", 180, _benchmark("loss_mem.py", tag)),
        predict_step(),
    ]


def predict_step() -> Step:
    """What the machine code lets one expect; needs no GPU, and replaces what was predicted."""
    path = RESULTS / PREDICTIONS
    command = [sys.executable, "benchmarks/static_roofline.py", "--json", str(path)]
    return Step("predictions", PREDICT_SECONDS, command)


def _sanitizer(tool: str) -> Step:
    """The small case under one of compute-sanitizer's tools; what it finds fails the step."""
    words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1"]
    if tool == "memcheck":
        words += ["--padding", "4096"]
    command = [*words, sys.executable, "-c", SMALL_CASE]
    # With the cache of allocations one of them hides all bounds.
    return Step(tool, 40, command, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})


def _pytest(*paths: str) -> list[str]:
    workers = ["-n", str(WORKERS)] if find_spec("xdist") else []
    return [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *workers, *paths]


def _benchmark(script: str, tag: str, *, has_plot: bool = False) -> list[str]:
    """``eval_mem.py`` writes ``results/<gpu>-eval-mem.json`` and, if it can, a picture."""
    path = RESULTS / f"{tag}-{script.removesuffix('.py').replace('_', '-')}.json"
    has_plot = has_plot and find_spec("matplotlib") is not None
    plot = ["--plot", str(path.with_suffix(".png"))] if has_plot else []
    script_path = f"benchmarks/{script}"
    return [sys.executable, script_path, "--device", "cuda", "--json", str(path), *plot]


def main() -> int:
    """Build and run the steps; 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--predict", action="store_true", help="without a GPU: predictions alone")
    arguments = parser.parse_args()
    started, since = time.monotonic(), time.time()
    if find_spec("torch") is None:
        sys.exit(f"make gpu: {sys.executable} has no torch; run this by a python that has")
    if arguments.predict:
        return predict(started)
    import torch

    if not torch.cuda.is_available():
        sys.exit(
            "make gpu: torch sees no CUDA or ROCm device here, so that nothing can be measured; "
            "`python3 benchmarks/gpu.py --predict` writes predictions, labelled so"
        )
    shutil.rmtree(BUILD, ignore_errors=True)
    outcomes = run([build_step(), extension_step()], started + SECONDS)
    if outcomes["build"].exit_code:
        return 1
    os.environ |= environment()
    sys.path.insert(0, str(BUILD))
    from lib.machine import machine_tag
    from lib.results import write_json

    tag = machine_tag("cuda")
    path = RESULTS / f"{tag}-summary.json"
    about = {**_device(), "command": "make gpu"}

    def keep(so_far: dict[str, Outcome]) -> None:
        found = {name: asdict(outcome) for name, outcome in (outcomes | so_far).items()}
        write_json(path, {**about, "seconds": time.monotonic() - started, "steps": found})

    todo = steps(tag)
    outcomes |= run(todo, started + SECONDS, keep)
    files = {step.name: results_of(step) for step in todo}
    print(summary(about, outcomes, files, since))
    print(*predicted_for(about["machine"]["name"], RESULTS / PREDICTIONS), sep="\n")
    print(f"{time.monotonic() - started:.0f} s; wrote {path.relative_to(ROOT)}")
    return int(any(outcome.exit_code for outcome in outcomes.values()))


def predict(started: float) -> int:
    """Build the package and write the predictions alone; 1 if that failed."""
    shutil.rmtree(BUILD, ignore_errors=True)
    outcomes = run([build_step()], started + SECONDS)
    if not outcomes["build"].exit_code:
        os.environ |= environment()
        outcomes |= run([predict_step()], started + PREDICT_SECONDS)
    for name, outcome in outcomes.items():
        print(f"{name:12} {_verdict(outcome):32} {outcome.seconds:5.0f} s")
    return int(any(outcome.exit_code != 0 for outcome in outcomes.values()))


def results_of(step: Step) -> Path | None:
    """The file of results that a step writes."""
    files = [Path(word) for word in step.command if word.endswith(".json")]
    return files[0] if files else None


def summary(
    about: dict[str, Any],
    outcomes: dict[str, Outcome],
    files: dict[str, Path | None],
    since: float,
) -> str:
    """What a person reads at the end: the machine, every step, what was measured and the goals.

    A file of results that is broken, or older than ``since`` (seconds since the epoch), says so.
    """
    found, packages = about["machine"], about["versions"]
    driver = f", driver {found['driver']}" if found.get("driver") else ""
    versions = ", ".join(f"{name} {packages[name]}" for name in ("kgfast", "torch", "triton"))
    lines = ["", f"{found['name']}{driver}; {versions}", ""]
    for name, outcome in outcomes.items():
        lines.append(f"{name:12} {_verdict(outcome):32} {outcome.seconds:5.0f} s")
        if outcome.exit_code is None:
            continue
        if outcome.exit_code:
            lines += [f"    | {line}" for line in outcome.end_of_output.splitlines()[-4:]]
        path = files.get(name)
        if path is not None:
            lines += [f"    {line}" for line in _measured(path, since)]
    return "\n".join(lines)


def predicted_for(name: str, path: Path) -> list[str]:
    """The lines of the predictions for a GPU, to be read beside what was measured on it."""
    try:
        rows = json.loads(path.read_text())["predictions"]
        mine = [row for row in rows if row["gpu"].split()[0] in name.split()]
        return ["", f"PREDICTED, not measured ({path.name}):"] * bool(mine) + [
            f"    {row['work']}: {row['total_seconds'] * 1e3:.2f} ms, limited by {row['limit']}"
            for row in mine
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return ["", f"no predictions in {path.name}: {type(error).__name__}"]


def _verdict(outcome: Outcome) -> str:
    if outcome.exit_code is None:
        return f"left out: {outcome.end_of_output}"
    if outcome.exit_code == 124:
        return "STOPPED: over its time"
    return "good" if outcome.exit_code == 0 else f"FAILED: exit code {outcome.exit_code}"


def _measured(path: Path, since: float) -> list[str]:
    """The lines of a file of results that say what was measured, and the goal."""
    try:
        if path.stat().st_mtime < since:
            return [f"{path.name} is of an earlier run"]
        ratios = json.loads(path.read_text()).get("ratios", [])
        return [
            f"{line['what']}: {line['measured']}"
            + (f"  (goal {line['goal']})" * bool(line["goal"]))
            for line in ratios
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [f"no results in {path.name}: {type(error).__name__}"]


def environment() -> dict[str, str]:
    """What lets the steps find what was built, and not the tree's kgfast/, which has no kernels."""
    places = [str(BUILD), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, places)), "PYTHONSAFEPATH": "1"}


def build_step() -> Step:
    """The package, laid out as it would be installed."""
    return Step("build", 30, _setup("build_py"))


def extension_step() -> Step:
    """Its extension: without one the CPU's part is slow, but all else still runs."""
    return Step("extension", 120, _setup("build_ext"))


def _setup(command: str) -> list[str]:
    return [sys.executable, "setup.py", "--quiet", command, f"--build-lib={BUILD}"]


def run(
    todo: Sequence[Step],
    deadline: float,
    keep: Callable[[dict[str, Outcome]], None] = lambda outcomes: None,
) -> dict[str, Outcome]:
    """Run steps one after the other, none past the deadline (a time of ``time.monotonic``).

    A step that fails, or cannot even be started, does not keep the others from running; ``keep``
    is given what there is after each.
    """
    outcomes: dict[str, Outcome] = {}
    for step in todo:
        try:
            outcomes[step.name] = _run(step, deadline - time.monotonic())
        except OSError as error:
            outcomes[step.name] = Outcome(1, 0.0, f"{type(error).__name__}: {error}")
        keep(outcomes)
    return outcomes


def _run(step: Step, seconds_left: float) -> Outcome:
    if shutil.which(step.command[0]) is None:
        return Outcome(None, 0.0, f"{step.command[0]} is not installed")
    seconds = min(step.seconds, seconds_left)
    if seconds < min(5, step.seconds):
        return Outcome(None, 0.0, "no time was left")
    print(f"== {step.name}", flush=True)
    started = time.monotonic()
    process = subprocess.Popen(
        step.command,
        cwd=ROOT,
        env={**os.environ, **step.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that its workers end with it
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        output, code = f"{_stop(process, step.patience)}\nover {seconds:.0f} s: stopped", 124
    print(output, flush=True)
    return Outcome(code, time.monotonic() - started, "\n".join(output.splitlines()[-12:]))


def _stop(process: "subprocess.Popen[str]", patience: float) -> str:
    """End a process and all that it started; what it said."""
    with suppress(subprocess.TimeoutExpired, ProcessLookupError):
        if patience:
            os.killpg(process.pid, signal.SIGINT)
            return process.communicate(timeout=patience)[0]
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[0]


def _device() -> dict[str, Any]:
    """What the results depend on."""
    import torch

    from lib.machine import machine, versions

    query = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,memory.total"
    smi = shutil.which("nvidia-smi")
    clocks = (
        subprocess.run(
            [smi, f"--query-gpu={query}", "--format=csv"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        ).stdout.splitlines()
        if smi
        else []
    )
    return {
        "machine": machine("cuda"),
        "versions": versions(),
        "cuda": torch.version.cuda,
        "nvidia_smi": clocks,
    }


if __name__ == "__main__":
    sys.exit(main())
