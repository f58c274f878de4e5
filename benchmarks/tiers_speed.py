"""Compare rank counts with the linear tier before the float32 sweep and without it.

    python benchmarks/tiers_speed.py --run DIR    tables of runs of RotatE as well (may be repeated)

Writes results/cpu-tiers-speed.json, where rows of other machines and instruction sets
(`KGFAST_CPU_ISA`) stay. Times are CPU seconds of one thread; a ratio is the median over
neighbouring turns. Tables: `random`, `planted` on the synthetic graph, and those of runs with
queries of their test sets.
"""

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import kgfast
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from lib.bench import embeddings, equals_reference, kgfast_counts
from lib.benchmark import Benchmark, Option, Options, graph_of, of_others
from lib.columns import TIERS
from lib.measure import Timing, take_turns, thread_seconds
from lib.peers.ranks import Work
from lib.results import Rows

REFERENCE_QUERIES = 2  # checked against the specification


def works(options: Options) -> Iterator[tuple[dict[str, Any], Work]]:
    """Yield each work, and the facts of its row."""
    graph = graph_of(options)
    for dim in options.dims:
        for table in ("random", "planted"):
            model = kgfast.RotatE(*embeddings(graph, table, dim), relation_format="phase")
            yield from sides(options, model, graph.test.hrt, {"table": table, "dim": dim})
    for run in options.run or ():
        loaded = kgfast.load_run(run)
        if loaded.dataset is None or not isinstance(loaded.model, kgfast.RotatE):
            raise SystemExit(f"--run {run}: not a run of RotatE whose dataset is at hand")
        table = f"trained on {loaded.dataset.name}"
        told = {"table": table, "dim": loaded.model.dim, "run": run.name}
        yield from sides(options, loaded.model, loaded.dataset.test.hrt, told)
    generator = torch.Generator().manual_seed(0)
    for dim in options.dims:
        rows = torch.randn(graph.num_entities, dim, generator=generator)
        queries = torch.randn(options.queries, dim, generator=generator)
        targets = torch.randint(len(rows), (options.queries,), generator=generator)
        told = {"table": "normal", "dim": dim, "score": "l1", "side": "tail"}
        yield told, Work(queries, rows, targets)


def sides(
    options: Options, model: kgfast.RotatE, hrt: Tensor, told: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], Work]]:
    """Yield tail and head queries of a model for test triples."""
    chosen = torch.randperm(len(hrt), generator=torch.Generator().manual_seed(0))
    heads, relations, tails = hrt[chosen[: options.queries]].T.contiguous()
    for side, anchors, targets in (("tail", heads, tails), ("head", tails, heads)):
        with torch.no_grad():
            queries = model.queries(anchors, relations, side)
        yield (
            told | {"score": "rotate", "side": side},
            Work(queries, model.entity.detach(), targets),
        )


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each table and side, if there is the tier."""
    if cpu.is_available() and "linear" in tiers.available(cpu.isa()):
        for told, work in works(options):
            yield {"extrapolated": False} | told | measured(work, told["score"], options.rounds)


def measured(work: Work, score: str, rounds: int) -> dict[str, Any]:
    """Return seconds with and without the tier, shares of pairs, and the checks."""
    counts, pairs = {}, {}

    def with_tiers(value: str) -> Callable[[], None]:
        def count() -> None:
            chosen = patch.dict(os.environ, KGFAST_TIERS=value)
            with chosen, tiers.counted_pairs() as pairs[value]:
                counts[value] = kgfast_counts(work, score)

        return count

    found = take_turns(
        {value: with_tiers(value) for value in ("none", "linear")}, rounds + 1, thread_seconds
    )
    seconds = {value: turns[1:] for value, turns in found.items()}  # the first warms up
    ratios = [a / b for a, b in zip(seconds["none"], seconds["linear"], strict=True)]
    few = slice(REFERENCE_QUERIES)
    part = Work(work.queries[few], work.table, work.targets[few])
    rows = dict(zip(("all", *tiers.TIERS), pairs["linear"].double(), strict=False))
    _, *shares = (rows["linear"] / rows["all"][0]).tolist()
    return {
        "tiers": "linear",
        "queries": len(work.queries),
        "entities": len(work.table),
        "cpu_seconds": {name: Timing.of(it).as_dict() for name, it in seconds.items()},
        "times_faster": {
            "median": statistics.median(ratios),
            "min": min(ratios),
            "max": max(ratios),
        },
        **dict(zip(("decided", "gathered", "canonical"), shares, strict=True)),
        "same_counts": all(map(torch.equal, counts["none"], counts["linear"])),
        "equals_reference": equals_reference(partial(kgfast_counts, part, score), counts["linear"]),
    }


def notes(rows: Rows) -> Iterator[str]:
    """Say so where there is nothing to compare."""
    if not rows:
        yield "this machine or build has no linear tier: nothing to compare"


BENCHMARK = Benchmark(
    "tiers_speed",
    __doc__,
    {"ranks": rows_of},
    options={
        "dims": Option("features", [128, 512], [16]),
        "queries": Option("queries of each table and side", 512, 33),
        "rounds": Option("turns of each", 5, 2),
        "run": Option("the folder of a run", keywords={"type": Path, "action": "append"}),
    },
    tables=TIERS,
    notes=notes,
    stays=of_others,
    threads=1,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
