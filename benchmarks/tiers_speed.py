"""Compare rank counts with tiers of distances before the float32 sweep and without them.

    python benchmarks/tiers_speed.py --run DIR    tables of runs of RotatE as well (may be repeated)

    python benchmarks/tiers_speed.py --sections half    bare loops over float16 that F16C converts

Writes results/cpu-tiers-speed.json, where rows of other machines and instruction sets
(`KGFAST_CPU_ISA`) stay. Times are CPU seconds of one thread; a ratio is the median over
neighbouring turns. Tables: `random`, `planted` on the synthetic graph, and those of runs with
queries of their test sets.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
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
from lib.columns import HALF_LOOPS, TIERS
from lib.measure import Timing, take_turns, thread_seconds
from lib.native import compiled
from lib.peers.ranks import Work
from lib.results import ROOT, Row, Rows

REFERENCE_QUERIES = 2  # checked against the specification
NORMAL = ("l1", "l2")  # scores of normal numbers
LINEAR = ("l1", "rotate")  # scores that the linear tier serves
SOURCES = ROOT / "kernels" / "cpu" / "csrc"
FLAGS = {  # flags of setup.py
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"],
}


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
    for score in NORMAL:
        for dim in options.dims:
            rows = torch.randn(graph.num_entities, dim, generator=generator)
            queries = torch.randn(options.queries, dim, generator=generator)
            targets = torch.randint(len(rows), (options.queries,), generator=generator)
            told = {"table": "normal", "dim": dim, "score": score, "side": "tail"}
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


def sets_of(score: str) -> list[str]:
    """Return values of ``KGFAST_TIERS``: each tier that serves a score alone, and all tiers."""
    names = ("linear", "fp16") if score in LINEAR else ("fp16",)
    each = [name for name in names if name in tiers.available(cpu.isa())]
    return list(dict.fromkeys([*each, ",".join(each)])) if each else []


def shares_of(pairs: Tensor) -> list[float]:
    """Return shares of all pairs: decided by linear, swept by fp16, gathered by any, canonical."""
    rows = dict(zip(("all", *tiers.TIERS), pairs.double() / pairs[0, 0], strict=False))
    *_, gathered, canonical = (rows["fp16"] + rows["linear"]).tolist()
    return [float(rows["linear"][1]), float(rows["fp16"][0]), gathered, canonical]


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each table, side and set of tiers, if there are tiers."""
    if not cpu.is_available() or not sets_of("rotate"):
        return
    for told, work in works(options):
        for row in measured(work, told["score"], options.rounds):
            yield {"extrapolated": False} | told | row


def measured(work: Work, score: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield seconds with and without each set of tiers, shares of pairs, and the checks."""
    sets, counts, pairs = sets_of(score), {}, {}

    def with_tiers(value: str) -> Callable[[], None]:
        def count() -> None:
            chosen = patch.dict(os.environ, KGFAST_TIERS=value)
            with chosen, tiers.counted_pairs() as pairs[value]:
                counts[value] = kgfast_counts(work, score)

        return count

    found = take_turns(
        {value: with_tiers(value) for value in ("none", *sets)}, rounds + 1, thread_seconds
    )
    seconds = {value: turns[1:] for value, turns in found.items()}  # the first warms up
    for value in sets:
        ratios = [a / b for a, b in zip(seconds["none"], seconds[value], strict=True)]
        few = slice(REFERENCE_QUERIES)
        part = Work(work.queries[few], work.table, work.targets[few])
        shares = shares_of(pairs[value])
        yield {
            "tiers": value,
            "queries": len(work.queries),
            "entities": len(work.table),
            "cpu_seconds": {name: Timing.of(seconds[name]).as_dict() for name in ("none", value)},
            "times_faster": {
                "median": statistics.median(ratios),
                "min": min(ratios),
                "max": max(ratios),
            },
            **dict(zip(("decided", "swept", "gathered", "canonical"), shares, strict=True)),
            "same_counts": all(map(torch.equal, counts["none"], counts[value])),
            "equals_reference": equals_reference(
                partial(kgfast_counts, part, score), counts[value]
            ),
        }


def half_rows(options: Options) -> Iterator[dict[str, Any]]:
    """Yield how many times as fast bare loops are where float16 is stored and converted."""
    if cpu.isa() not in FLAGS:
        return
    with tempfile.TemporaryDirectory() as folder:
        flags = [*FLAGS[cpu.isa()], "-ffp-contract=off", f'-DHEADER="simd/{cpu.isa()}.h"']
        program = compiled("half_loops.cpp", folder, [*flags, f"-I{SOURCES}"], shared=False)
        said = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    for row in map(json.loads, said.splitlines()):
        both = row.pop("seconds")
        ratios = [wide / half for wide, half in both]
        median, most = statistics.median(ratios), max(ratios)
        seconds = dict(zip(("float32", "float16"), zip(*both, strict=True), strict=True))
        yield (
            {"section": "half"}
            | row
            | {
                "cpu_seconds": {
                    name: Timing.of(values).as_dict() for name, values in seconds.items()
                },
                "times_faster": {"median": median, "min": min(ratios), "max": most},
            }
        )


def stays(row: Row, rows: Sequence[Row], options: Options) -> bool:
    """Return whether a row is of another machine, instruction set or section."""
    section = row.get("section", "ranks")
    return section not in options.sections or of_others(row, rows, options)


def notes(rows: Rows) -> Iterator[str]:
    """Say so where there is nothing to compare."""
    if not rows:
        yield "this machine or build has no tiers of distances: nothing to compare"


BENCHMARK = Benchmark(
    "tiers_speed",
    __doc__,
    {"ranks": rows_of, "half": half_rows},
    options={
        "dims": Option("features", [128, 512], [16]),
        "queries": Option("queries of each table and side", 512, 33),
        "rounds": Option("turns of each", 5, 2),
        "run": Option("the folder of a run", keywords={"type": Path, "action": "append"}),
    },
    tables={
        "ranks": ("Counts with tiers and without", TIERS),
        "half": ("Bare loops, float16 that is converted to float32", HALF_LOOPS),
    },
    section_of=lambda row: row.get("section", "ranks"),
    notes=notes,
    stays=stays,
    threads=1,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
