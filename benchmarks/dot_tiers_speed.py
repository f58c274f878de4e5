"""What the int8 tier saves of dot products, and faiss beside the best k: one thread, in turns.

    python benchmarks/dot_tiers_speed.py            writes results/cpu-dot-tiers-speed.json
    python benchmarks/dot_tiers_speed.py --quick    a smoke test: tiny tables; writes nothing

Each call runs with `KGFAST_TIERS=none` and with `int8`, on a random table and on one of heavy
tails (Student's t with 3 degrees of freedom), of whose rows bytes keep less. Times are CPU seconds
of the calling thread, medians of the rounds; of ranks, `pairs` are the shares of pairs that the
tier swept, that it left to float32, and that this left to canonical scores. `index`: the best k
with an index, as faiss has one. Exit code 1 if an integer differs, or on a machine without the
tier.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from lib.indexed import Indexed
from lib.machine import facts
from lib.peers import Missing
from lib.peers.nearest import faiss_flat
from lib.peers.topk import Search
from lib.results import RESULTS, write_json
from lib.tables import console

K = 10
TIERS = ("none", "int8")
TABLES = ("normal", "heavy tails")
RANKS = ((40_943, 256, 512), (40_943, 128, 512), (40_943, 512, 512), (14_541, 200, 512))
BEST = ((1_000_000, 128, 64), (1_000_000, 128, 1), (40_943, 256, 512))
QUICK_RANKS, QUICK_BEST = ((500, 64, 64),), ((800, 64, 64),)

Result = Sequence[Tensor]


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="default: results/cpu-dot-tiers-speed.json")
    options = parser.parse_args()
    if "int8" not in tiers.available(cpu.isa()):
        console().print("this machine or build has no int8 tier")
        return 1
    torch.set_num_threads(1)
    about, rows = facts("cpu"), []
    ranks, best = (QUICK_RANKS, QUICK_BEST) if options.quick else (RANKS, BEST)
    for shape in ranks:
        rows += [about | rank_row(*shape, table, options.rounds) for table in TABLES]
        show(rows[-2:])
    for shape in best:
        rows.append(about | best_row(*shape, options.rounds))
        show(rows[-1:])
    path = options.json or (None if options.quick else RESULTS / "cpu-dot-tiers-speed.json")
    if path is not None:
        write_json(path, {"rows": rows})
    return 0 if all(row["equal"] for row in rows) else 1


def rank_row(entities: int, dim: int, batch: int, table: str, rounds: int) -> dict[str, Any]:
    """Ranks of random targets."""
    generator = torch.Generator().manual_seed(0)
    rows, queries = (random_rows(count, dim, table, generator) for count in (entities, batch))
    targets = torch.randint(entities, (batch,), generator=generator)
    no_known = torch.zeros(batch + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)

    def counts() -> Result:
        return ops.rank_counts(queries, rows, targets, *no_known, "dot")

    before = torch.tensor(cpu.extension.tier_pairs())
    found = race(counts, rounds)
    shares = (torch.tensor(cpu.extension.tier_pairs()) - before) / (rounds * batch * entities)
    pairs = dict(zip(("swept", "float32", "canonical"), shares.tolist(), strict=True))
    return where("ranks", entities, dim, batch, table) | found | {"pairs": pairs}


def best_row(entities: int, dim: int, batch: int, rounds: int) -> dict[str, Any]:
    """The best k, and faiss where it is installed."""
    generator = torch.Generator().manual_seed(0)
    rows, queries = (random_rows(count, dim, "normal", generator) for count in (entities, batch))
    search = Search(queries, rows, K)
    indexed = Indexed(search, "dot")
    others: dict[str, Callable[[], Any]] = {"index": indexed}
    try:
        others["faiss"] = faiss_flat(search, "dot")
    except (ImportError, Missing) as error:
        console().print(f"without faiss: {error}")

    def best() -> Result:
        return ops.topk(queries, rows, K, score="dot")

    found = race(best, rounds, others)
    found["equal"] = found["equal"] and torch.equal(indexed(), best()[1])
    return where("best", entities, dim, batch, "normal") | found


def random_rows(count: int, dim: int, table: str, generator: torch.Generator) -> Tensor:
    """Normal rows; of heavy tails, each number over the root of a chi-square of its own."""
    rows = torch.randn(count, dim, generator=generator)
    if table == "heavy tails":
        squares = sum(torch.randn(count, dim, generator=generator).square() for _ in range(3))
        rows /= (squares / 3).sqrt()
    return rows


def where(work: str, entities: int, dim: int, batch: int, table: str) -> dict[str, Any]:
    """The columns that tell rows apart."""
    return {
        "benchmark": "dot_tiers_speed",
        "work": work,
        "entities": entities,
        "dim": dim,
        "batch": batch,
        "table": table,
        "threads": 1,
    }


def race(
    call: Callable[[], Result], rounds: int, others: dict[str, Callable[[], Any]] | None = None
) -> dict[str, Any]:
    """Both settings, and the others, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in (*TIERS, *(others or {}))}
    results: dict[str, Result] = {}
    for _ in range(rounds):
        for name in TIERS:
            os.environ["KGFAST_TIERS"] = name
            start = time.thread_time()
            results[name] = call()
            seconds[name].append(time.thread_time() - start)
        for name, other in (others or {}).items():
            start = time.thread_time()
            other()
            seconds[name].append(time.thread_time() - start)
    os.environ.pop("KGFAST_TIERS")
    median = {name: statistics.median(found) for name, found in seconds.items()}
    return {
        "rounds": rounds,
        "seconds": median,
        "least": {name: min(found) for name, found in seconds.items()},
        "speedup": median["none"] / median["int8"],
        "equal": all(torch.equal(a, b) for a, b in zip(*results.values(), strict=True)),
    }


def show(rows: list[dict[str, Any]]) -> None:
    """A line for each."""
    for row in rows:
        times = ", ".join(f"{name} {it * 1e3:.1f} ms" for name, it in row["seconds"].items())
        shape = f"{row['work']} N {row['entities']} d {row['dim']} B {row['batch']}"
        left = f"; {row['pairs']['float32']:.3%} to float32" if "pairs" in row else ""
        console().print(f"{shape} {row['table']}: {times}; {row['speedup']:.2f}x{left}")


if __name__ == "__main__":
    sys.exit(main())
