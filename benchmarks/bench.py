"""Measure README's table and the pages' in one go; go on after an interruption: `make bench`.

    python benchmarks/bench.py                     what needs no data
    python benchmarks/bench.py --data DIR          and what needs graphs: DIR/wn18rr, DIR/fb15k-237
    python benchmarks/bench.py --only readme       README's table alone
    python benchmarks/bench.py --fresh             from the start
    python benchmarks/bench.py --quick             each part in its smallest size; writes no results

Parts run one after the other; contenders within a part take turns. Each part writes its rows into
benchmarks/results/ as it measures them. build/bench.json remembers which parts are done on this
machine by this version, and how long parts took, from which the time that is left is told. Exit
code 1 if a part failed; a later call tries it again.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from lib.machine import machine, versions
from lib.results import ROOT, write_json

STATE = ROOT / "build" / "bench.json"
RESULTS = "benchmarks/results"


@dataclass(frozen=True)
class Part:
    """A script with its options, and about how many minutes it takes on two cores."""

    words: str  # {data}, {runs}: folders
    minutes: float
    is_of_readme: bool = False
    whole: str = ""  # further words, not with --quick

    @property
    def needs_data(self) -> bool:
        """Return whether the words name a folder of data or of runs."""
        return "{" in self.words

    @property
    def run(self) -> str:
        """Return the name of the run that the part trains, or nothing."""
        return self.words.rpartition("/")[2] if self.words.startswith("kgfast") else ""

    def command(self, options: argparse.Namespace) -> list[str]:
        """Return the command line; a smoke test draws its own graph."""
        words = self.words if options.quick else f"{self.words} {self.whole}"
        name, *more = words.format(data=options.data, runs=options.runs).split()
        if self.run:
            return [sys.executable, "-m", name, *more]
        return [sys.executable, f"benchmarks/{name}", *["--quick"] * options.quick, *more]


def trained(run: str, config: str, graph: str, *changes: str) -> Part:
    """Return a short training, whose table later parts search."""
    given = (f"dataset.root={{data}}/{graph}", *changes, "train.max_minutes=6")
    sets = " ".join(f"--set {it}" for it in given)
    return Part(f"kgfast train --config {config} {sets} --run {{runs}}/{run}", 7, True)


RUNS = ("complex-fb15k237", "distmult-fb15k237", "rotate-wn18rr")
TRAINED = " ".join(f"--run {{runs}}/{it}" for it in RUNS)
OF_DOT = " ".join(f"--run {{runs}}/{it}" for it in RUNS[:2])
PARTS = (
    Part("eval_speed.py --sections rotate single dot", 6, True),
    Part(  # the picture has the loop of torch.compile
        "eval_mem.py",
        3,
        True,
        f"--json {RESULTS}/cpu-eval-mem.json --plot {RESULTS}/cpu-eval-mem.png",
    ),
    Part("peers_speed.py --threads 1 --scores dot", 5, True),
    trained("complex-fb15k237", "fb15k237/complex_n3", "fb15k-237"),
    trained("distmult-fb15k237", "fb15k237/distmult", "fb15k-237", "model.base_dim=256"),
    trained("rotate-wn18rr", "wn18rr/rotate_fast", "wn18rr"),
    Part(f"peers_speed.py --threads 1 --scores {TRAINED}", 3, True),
    Part("eval_speed.py --sections whole", 3, True),
    Part("train_speed.py --sections epochs", 4, True),
    Part("train_speed.py --sections negatives", 8, True),
    Part("train_speed.py --sections loops", 1, whole=f"--json {RESULTS}/cpu-train-loops.json"),
    Part("peers_speed.py", 15),
    Part(f"peers_speed.py --scores --entities 200000 {TRAINED}", 14),
    Part(f"dot_tiers_speed.py {OF_DOT}", 3),
    Part("loss_mem.py", 8, whole=f"--json {RESULTS}/cpu-loss-mem.json"),
    Part("med_speed.py", 4),
)


def chosen(options: argparse.Namespace) -> list[Part]:
    """Return the parts that the options leave, without trainings whose runs are there."""
    left = [it for it in PARTS if options.data is not None or not it.needs_data]
    left = [it for it in left if not (it.run and (options.runs / it.run / "result.json").exists())]
    return [it for it in left if it.is_of_readme] if options.only == "readme" else left


class State:
    """The parts that are done on a machine by a version, and seconds that parts took."""

    def __init__(self, path: Path, key: str, *, fresh: bool) -> None:
        old = json.loads(path.read_text()) if path.exists() else {}
        self.path, self._key = path, key
        self.seconds: dict[str, float] = old.get("seconds", {})
        self.done: dict[str, str] = {} if fresh else old.get("done", {})

    def is_done(self, part: Part) -> bool:
        """Return whether a part was measured here by this version."""
        return self.done.get(part.words) == self._key

    def finish(self, part: Part, seconds: float) -> None:
        """Remember that a part is done."""
        self.done[part.words] = self._key
        self.seconds[part.words] = round(seconds, 1)
        write_json(self.path, {"done": self.done, "seconds": self.seconds})

    def left(self, parts: Iterable[Part]) -> timedelta:
        """Return about how long parts take that are not done."""
        open_parts = (it for it in parts if not self.is_done(it))
        spent = (self.seconds.get(it.words, 60 * it.minutes) for it in open_parts)
        return timedelta(seconds=round(sum(spent)))


def key() -> str:
    """Return this machine, its instruction set and the version."""
    about = machine("cpu")
    return f"{about['name']}, {about['isa']}, {versions()['kgfast']}"


def measure(
    parts: Sequence[Part],
    state: State,
    options: argparse.Namespace,
    call: Callable[[list[str]], int],
) -> list[Part]:
    """Run what is not done, with a line before each part; return the parts that failed."""
    failed = []
    for number, part in enumerate(parts, 1):
        if state.is_done(part):
            continue
        left = state.left(parts[number - 1 :])
        print(f"[{number}/{len(parts)}] {part.words}; about {left} left", flush=True)
        if part.run:
            shutil.rmtree(options.runs / part.run, ignore_errors=True)  # half of a training
        start = time.perf_counter()
        if call(part.command(options)):
            failed.append(part)
        elif not options.quick:
            state.finish(part, time.perf_counter() - start)
    return failed


def main() -> int:
    """Measure, and put the results into the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help="a folder that holds wn18rr and fb15k-237")
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "bench-runs")
    parser.add_argument("--only", choices=("readme",))
    parser.add_argument("--fresh", action="store_true", help="measure again what is done")
    parser.add_argument("--quick", action="store_true", help="each part in its smallest size")
    parser.add_argument("--list", action="store_true", help="show the parts and run none")
    options = parser.parse_args()
    if options.quick and options.data is not None:
        parser.error("--quick draws its own graphs: leave --data out")
    for name in ("data", "runs"):  # results name the last part alone of an absolute path
        if (folder := getattr(options, name)) is not None:
            setattr(options, name, folder.resolve())
    parts = chosen(options)
    state = State(STATE, key(), fresh=options.fresh or options.quick)
    if options.list:
        for part in parts:
            print("done" if state.is_done(part) else f"{state.left([part])}", part.words)
        print(f"about {state.left(parts)} left")
        return 0
    failed = measure(parts, state, options, lambda words: subprocess.call(words, cwd=ROOT))
    for part in failed:
        print(f"FAILED: {part.words}")
    if options.quick:
        return int(bool(failed))
    return subprocess.call([sys.executable, "benchmarks/pages.py"], cwd=ROOT) or int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
