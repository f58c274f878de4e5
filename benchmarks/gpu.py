"""`make gpu`: all that needs a GPU, the most valuable first, on a machine without a network.

    python3 benchmarks/gpu.py --minutes 8 --out DIR
    python3 benchmarks/gpu.py --rehearse                  without a GPU: times and results are void
    python3 benchmarks/gpu.py --steps kernels headlines   some of the steps

The python that runs this needs torch (2.11 or later) with Triton (3.6 or later) and numpy. Nothing
is installed and nothing is compiled first. The steps: compile each kernel (`kernels`), check
integers and losses against the reference (`checks`), time six works (`headlines`), run the tests,
the benchmarks and compute-sanitizer, then build the C++ extension and test that. A step whose tools
are missing is left out and says so; a step that fails ends no other. Cases of the first three steps
run in processes of their own, so that one which crashes, hangs or fills the memory ends only
itself. ``DIR`` gets at most six files, each written as results come: <gpu>-summary.json (device,
versions and the outcome of each step), <gpu>-cases.jsonl (a line for each case), <gpu>-log.txt (all
output), and one file of each benchmark. With ``--steps``, results of other steps stay.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PATIENCE = 10  # seconds from an interrupt to a command's end: to report what it has found
WORKERS = min(16, os.cpu_count() or 1)  # compiling on the host is most of the work
SCORES = ("dot", "rotate", "l1", "l2", "rscf_rotate", "rotate_interleaved", "rscf_l1", "rscf_l2")
BENCHMARKS = ("loss_mem", "eval_speed", "eval_mem")
SANITIZERS = ("memcheck", "racecheck", "synccheck")  # tools of compute-sanitizer
TESTED = [
    f"tests/kernels/test_{it}.py"
    for it in ("above", "bounds", "gradients", "lists", "ranks", "topk")
]
OTHERS = ("losses", "adversarial", "float_modes")
OF_TRITON = ("scratch", "negatives", "scores", "rscf")
ON_DEVICE = ["tests/gpu", *TESTED, *(f"tests/kernels/test_{it}.py" for it in OTHERS)]
ON_DEVICE += [f"tests/kernels/triton/test_{it}.py" for it in OF_TRITON]
ON_DEVICE += ["tests/eval/test_fronts.py"]
PROGRAM = [sys.executable, "benchmarks/lib/gpu_cases.py"]
PYTEST = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors"]
PYTEST += ["-n", str(WORKERS)] * (find_spec("xdist") is not None)
NEEDS = {**dict.fromkeys(("tests", "host"), ("pytest", "hypothesis")), "extension": ("setuptools",)}
STEPS = ("kernels", "checks", "headlines", "tests", *BENCHMARKS, *SANITIZERS, "extension", "host")
LAID_OUT = {"kgfast": "kgfast", "kernels": "kgfast/kernels", "configs": "kgfast/configs"}

Record = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step: a verdict, seconds, and lines for a person."""

    verdict: str
    seconds: float = 0.0
    lines: Sequence[str] = ()

    @property
    def is_bad(self) -> bool:
        """Return whether the step ran and went wrong."""
        return self.verdict != "good" and not self.verdict.startswith("left out")


@dataclass(frozen=True)
class Run:
    """A run of all steps: where it writes, and how its processes are started."""

    files: str  # the beginning of the path of each file
    environment: Mapping[str, str]
    rehearses: bool = False

    def steps(self, package: Path) -> dict[str, tuple[float, Callable[[float], Outcome]]]:
        """Return the most seconds of each step and what runs it, in order of worth."""
        device = ["--quick"] if self.rehearses else ["--device", "cuda"]
        commands = {"tests": (300, [*PYTEST, "-m", "gpu", *ON_DEVICE])}
        for name in BENCHMARKS:
            file = f"{self.files}-{name.replace('_', '-')}.json"
            command = [sys.executable, f"benchmarks/{name}.py", *device, "--json", file]
            commands[name] = 120, command
        for tool in SANITIZERS:
            words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1"]
            words += ["--padding", "4096"] if tool == "memcheck" else []
            end = str(time.time() + 3600)
            commands[tool] = 60, [*words, *PROGRAM, "checks", "rotate", "0", end, "uncached"]
        build = ["setup.py", "--quiet", "build_ext", f"--build-lib={package}"]
        build = ["env", "KGFAST_REQUIRE_EXTENSION=1", sys.executable, *build]
        commands["extension"] = 180, [*build, f"--build-temp={package}.build"]
        commands["host"] = 120, [*PYTEST, "-m", "not gpu and not slow", *TESTED]
        scores = SCORES[:1] if self.rehearses else SCORES
        return {
            "kernels": (120, partial(self.cases, "kernels", scores)),
            "checks": (90, partial(self.cases, "checks", scores)),
            "headlines": (90, partial(self.cases, "headlines", [""])),
            **{name: (most, partial(self.command, it)) for name, (most, it) in commands.items()},
        }

    def start(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
        """Start a process in a group of its own, so that its workers end with it."""
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            **options,
        )

    def log(self) -> TextIO:
        """Open the log, to write at its end."""
        return Path(f"{self.files}-log.txt").open("a")

    def cases(self, step: str, scores: Sequence[str], seconds: float) -> Outcome:
        """Run the cases of a step, those of several scores side by side unless they are timed."""
        lines: list[dict[str, Any]] = []

        def record(line: dict[str, Any]) -> None:
            lines.append(line)
            with Path(f"{self.files}-cases.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")

        until = time.time() + seconds
        with ThreadPoolExecutor(1 if step == "headlines" else WORKERS) as pool:
            list(pool.map(lambda score: self._cases(step, score, until, record), scores))
        failed = [it for it in lines if "error" in it]
        said = [f"{it['case']}: {it['error'].splitlines()[-1][:100]}" for it in failed[:8]]
        said += [
            f"{it['case']}: {it['seconds']['median'] * 1e3:.2f} ms{', VOID' * self.rehearses}"
            for it in lines
            if "seconds" in it
        ]
        if failed or not lines:
            return Outcome(f"FAILED: {len(failed)} of {len(lines)} cases", lines=said)
        is_late = time.time() >= until
        return Outcome(
            f"STOPPED: over its time, {len(lines)} cases" if is_late else "good", lines=said
        )

    def _cases(self, step: str, score: str, until: float, record: Record) -> None:
        """Run the cases of a score; after one that ends the process, go on in another."""
        first, code = 0, 1
        while code and time.time() < until:
            words = [step, score, str(first), str(until), *["rehearse"] * self.rehearses]
            began, begun = first, None
            with self.log() as log:
                process = self.start([*PROGRAM, *words], stdout=subprocess.PIPE, stderr=log)
                watch = Timer(max(0.0, until - time.time()) + PATIENCE, process.kill)
                watch.start()
                for text in process.stdout or ():
                    line = json.loads(text) if text.startswith('{"step"') else {}
                    if "begins" in line:
                        first, begun = line.pop("begins") + 1, line
                    elif line:
                        record(line)
                        begun = None
                code = process.wait()
                watch.cancel()
            if begun is not None:
                why = "no time was left" if time.time() >= until else f"exit code {code}"
                record(begun | {"error": f"ended its process: {why}"})
            elif code and first == began:
                line = {"step": step, "case": f"{score}: the first"}
                return record(line | {"error": f"did not begin: exit code {code}; see the log"})

    def command(self, command: Sequence[str], seconds: float) -> Outcome:
        """Run a command to its end, or for some seconds; its output goes to the log."""
        if shutil.which(command[0]) is None:
            return Outcome(f"left out: {command[0]} is not installed")
        with self.log() as log:
            place = log.tell()
            try:
                process = self.start(command, stdout=log, stderr=subprocess.STDOUT)
            except OSError as error:
                return Outcome(f"FAILED: {type(error).__name__}", lines=[str(error)])
            code = _wait(process, seconds)
        output = Path(log.name).read_bytes()[place:].decode(errors="replace")
        verdicts = {None: "STOPPED: over its time", 0: "good"}
        lines = [] if code == 0 else output.splitlines()[-4:]
        return Outcome(verdicts.get(code, f"FAILED: exit code {code}"), lines=lines)


def _wait(process: "subprocess.Popen[str]", seconds: float) -> int | None:
    """Wait for a process; after some seconds interrupt it, then end it and all it has started."""
    for most, end in ((seconds, signal.SIGINT), (PATIENCE, signal.SIGKILL)):
        try:
            code = process.wait(most)
            return code if end == signal.SIGINT else None
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, end)
    process.wait()
    return None


def lay_out(package: Path) -> None:
    """Copy the tree as an installation has it, without a build."""
    for source, target in LAID_OUT.items():
        ignored = shutil.ignore_patterns("__pycache__", "csrc")
        shutil.copytree(ROOT / source, package / target, ignore=ignored, dirs_exist_ok=True)


def main() -> int:
    """Run the steps; return 1 if one of them went wrong."""
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--minutes", type=float, default=12.0, help="the most that all may take; 12"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="benchmarks/results unless given")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS, help="all unless given")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU; results are void")
    options = parser.parse_args()
    started = time.time()
    if find_spec("torch") is None:
        sys.exit(f"make gpu: {sys.executable} has no torch; run this by a python that has")
    import torch

    if not options.rehearse and not torch.cuda.is_available():
        sys.exit(
            "make gpu: torch sees no CUDA or ROCm device here, so that nothing can be measured; "
            "--rehearse goes through the steps"
        )
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "site")
        lay_out(package)
        places = [package, ROOT / "benchmarks", ROOT / "tests", os.environ.get("PYTHONPATH", "")]
        environment = {
            "PYTHONPATH": os.pathsep.join(str(it) for it in places if str(it)),
            "PYTHONSAFEPATH": "1",  # not the tree's kgfast/, which has no kernels
        }
        sys.path[:0] = map(str, places[:3])
        if options.rehearse:
            from support.stub_driver import build

            triton = find_spec("triton")
            assert triton is not None
            environment |= build(Path(folder, "driver"), Path(str(triton.origin)).parent)
        return run_all(options, environment, package, started)


def run_all(
    options: argparse.Namespace, environment: Mapping[str, str], package: Path, started: float
) -> int:
    """Run the steps that are chosen, keeping the outcome of each; return the exit code."""
    from lib.machine import machine_tag
    from lib.results import write_json

    tag = "rehearsal" if options.rehearse else machine_tag("cuda")
    options.out.mkdir(parents=True, exist_ok=True)
    run = Run(str(options.out.resolve() / tag), environment, options.rehearse)
    summary, cases = Path(f"{run.files}-summary.json"), Path(f"{run.files}-cases.jsonl")
    Path(f"{run.files}-log.txt").write_text("")
    found = kept(summary, cases, options.steps)
    about = {"command": "make gpu", "void": options.rehearse, **about_device(options.rehearse)}
    outcomes: dict[str, Outcome] = {}
    for name, (most, work) in run.steps(package).items():
        if name not in options.steps:
            continue
        begun = time.time()
        left = started + 60 * options.minutes - begun
        missing = [it for it in NEEDS.get(name, ()) if find_spec(it) is None]
        print(f"== {name}", flush=True)
        if missing:
            outcome = Outcome(f"left out: needs {' and '.join(missing)}")
        elif left < 5:
            outcome = Outcome("left out: no time was left")
        else:
            outcome = work(left if options.rehearse else min(most, left))
        outcomes[name] = replace(outcome, seconds=time.time() - begun)
        print(*said(name, outcomes[name]), sep="\n", flush=True)
        found[name] = asdict(outcomes[name])
        write_json(summary, {**about, "seconds": time.time() - started, "steps": found})
    print("", *(f"{name:12} {it.verdict}" for name, it in outcomes.items()), sep="\n")
    print(f"{time.time() - started:.0f} s; wrote {run.files}-*")
    return int(any(it.is_bad for it in outcomes.values()))


def kept(summary: Path, cases: Path, steps: Sequence[str]) -> dict[str, Any]:
    """Leave the cases of steps that do not run again; return the outcomes of these steps."""
    lines = cases.read_text().splitlines(keepends=True) if cases.exists() else []
    cases.write_text("".join(it for it in lines if json.loads(it)["step"] not in steps))
    earlier = json.loads(summary.read_text())["steps"] if summary.exists() else {}
    return {name: it for name, it in earlier.items() if name not in steps}


def said(name: str, outcome: Outcome) -> list[str]:
    """Return the lines about a step for a person."""
    return [f"{name:12} {outcome.verdict:32} {outcome.seconds:5.0f} s"] + [
        f"    {line}" for line in outcome.lines
    ]


def about_device(rehearses: bool) -> dict[str, Any]:
    """Return the machine, versions and clocks, or why they are not known."""
    fields = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,memory.total"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"]
    try:
        from lib.machine import machine, versions

        about = {"machine": machine("cpu" if rehearses else "cuda"), "versions": versions()}
    except Exception as error:  # a package that cannot be imported is what the steps will show
        about = {"error": f"{type(error).__name__}: {error}"}
    if shutil.which("nvidia-smi"):
        smi = subprocess.run(command, capture_output=True, text=True, check=False)
        about["nvidia_smi"] = smi.stdout.splitlines()
    return about


if __name__ == "__main__":
    sys.exit(main())
