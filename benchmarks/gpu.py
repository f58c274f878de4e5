"""`make gpu`: times first, then checks, on a machine with a GPU and no network.

    python3 benchmarks/gpu.py --out DIR --cache FILE    the first call: times
    python3 benchmarks/gpu.py --call checks ...         the second: tests, memcheck; then `rest`
    python3 benchmarks/gpu.py --steps rates cut         some of the steps
    python3 benchmarks/gpu.py --rehearse                without a GPU: times and results are void
    python3 benchmarks/gpu.py --graph DIR ...           the folder of WN18RR, for its integers
    python3 benchmarks/gpu.py --graph DIR --integers    writes what the step `integers` reads

The python that runs this needs torch (2.11 or later) with Triton (3.6 or later) and numpy. Nothing
is installed or built first. Times are cases of one process; after one that fails, crashes or hangs,
another process goes on. A step whose tools are missing is left out and says so. ``DIR`` gets
<gpu>-cases.jsonl (a line for each case, as it comes), <gpu>-summary.json (device, versions,
outcomes of steps), <gpu>-log.txt (all output), and <gpu>-cache.tgz: kernels that Triton compiled,
the ``FILE`` of the next run. Results of steps that do not run stay.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PATIENCE = 10  # seconds from an interrupt to a command's end: to report what it has found
SANITIZERS = ("memcheck", "racecheck", "synccheck")  # tools of compute-sanitizer
TIMES = {"device": 5, "rates": 20, "headlines": 90, "profile": 25, "captured": 20}
TIMES |= {"batches": 20, "integers": 25, "cut": 30}
CALLS: dict[str, tuple[int, dict[str, int]]] = {  # most seconds of a call, and of its steps
    "times": (330, {**TIMES, "failed": 30}),
    "checks": (400, {"checks": 90, "tests": 200, "memcheck": 60}),
    "rest": (200, dict.fromkeys(SANITIZERS[1:], 60)),
}
SECONDS = {name: most for _, steps in CALLS.values() for name, most in steps.items()}
OF_ALL = ("above", "bounds", "gradients", "lists", "ranks", "topk", "losses", "adversarial")
OF_TRITON = ("scratch", "negatives", "scores", "rscf")
KERNELS = [f"tests/kernels/test_{name}.py" for name in (*OF_ALL, "float_modes")]
KERNELS += [f"tests/kernels/triton/test_{name}.py" for name in OF_TRITON]
PROGRAM = [sys.executable, "benchmarks/lib/gpu_cases.py"]
PYTEST = [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors"]
MANY = ["-n", str(min(16, os.cpu_count() or 1))] * (find_spec("xdist") is not None)
TOOLS = dict.fromkeys(("failed", "checks", "tests"), ("pytest", "hypothesis"))
TOOLS["captured"] = ("pydantic", "yaml")
Values = dict[str, Any]
LAID_OUT = {"kgfast": "kgfast", "kernels": "kgfast/kernels", "configs": "kgfast/configs"}


def outcome_of(lines: Sequence[Mapping[str, Any]]) -> Values:
    """Sum up the lines of a step's cases."""
    failed, late = (sum(key in line for line in lines) for key in ("error", "left_out"))
    verdict = f"STOPPED: no time for {late} of {len(lines)} cases" if late else "good"
    if failed or not lines:
        verdict = f"FAILED: {failed} of {len(lines)} cases"
    return {"verdict": verdict, "seconds": sum(line.get("took", 0.0) for line in lines)}


def commands_of_steps(*, rehearses: bool = False) -> dict[str, list[str]]:
    """Return the command of each step that is not one of times; a rehearsal has no sanitizers."""
    tests = {"failed": failed_before(), "checks": [*MANY, *KERNELS]}
    tests["tests"] = [*MANY, "tests/gpu", "tests/eval/test_fronts.py"]
    commands = {name: [*PYTEST, "-m", "gpu", *where] for name, where in tests.items() if where}
    commands.setdefault("failed", [])
    for tool in SANITIZERS:
        words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1"]
        words += ["--padding", "4096"] if tool == "memcheck" else []
        plan = ["headlines=60,batches=60", "0", str(time.time() + 3600), "small", "uncached"]
        plan, words = ([*plan, "rehearse"], []) if rehearses else (plan, words)
        commands[tool] = [*words, *PROGRAM, *plan]
    return commands


@dataclass(frozen=True)
class Run:
    """A run of some steps: where it writes, and how its processes are started."""

    files: str  # the beginning of the path of each file
    environment: Mapping[str, str]
    sizes: str | None = None  # of a rehearsal

    def start(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
        """Start a process in a group of its own, so that its workers end with it."""
        environment = {**os.environ, **self.environment}
        options |= {"stdin": subprocess.DEVNULL, "text": True, "start_new_session": True}
        return subprocess.Popen(command, cwd=ROOT, env=environment, **options)

    def cases(self, steps: Mapping[str, float], until: float) -> dict[str, Values]:
        """Run cases; after one that fails or ends the process, go on in another process."""
        lines: dict[str, list[Values]] = {name: [] for name in steps}
        plan = ",".join(f"{name}={seconds}" for name, seconds in steps.items())
        words = ["rehearse", self.sizes] if self.sizes else []
        first, code, began = 0, 1, -1
        while code and time.time() < until and first != began:
            began, begun = first, None
            command = [*PROGRAM, plan, str(first), str(until), *words]
            with Path(f"{self.files}-log.txt").open("a") as log:
                process = self.start(command, stdout=subprocess.PIPE, stderr=log)
            watch = Timer(until - time.time() + PATIENCE, process.kill)
            watch.daemon = True
            watch.start()
            for text in process.stdout or ():
                line = json.loads(text) if text.startswith('{"step"') else {}
                if "begins" in line:
                    first, begun = line.pop("begins") + 1, line
                elif line:
                    self.record(line, lines)
                    begun = None
            code = process.wait()
            watch.cancel()
            if begun is not None:
                self.record(begun | {"error": f"ended its process: exit code {code}"}, lines)
        return {name: outcome_of(of_step) for name, of_step in lines.items()}

    def record(self, line: Values, lines: Mapping[str, list[Values]]) -> None:
        """Keep, write and print the line of a case."""
        lines[line["step"]].append(line)
        with Path(f"{self.files}-cases.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(said(line), flush=True)

    def step(self, name: str, command: Sequence[str], seconds: float) -> Values:
        """Run a command to its end, or for some seconds; its output goes to the log."""
        missing = missing_for(name) + [tool for tool in command[:1] if shutil.which(tool) is None]
        why = "no time was left" if seconds < 5 else "" if command else "no test failed before"
        if missing or why:
            why = f"needs {' and '.join(missing)}" if missing else why
            return {"verdict": f"left out: {why}", "seconds": 0.0}
        started, path = time.time(), Path(f"{self.files}-log.txt")
        place = path.stat().st_size
        with path.open("a") as log:
            code = _wait(self.start(command, stdout=log, stderr=subprocess.STDOUT), seconds)
        output = path.read_bytes()[place:].decode(errors="replace")
        verdict = {None: "STOPPED: over its time", 0: "good"}.get(code, f"FAILED: exit code {code}")
        lines = output.splitlines()[-4 if code else -1 :]
        return {"verdict": verdict, "seconds": time.time() - started, "lines": lines}


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


def missing_for(step: str) -> list[str]:
    """Return the packages that a step needs and that are not here."""
    return [tool for tool in TOOLS.get(step, ()) if find_spec(tool) is None]


def failed_before() -> list[str]:
    """Return the tests that failed on a device, by the logs among the results."""
    logs = "\n".join(path.read_text() for path in sorted(RESULTS.glob("*-log.txt")))
    return list(dict.fromkeys(re.findall(r"^FAILED (tests/gpu/\S+)", logs, re.MULTILINE)))


def said(line: Mapping[str, Any]) -> str:
    """Return the line of a case for a person."""
    words = [f"{line['step']}: {line['case']}:"]
    if "seconds" in line:
        words.append("{median:.6f} s, {min:.6f} to {max:.6f};".format(**line["seconds"]))
    for name, value in line.items():
        if name not in ("step", "case", "seconds", "kernels"):
            words.append(f"{name} {f'{value:.3g}' if isinstance(value, float) else value};")
    return " ".join(words)


def main() -> int:
    """Run the steps; return 1 if one of them went wrong."""
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--call", choices=CALLS, default="times", help="which steps; times")
    parser.add_argument("--steps", nargs="+", choices=SECONDS, help="some of all steps instead")
    parser.add_argument("--out", type=Path, default=RESULTS, help="benchmarks/results unless given")
    parser.add_argument("--cache", type=Path, help="<gpu>-cache.tgz of an earlier run")
    parser.add_argument("--graph", type=Path, help="WN18RR's folder, for its integers")
    sizes = {"choices": ("small", "full"), "nargs": "?", "const": "small"}
    parser.add_argument("--rehearse", **sizes, help="without a GPU; results are void")
    parser.add_argument("--integers", action="store_true", help="write cpu-integers.json")
    options = parser.parse_args()
    if find_spec("torch") is None:
        sys.exit(f"make gpu: {sys.executable} has no torch; run this by a python that has")
    import torch

    if options.graph:
        os.environ["KGFAST_GRAPH"] = str(options.graph.resolve())
    if options.integers:
        if not options.graph:
            parser.error("--integers needs --graph, WN18RR's folder")
        sys.path.append(str(ROOT / "tests"))
        from lib.gpu_cases import write_integers

        return write_integers()
    if not options.rehearse and not torch.cuda.is_available():
        sys.exit(
            "make gpu: torch sees no CUDA or ROCm device here, so that nothing can be measured; "
            "--rehearse goes through the steps"
        )
    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "site")
        for source, target in LAID_OUT.items():  # as an installation has them
            ignored = shutil.ignore_patterns("__pycache__", "csrc")
            shutil.copytree(ROOT / source, package / target, ignore=ignored, dirs_exist_ok=True)
        places = [package, ROOT / "benchmarks", ROOT / "tests", os.environ.get("PYTHONPATH", "")]
        sys.path[:0] = map(str, places[:3])
        kernels = os.environ.get("TRITON_CACHE_DIR", str(ROOT / "build" / "triton"))
        environment = {"TRITON_CACHE_DIR": kernels}
        Path(kernels).mkdir(parents=True, exist_ok=True)
        if options.cache and options.cache.exists():
            unpack(options.cache, Path(kernels))
        environment["PYTHONPATH"] = os.pathsep.join(str(place) for place in places if str(place))
        environment["PYTHONSAFEPATH"] = "1"  # not the tree's kgfast/, which has no kernels
        if options.rehearse:
            from support.stub_driver import build

            triton = Path(str(getattr(find_spec("triton"), "origin", None))).parent
            environment = build(Path(folder, "driver"), triton) | environment
        return run_all(options, environment, started)


def unpack(cache: Path, kernels: Path) -> None:
    """Unpack compiled kernels, whose lists of files name the folder that they were made in."""
    with tarfile.open(cache) as packed:
        packed.extractall(kernels, filter="data")
    for group in kernels.glob("*/__grp__*"):
        names = json.loads(group.read_text())["child_paths"]
        paths = {name: str(group.with_name(name)) for name in names}
        group.write_text(json.dumps({"child_paths": paths}))


def run_all(options: argparse.Namespace, environment: Mapping[str, str], started: float) -> int:
    """Run the steps that are chosen, keeping the outcome of each; return the exit code."""
    from lib.machine import facts, machine_tag
    from lib.results import write_json

    device, tag = ("cpu", "rehearsal") if options.rehearse else ("cuda", machine_tag("cuda"))
    options.out.mkdir(parents=True, exist_ok=True)
    files = str(options.out.resolve() / tag)
    limit, steps = CALLS[options.call]
    if options.steps:
        steps = {name: SECONDS[name] for name in options.steps}
        limit = 60 + sum(steps.values())
    if options.rehearse:  # on a host that compiles slowly
        limit, steps = 10 * limit, {name: 10 * most for name, most in steps.items()}
    until = started + limit
    commands = commands_of_steps(rehearses=bool(options.rehearse))  # by the log of the run before
    Path(f"{files}-log.txt").write_text("")
    run = Run(files, environment, options.rehearse)
    summary = Path(f"{files}-summary.json")
    about = {**facts(device), "command": "make gpu", "void": bool(options.rehearse)}
    earlier = kept(summary, Path(f"{files}-cases.jsonl"), list(steps))
    timed = {name: steps[name] for name in steps if name in TIMES and not missing_for(name)}
    outcomes = run.cases(timed, until) if timed else {}
    for name, most in steps.items():
        if name not in timed:
            outcomes[name] = run.step(name, commands.get(name, ()), min(most, until - time.time()))
        ended = outcomes[name]
        line = f"{name:10} {ended['verdict']:32} {ended['seconds']:5.0f} s"
        print(line, *ended.get("lines", ()), sep="\n    ", flush=True)
        write_json(summary, about | {"seconds": time.time() - started, "steps": earlier | outcomes})
    if timed and options.rehearse != "small":
        with tarfile.open(f"{files}-cache.tgz", "w:gz", compresslevel=4) as packed:
            packed.add(environment["TRITON_CACHE_DIR"], ".")
    print(f"{time.time() - started:.0f} s; wrote {files}-*")
    verdicts = [ended["verdict"] for ended in outcomes.values()]
    return int(any(not verdict.startswith(("good", "left out")) for verdict in verdicts))


def kept(summary: Path, cases: Path, steps: Sequence[str]) -> dict[str, Any]:
    """Leave the cases of steps that do not run again; return the outcomes of these steps."""
    lines = cases.read_text().splitlines(keepends=True) if cases.exists() else []
    cases.write_text("".join(line for line in lines if json.loads(line)["step"] not in steps))
    earlier = json.loads(summary.read_text())["steps"] if summary.exists() else {}
    return {name: outcome for name, outcome in earlier.items() if name not in steps}


if __name__ == "__main__":
    sys.exit(main())
