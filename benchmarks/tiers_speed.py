"""Rank counts with tiers of distances before the float32 sweep and without them, in turns.

    python benchmarks/tiers_speed.py --run DIR    tables of runs of RotatE as well (may be repeated)
    python benchmarks/tiers_speed.py --quick      a smoke test: a small table

Writes results/cpu-tiers-speed.json. One thread, and its CPU time, so that other work on the machine
disturbs little; a ratio is the median of those of neighbouring turns. Tables: `random`, as a fresh
model has it, `planted` on the synthetic graph, and those of runs, with queries of their test sets.
Counts with and without are compared, and a sample with the float64 specification (exit code 1 if
they differ).
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kgfast
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from lib import options as known_options
from lib.bench import embeddings, kgfast_counts
from lib.machine import facts, machine_line
from lib.measure import Timing
from lib.peers.ranks import Work
from lib.results import write_json
from lib.tables import console

REFERENCE_QUERIES = 2  # checked against the specification
NORMAL = ("l1", "l2")  # scores of normal numbers
LINEAR = ("l1", "rotate")  # scores that the linear tier serves


@contextmanager
def tiers_set(value: str) -> Iterator[None]:
    """``KGFAST_TIERS`` for a while."""
    before = os.environ.get("KGFAST_TIERS")
    os.environ["KGFAST_TIERS"] = value
    try:
        yield
    finally:
        os.environ.pop("KGFAST_TIERS")
        if before is not None:
            os.environ["KGFAST_TIERS"] = before


def works(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], Work]]:
    """What is swept, and what to say of it."""
    graph = kgfast.datasets.synthetic(*(known_options.QUICK_SIZES if options.quick else ()))
    for dim in options.dims:
        for table in ("random", "planted"):
            model = kgfast.RotatE(*embeddings(graph, table, dim), relation_format="phase")
            yield from sides(options, model, graph.test.hrt, {"table": table, "dim": dim})
    for run in options.run:
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
    options: argparse.Namespace, model: kgfast.RotatE, hrt: Tensor, told: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], Work]]:
    """Tail and head queries of a model for test triples."""
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
    """Values of ``KGFAST_TIERS``: each tier that serves a score alone, and all of them."""
    names = ("linear", "fp16") if score in LINEAR else ("fp16",)
    each = [name for name in names if name in tiers.available(cpu.isa())]
    return list(dict.fromkeys([*each, ",".join(each)])) if each else []


def pairs_so_far() -> tuple[int, ...]:
    """Since the process began: decided by linear, swept by fp16, gathered by either, canonical."""
    _, decided, near, canonical = cpu.extension.linear_pairs()
    swept, gathered, more = cpu.extension.tier_pairs()
    return decided, swept, near + gathered, canonical + more


def measured(work: Work, score: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Of each set of tiers: seconds with and without it, shares of pairs, whether counts agree."""
    sets = sets_of(score)
    seconds: dict[str, list[float]] = {value: [] for value in ("none", *sets)}
    counts, pairs = {}, {}
    for _ in range(rounds + 1):  # the first warms up
        for value, times in seconds.items():
            with tiers_set(value):
                before, start = pairs_so_far(), time.thread_time()
                counts[value] = kgfast_counts(work, score)
                times.append(time.thread_time() - start)
                after = pairs_so_far()
            pairs[value] = [b - a for a, b in zip(before, after, strict=True)]
    kept = {value: times[1:] for value, times in seconds.items()}
    distinct = len(work.queries.unique(dim=0)) * len(work.table)
    for value in sets:
        ratios = [a / b for a, b in zip(kept["none"], kept[value], strict=True)]
        shares = ("decided", "swept", "gathered", "canonical")
        yield {
            "tiers": value,
            "queries": len(work.queries),
            "entities": len(work.table),
            "cpu_seconds": {name: Timing.of(kept[name]).as_dict() for name in ("none", value)},
            "times_faster": {
                "median": statistics.median(ratios),
                "min": min(ratios),
                "max": max(ratios),
            },
            **{name: count / distinct for name, count in zip(shares, pairs[value], strict=True)},
            "same_counts": all(
                torch.equal(a, b) for a, b in zip(counts["none"], counts[value], strict=True)
            ),
            "equals_reference": equals_reference(work, score, counts[value]),
        }


def equals_reference(work: Work, score: str, found: tuple[Tensor, Tensor | None]) -> bool:
    """Whether the first queries' counts are the specification's."""
    few = slice(REFERENCE_QUERIES)
    with kgfast.use_backend("reference"):
        part = Work(work.queries[few], work.table, work.targets[few])
        expected = kgfast_counts(part, score)
    return all(
        ours is not None and theirs is not None and torch.equal(ours[few], theirs)
        for ours, theirs in zip(found, expected, strict=True)
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = known_options.new_parser(__doc__)
    parser.add_argument("--dims", type=int, nargs="+", metavar="D", help="features")
    parser.add_argument("--queries", type=int, metavar="N", help="of each table and side")
    parser.add_argument("--rounds", type=int, metavar="N", help="turns of each")
    parser.add_argument("--run", type=Path, action="append", default=[], metavar="DIR")
    known_options.add_outputs(parser, "tiers-speed", plot=False)
    options = parser.parse_args(arguments)
    whole = {"dims": [128, 512], "queries": 512, "rounds": 5}
    quick = {"dims": [16], "queries": 33, "rounds": 2}
    known_options.set_defaults(options, whole, quick)
    known_options.check_positive(parser, options, "queries", "rounds")
    known_options.set_outputs(options, "tiers-speed")
    return options


def line_of(row: dict[str, Any]) -> str:
    """What the console shows of a row."""
    return (
        f"{row['score']:<7}{row['dim']:>4} {row['table']:<18}{row['side']:<5}{row['tiers']:<12}"
        f"{row['times_faster']['median']:5.2f}x  decided {row['decided']:6.1%}  "
        f"swept {row['swept']:6.1%}  gathered {row['gathered']:6.2%}  "
        f"canonical {row['canonical']:7.3%}"
    )


def main() -> int:
    """Measure, print, write; 1 if an answer differs from the specification."""
    options, out, about = parse(), console(), facts("cpu")
    if not cpu.is_available() or not sets_of("rotate"):
        out.print("this machine or build has no tiers of distances: nothing to compare")
        return 0
    torch.set_num_threads(1)
    out.print(machine_line(about), style="dim")
    rows = []
    for told, work in works(options):
        for found in measured(work, told["score"], options.rounds):
            rows.append({"benchmark": "tiers_speed", "extrapolated": False} | told | found | about)
            out.print(line_of(rows[-1]))
        if options.json is not None:  # after each: a run that is stopped keeps what there is
            write_json(options.json, {"rows": rows})
    return 0 if all(row["same_counts"] and row["equals_reference"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
