"""Compare dot products with the int8 tier and without it, in turns.

    python benchmarks/dot_tiers_speed.py            writes results/cpu-dot-tiers-speed.json
    python benchmarks/dot_tiers_speed.py --run DIR  ranks heads with tables of runs, too

Rows of other machines and instruction sets (`KGFAST_CPU_ISA`) stay in the file. Times are median
CPU seconds of one thread, and a speedup is the median over neighbouring turns. `pairs`: shares that
the tier swept, left open, and that got canonical scores. Exit code 2 on a machine without the
tier.
"""

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kgfast
from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from lib.benchmark import Benchmark, Option, Options, Parser, of_others
from lib.columns import DOT_TIERS
from lib.indexed import Indexed
from lib.measure import take_turns, thread_seconds
from lib.peers.nearest import Search
from lib.peers.ranks import Work

K = 10
TRAINED = 512  # queries of a run
TIERS = ("none", "int8")
# entities, features, queries
RANKS = ((40_943, 256, 512), (40_943, 128, 512), (40_943, 512, 512), (14_541, 200, 512))
BEST = ((1_000_000, 128, 64), (1_000_000, 128, 1), (40_943, 256, 512))
QUICK_RANKS, QUICK_BEST = ((500, 64, 64),), ((800, 64, 64),)

Result = Sequence[Tensor]


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each work, shape and table."""
    ranks, best = (QUICK_RANKS, QUICK_BEST) if options.quick else (RANKS, BEST)
    works = {"normal": [Work.normal(*shape) for shape in ranks]}
    works |= {f"trained on {run.name}, head": [trained(run)] for run in options.run or ()}
    for table, of_table in works.items():
        for work in of_table:
            yield where("ranks", work, table) | rank_row(work, options.rounds)
    for shape in best:
        work = Work.normal(*shape)
        yield where("best", work, "normal") | best_row(work, options.rounds)


def trained(run: Path) -> Work:
    """Return the heads of a run of a model by dot products, with queries of the test set."""
    loaded = kgfast.load_run(run)
    if loaded.dataset is None or loaded.model.score != "dot":
        raise SystemExit(f"--run {run}: not a run by dot products whose dataset is at hand")
    hrt = loaded.dataset.test.hrt
    chosen = torch.randperm(len(hrt), generator=torch.Generator().manual_seed(0))[:TRAINED]
    heads, relations, tails = hrt[chosen].T.contiguous()
    with torch.no_grad():
        queries = loaded.model.queries(tails, relations, "head").float().contiguous()
        rows = loaded.model.candidates("head").table.float().contiguous()
    return Work(queries, rows, heads)


def rank_row(work: Work, rounds: int) -> dict[str, Any]:
    """Count ranks of targets, without known triples."""
    batch = len(work.queries)
    no_known = torch.zeros(batch + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    call = partial(ops.rank_counts, work.queries, work.table, work.targets, *no_known, "dot")
    with tiers.counted_pairs() as pairs:
        found = race(call, rounds, {})
    shares = (pairs / (rounds * batch * len(work.table))).tolist()
    named = dict(zip(tiers.PAIRS, shares, strict=True))
    return found | {"pairs": {name: named[name] for name in ("swept", "left", "canonical")}}


def best_row(work: Work, rounds: int) -> dict[str, Any]:
    """Find the best k, also with an index."""
    indexed = Indexed(Search(work.queries, work.table, K), "dot")
    call = partial(ops.topk, work.queries, work.table, K, score="dot")
    found = race(call, rounds, {"index": indexed})
    found["equal"] = found["equal"] and torch.equal(indexed(), call()[1])
    return found


def where(kind: str, work: Work, table: str) -> dict[str, Any]:
    """Return the columns that tell rows apart."""
    entities, dim = work.table.shape
    shape = {"entities": entities, "dim": dim, "batch": len(work.queries)}
    return {"work": kind, **shape, "table": table, "threads": 1}


def race(
    call: Callable[[], Result], rounds: int, others: dict[str, Callable[[], Any]]
) -> dict[str, Any]:
    """Let both settings, and the others, take turns."""
    results: dict[str, Result] = {}

    def with_tiers(name: str) -> None:
        with tiers.serving(tiers.MASK.get() if name == "int8" else 0):
            results[name] = call()

    contenders = {name: partial(with_tiers, name) for name in TIERS}
    seconds = take_turns(contenders | others, rounds, thread_seconds)
    return {
        "rounds": rounds,
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
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
