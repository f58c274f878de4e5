"""Measure README's table and the pages' in one go; go on after an interruption: `make bench`.

    python benchmarks/bench.py                     what needs no data
    python benchmarks/bench.py --data DIR          and what needs graphs: DIR/wn18rr, DIR/fb15k-237
    python benchmarks/bench.py --only readme       README's table alone
    python benchmarks/bench.py --fresh             from the start

Parts run one after the other, for about two hours on two cores; contenders within a part take
turns. Each part writes its rows into benchmarks/results/ as it measures them. build/bench.json
lists the parts that are done on this machine by this version. Exit code 1 if a part failed; a later
call tries it again.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lib.machine import machine, versions
from lib.results import ROOT, write_json

STATE = ROOT / "build" / "bench.json"
RESULTS = "benchmarks/results"


@dataclass(frozen=True)
class Part:
    """A script with its options."""

    words: str  # {data}, {runs}: folders
    is_of_readme: bool = False

    @property
    def needs_data(self) -> bool:
        """Return whether the words name a folder of data or of runs."""
        return "{" in self.words

    @property
    def run(self) -> str:
        """Return the name of the run that the part trains, or nothing."""
        return self.words.rpartition("/")[2] if self.words.startswith("kgfast") else ""

    def command(self, options: argparse.Namespace) -> list[str]:
        """Return the command line."""
        name, *more = self.words.format(data=options.data, runs=options.runs).split()
        return [sys.executable, *(("-m", name) if self.run else (f"benchmarks/{name}",)), *more]


def trained(run: str, config: str, graph: str, *changes: str) -> Part:
    """Return a short training, whose table later parts search."""
    values = (f"dataset.root={{data}}/{graph}", *changes)
    sets = " ".join(f"--set {value}" for value in values)
    return Part(f"kgfast train --config {config} {sets} --run {{runs}}/{run}", True)


RUNS = ("complex-fb15k237", "distmult-fb15k237", "rotate-wn18rr")
TRAINED = " ".join(f"--run {{runs}}/{run}" for run in RUNS)
OF_DOT = " ".join(f"--run {{runs}}/{run}" for run in RUNS[:2])
PARTS = (
    Part("eval_speed.py --sections rotate single dot", True),
    Part(  # the picture has the loop of torch.compile
        f"eval_mem.py --ways --json {RESULTS}/cpu-eval-mem.json --plot {RESULTS}/cpu-eval-mem.png",
        True,
    ),
    Part("peers_speed.py --threads 1 --scores dot", True),
    trained("complex-fb15k237", "fb15k237/complex_n3", "fb15k-237", "train.epochs=3"),
    trained(
        *("distmult-fb15k237", "fb15k237/distmult", "fb15k-237"),
        *("model.base_dim=256", "train.epochs=3"),
    ),
    trained("rotate-wn18rr", "wn18rr/rotate_fast", "wn18rr", "train.steps=4000"),
    Part(f"peers_speed.py --threads 1 --scores {TRAINED}", True),
    Part("eval_speed.py --sections whole", True),
    Part("train_speed.py --sections epochs", True),
    Part("train_speed.py --sections negatives", True),
    Part(f"train_speed.py --sections loops --json {RESULTS}/cpu-train-loops.json"),
    Part("peers_speed.py"),
    Part(f"peers_speed.py --scores --entities 200000 {TRAINED}"),
    Part(f"dot_tiers_speed.py {OF_DOT}"),
    Part(f"loss_mem.py --json {RESULTS}/cpu-loss-mem.json"),
    Part("med_speed.py"),
)


def chosen(options: argparse.Namespace) -> list[Part]:
    """Return the parts that the options leave, without trainings whose runs are there."""
    left = [part for part in PARTS if options.data is not None or not part.needs_data]
    left = [it for it in left if not (it.run and (options.runs / it.run / "result.json").exists())]
    return [part for part in left if part.is_of_readme] if options.only == "readme" else left


def measure(
    parts: Sequence[Part],
    done: dict[str, str],
    options: argparse.Namespace,
    call: Callable[[list[str]], int],
) -> list[Part]:
    """Run the parts that are not done here by this version; return the parts that failed."""
    about = machine("cpu")
    key = f"{about['name']}, {about['isa']}, {versions()['kgfast']}"
    failed = []
    for number, part in enumerate(parts, 1):
        if done.get(part.words) == key:
            continue
        print(f"[{number}/{len(parts)}] {part.words}", flush=True)
        if part.run:
            shutil.rmtree(options.runs / part.run, ignore_errors=True)  # half of a training
        if call(part.command(options)):
            failed.append(part)
        else:
            done[part.words] = key
            write_json(STATE, done)
    return failed


def main() -> int:
    """Measure, and put the results into the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help="a folder that holds wn18rr and fb15k-237")
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "bench-runs")
    parser.add_argument("--only", choices=("readme",))
    parser.add_argument("--fresh", action="store_true", help="measure again what is done")
    options = parser.parse_args()
    for name in ("data", "runs"):  # results name the last part alone of an absolute path
        if (folder := getattr(options, name)) is not None:
            setattr(options, name, folder.resolve())
    done = json.loads(STATE.read_text()) if STATE.exists() and not options.fresh else {}
    failed = measure(chosen(options), done, options, lambda words: subprocess.call(words, cwd=ROOT))
    for part in failed:
        print(f"FAILED: {part.words}")
    return subprocess.call([sys.executable, "benchmarks/pages.py"], cwd=ROOT) or int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
