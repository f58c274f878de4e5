"""Compare dot products with the int8 tier and without it, in turns.

    python benchmarks/dot_tiers_speed.py            writes results/cpu-dot-tiers-speed.json
    python benchmarks/dot_tiers_speed.py --run DIR  ranks with tables of runs (may be repeated)

Rows of other machines and instruction sets (`KGFAST_CPU_ISA`) stay in the file. Tables are normal
or of heavy tails (Student's t with 3 degrees of freedom). Times are median CPU seconds of one
thread, and a speedup is the median over neighbouring turns. `pairs`: shares that the tier swept,
left to float32, and left to canonical scores. Exit code 2 on a machine without the tier.
"""

import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import kgfast
from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from kgfast.models.base import Side
from lib.benchmark import Benchmark, Option, Options, Parser, of_others
from lib.columns import DOT_TIERS
from lib.indexed import Indexed
from lib.measure import take_turns, thread_seconds
from lib.peers.nearest import Search
from lib.peers.ranks import Work

K = 10
TRAINED = 512  # queries of a run
TIERS = ("none", "int8")
TABLES = ("normal", "heavy tails")
RANKS = ((40_943, 256, 512), (40_943, 128, 512), (40_943, 512, 512), (14_541, 200, 512))
BEST = ((1_000_000, 128, 64), (1_000_000, 128, 1), (40_943, 256, 512))
QUICK_RANKS, QUICK_BEST = ((500, 64, 64),), ((800, 64, 64),)

Result = Sequence[Tensor]


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each work, shape and table."""
    ranks, best = (QUICK_RANKS, QUICK_BEST) if options.quick else (RANKS, BEST)
    for shape in ranks:
        for table in TABLES:
            yield where("ranks", *shape, table) | rank_row(drawn(*shape, table), options.rounds)
    for run in options.run or ():
        for side, work in trained(run):
            shape = (*work.table.shape, len(work.queries))
            table = f"trained on {run.name}, {side}"
            yield where("ranks", *shape, table) | rank_row(work, options.rounds)
    for shape in best:
        yield where("best", *shape, "normal") | best_row(*shape, options.rounds)


def drawn(entities: int, dim: int, batch: int, table: str) -> Work:
    """Draw rows, queries and their targets."""
    generator = torch.Generator().manual_seed(0)
    rows, queries = (random_rows(count, dim, table, generator) for count in (entities, batch))
    return Work(queries, rows, torch.randint(entities, (batch,), generator=generator))


def trained(run: Path) -> Iterator[tuple[Side, Work]]:
    """Yield the sides of a run of a model by dot products, with queries of the test set."""
    loaded = kgfast.load_run(run)
    if loaded.dataset is None or loaded.model.score != "dot":
        raise SystemExit(f"--run {run}: not a run by dot products whose dataset is at hand")
    hrt = loaded.dataset.test.hrt
    chosen = torch.randperm(len(hrt), generator=torch.Generator().manual_seed(0))[:TRAINED]
    heads, relations, tails = hrt[chosen].T.contiguous()
    ids: dict[Side, tuple[Tensor, Tensor]] = {"tail": (heads, tails), "head": (tails, heads)}
    for side, (anchors, targets) in ids.items():
        with torch.no_grad():
            queries = loaded.model.queries(anchors, relations, side).float().contiguous()
            rows = loaded.model.candidates(side).table.float().contiguous()
        yield side, Work(queries, rows, targets)


def rank_row(work: Work, rounds: int) -> dict[str, Any]:
    """Count ranks of targets, without known triples."""
    batch = len(work.queries)
    no_known = torch.zeros(batch + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)

    def counts() -> Result:
        return ops.rank_counts(work.queries, work.table, work.targets, *no_known, "dot")

    with tiers.counted_pairs() as pairs:
        found = race(counts, rounds, {})
    shares = (pairs[2:] / (rounds * batch * len(work.table))).tolist()
    pairs = dict(zip(("swept", "float32", "canonical"), shares, strict=True))
    return found | {"pairs": pairs}


def best_row(entities: int, dim: int, batch: int, rounds: int) -> dict[str, Any]:
    """Find the best k, also with an index."""
    generator = torch.Generator().manual_seed(0)
    rows, queries = (random_rows(count, dim, "normal", generator) for count in (entities, batch))
    search = Search(queries, rows, K)
    indexed = Indexed(search, "dot")

    def best() -> Result:
        return ops.topk(queries, rows, K, score="dot")

    found = race(best, rounds, {"index": indexed})
    found["equal"] = found["equal"] and torch.equal(indexed(), best()[1])
    return found


def random_rows(count: int, dim: int, table: str, generator: torch.Generator) -> Tensor:
    """Draw normal rows; of heavy tails, each number over the root of a chi-square of its own."""
    rows = torch.randn(count, dim, generator=generator)
    if table == "heavy tails":
        squares = sum(torch.randn(count, dim, generator=generator).square() for _ in range(3))
        rows /= (squares / 3).sqrt()
    return rows


def where(work: str, entities: int, dim: int, batch: int, table: str) -> dict[str, Any]:
    """Return the columns that tell rows apart."""
    shape = {"entities": entities, "dim": dim, "batch": batch}
    return {"work": work, **shape, "table": table, "threads": 1}


def race(
    call: Callable[[], Result], rounds: int, others: dict[str, Callable[[], Any]]
) -> dict[str, Any]:
    """Let both settings, and the others, take turns."""
    results: dict[str, Result] = {}

    def with_tiers(name: str) -> Callable[[], None]:
        def work() -> None:
            with patch.dict(os.environ, KGFAST_TIERS=name):
                results[name] = call()

        return work

    seconds = take_turns(
        {name: with_tiers(name) for name in TIERS} | others, rounds, thread_seconds
    )
    median = {name: statistics.median(found) for name, found in seconds.items()}
    return {
        "rounds": rounds,
        "seconds": median,
        "least": {name: min(found) for name, found in seconds.items()},
        "speedup": statistics.median(
            none / int8 for none, int8 in zip(seconds["none"], seconds["int8"], strict=True)
        ),
        "equal": all(torch.equal(a, b) for a, b in zip(*results.values(), strict=True)),
    }


def check(parser: Parser, options: Options) -> None:
    """Check that there is a tier to compare."""
    if "int8" not in tiers.available(cpu.isa()):
        parser.error("this machine or build has no int8 tier")


BENCHMARK = Benchmark(
    "dot_tiers_speed",
    __doc__,
    {"dot": rows_of},
    options={
        "rounds": Option("turns of each contender", 7),
        "run": Option("the folder of a run", keywords={"type": Path, "action": "append"}),
    },
    tables=DOT_TIERS,
    check=check,
    stays=of_others,
    threads=1,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
