"""Training steps of croppable RotatE (MED), with RSCF and without: one pass against a pass each.

    python benchmarks/med_speed.py            results/cpu-med-speed.json

Whole steps of the trainer, queries, loss, backward and optimizer included, in turns in one process:
the widest model alone, all sub-models nested in one pass, and a pass for each of them. With shared
negatives and with negatives of every row. With RSCF scores are a pass each, and what is nested are
the filters of the entities.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from kgfast import MED, RSCF
from kgfast.datasets import Dataset
from kgfast.kernels.spares import freed_memory_kept
from kgfast.models.base import Candidates, Side
from kgfast.training import Config, Trainer
from lib.bare_run import TrainerSteps
from lib.benchmark import Benchmark, Option, Options, Parser, graph_of
from lib.columns import STEPS as STEPS_COLUMNS
from lib.measure import Stopwatch
from lib.results import Row

WARM_UP, STEPS = 2, 3  # steps a turn
GOAL = 1.25  # nested, as a multiple of the widest alone
NEGATIVES = {"shared": (512, 1024), "per_row": (1024, 64)}  # batch, negatives
QUICK = {"shared": (64, 32), "per_row": (64, 8)}
CASES = (("rotate", "shared"), ("rotate", "per_row"), ("rotate + rscf", "per_row"))
WAYS = ("widest alone", "nested", "a pass each")


class Apart(MED):
    """Sub-models as if they had operands of their own, as those of RSCF have: a pass each."""

    @property
    def nested(self) -> bool:
        """Return False."""
        return False


class FiltersApart(RSCF):
    """RSCF that makes the filters of each crop in a pass of its own."""

    def candidates_of(self, side: Side, dims: Sequence[int]) -> list[Candidates]:
        """Return the candidates of each crop."""
        return [RSCF.candidates_of(self, side, [dim])[0] for dim in dims]


def run_of(
    way: str, model: str, kind: str, graph: Dataset, dims: Sequence[int], sizes: tuple[int, int]
) -> TrainerSteps:
    """Return what makes the steps that are timed."""
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
        changed = trainer.model if model == "rotate" else trainer.model.model
        changed.__class__ = Apart if model == "rotate" else FiltersApart
    return TrainerSteps(trainer)


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each model, kind of negatives and way."""
    graph = graph_of(options)
    for model, kind in CASES:
        sizes = (QUICK if options.quick else NEGATIVES)[kind]
        with torch.random.fork_rng(), freed_memory_kept():  # as a run does
            runs = {way: run_of(way, model, kind, graph, options.dims, sizes) for way in WAYS}
            contenders = {way: partial(run.steps, STEPS) for way, run in runs.items()}
            for run in runs.values():
                run.steps(WARM_UP)
            timings = Stopwatch("cpu").interleave(contenders, options.rounds)
        for way, timing in timings.items():
            yield {
                "model": model,
                "way": way,
                "dims": list(options.dims),
                "negatives": kind,
                "batch": sizes[0],
                "negatives_per_triple": sizes[1],
                "seconds": timing.scaled(1 / STEPS).as_dict(),
                "times_widest": timing.median / timings["widest alone"].median,
            }


def check(parser: Parser, options: Options) -> None:
    """Check that sub-models grow."""
    if options.dims != sorted(set(options.dims)):
        parser.error(f"--dims must increase; got {options.dims}")


def _goal(row: Row) -> str:
    return f"<= {GOAL}" if (row["model"], row["way"]) == ("rotate", "nested") else ""


BENCHMARK = Benchmark(
    "med_speed",
    __doc__,
    {"steps": rows_of},
    options={
        "dims": Option("of the sub-models", [128, 256, 512], [4, 8, 16]),
        "rounds": Option("turns of each", 5),
    },
    tables=(*STEPS_COLUMNS, ("goal:", _goal)),
    check=check,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
