"""Training steps of croppable RotatE (MED), with RSCF and without: one pass against a pass each.

    python benchmarks/med_speed.py            results/cpu-med-speed.json
    python benchmarks/med_speed.py --quick    a smoke test: a tiny graph, seconds

Whole steps of the trainer, queries, loss, backward and optimizer included, in turns in one process:
the widest model alone, all sub-models nested in one pass, and a pass for each of them. With shared
negatives and with negatives of every row. With RSCF scores are a pass each, and what is nested are
the filters of the entities.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from rich.console import Console

from kgfast import MED, RSCF
from kgfast.datasets import Dataset, synthetic
from kgfast.models.base import Model
from kgfast.training import Config, Trainer
from kgfast.training.run import Run
from lib import options as known_options
from lib.bare_run import bare_run
from lib.machine import facts, machine_line
from lib.measure import Stopwatch
from lib.options import QUICK_SIZES
from lib.results import write_json
from lib.tables import console, human_seconds, new_table, spread

WARM_UP, STEPS = 2, 3  # of a turn
GOAL = 1.25  # nested, as a multiple of the widest alone
NEGATIVES = {"shared": (512, 1024), "per_row": (1024, 64)}  # batch, negatives
QUICK = {"shared": (64, 32), "per_row": (64, 8)}
CASES = (("rotate", "shared"), ("rotate", "per_row"), ("rotate + rscf", "per_row"))
WAYS = ("widest alone", "nested", "a pass each")
LABELS = {"rotate": "RotatE", "rotate + rscf": "RotatE + RSCF"}


class Apart(MED):
    """Sub-models as if they had operands of their own, as those of RSCF have: a pass each."""

    @property
    def nested(self) -> bool:
        """False."""
        return False


class FiltersApart(RSCF):
    """RSCF that makes the filters of each crop in a pass of its own."""

    candidates_of = Model.candidates_of


def run_of(
    way: str, model: str, kind: str, graph: Dataset, dims: Sequence[int], sizes: tuple[int, int]
) -> Run:
    """A run whose steps are timed; it has no folder and no evaluations."""
    config = Config.from_dict(
        {
            "dataset": {"name": "synthetic"},
            "model": {"name": "rotate", "base_dim": dims[-1], "use_rscf": model != "rotate"},
            "med": {"dims": list(dims[-1:] if way == "widest alone" else dims)},
            "optim": {"name": "row_adam", "lr": 5e-4},
            "train": {"steps": 10**6},
            "data": {"train_bs": sizes[0], "neg_size": sizes[1], "negatives": kind},
        }
    )
    trainer = Trainer(config, dataset=graph, progress=False)
    if way == "a pass each":
        if model == "rotate":
            trainer.model.__class__ = Apart
        else:
            trainer.model.model.__class__ = FiltersApart
    return bare_run(trainer)


def steps(run: Run, count: int) -> None:
    """Make steps."""
    for _ in range(count):
        run.make_step()


def measure(options: argparse.Namespace, graph: Dataset) -> Iterator[dict[str, Any]]:
    """A row for each model, kind of negatives and way."""
    for model, kind in CASES:
        sizes = (QUICK if options.quick else NEGATIVES)[kind]
        runs = {way: run_of(way, model, kind, graph, options.dims, sizes) for way in WAYS}
        contenders = {way: partial(steps, run, STEPS) for way, run in runs.items()}
        for run in runs.values():
            steps(run, WARM_UP)
        timings = Stopwatch("cpu").interleave(contenders, options.rounds)
        for way, timing in timings.items():
            seconds = timing.scaled(1 / STEPS)
            yield {
                "benchmark": "med_speed",
                "model": model,
                "way": way,
                "dims": list(options.dims),
                "negatives": kind,
                "batch": sizes[0],
                "negatives_per_triple": sizes[1],
                "seconds": seconds.as_dict(),
                "times_widest": timing.median / timings["widest alone"].median,
            }


def show(out: Console, rows: Sequence[dict[str, Any]]) -> None:
    """The rows as a table."""
    dims = ", ".join(map(str, rows[0]["dims"]))
    table = new_table(
        f"MED training steps, sub-models {dims}",
        *("model", "negatives", "", "step", "min .. max", "x widest", "goal"),
    )
    for row in rows:
        table.add_row(
            LABELS[row["model"]],
            f"{row['batch']} x {row['negatives_per_triple']} {row['negatives'].replace('_', ' ')}",
            row["way"],
            human_seconds(row["seconds"]["median"]),
            spread(row["seconds"]),
            f"{row['times_widest']:.2f}",
            f"<= {GOAL}" if (row["model"], row["way"]) == ("rotate", "nested") else "",
        )
    out.print(table)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = known_options.new_parser(__doc__)
    parser.add_argument("--dims", type=int, nargs="+", metavar="D", help="128 256 512 unless given")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    known_options.add_outputs(parser, "med-speed", plot=False)
    options = parser.parse_args(arguments)
    known_options.set_defaults(options, {"dims": [128, 256, 512]}, {"dims": [4, 8, 16]})
    known_options.check_positive(parser, options, "rounds")
    if options.dims != sorted(set(options.dims)):
        parser.error(f"--dims must increase; got {options.dims}")
    known_options.set_outputs(options, "med-speed")
    return options


def main() -> int:
    """Measure, print, write."""
    options = parse()
    out, about = console(), facts("cpu")
    out.print(machine_line(about), style="dim")
    graph = synthetic(*(QUICK_SIZES if options.quick else ()))
    with torch.random.fork_rng():
        rows = [row | about for row in measure(options, graph)]
    show(out, rows)
    if options.json is not None:
        write_json(options.json, {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
