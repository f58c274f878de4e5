"""Few queries with an index and without one, in turns, beside one read of what the index holds.

    python benchmarks/index_speed.py            writes results/cpu-index-speed.json
    python benchmarks/index_speed.py --quick    a smoke test: a small table

Each call is one of `kgfast.topk` on a random table; `read` is the largest number of the panels
(`amax`), which reads them once (float32 panels without their bytes: a fifth less than the index
holds). Every answer with the index is compared with the one without it
(exit code 1 if they differ). Seconds are CPU time of one thread: other work runs on the machine.
"""

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import kgfast
from kgfast.kernels.panels import Panels
from lib import options as known_options
from lib.machine import facts, machine_line
from lib.results import write_json
from lib.tables import console

MODELS = {
    "rotate": lambda n, d: kgfast.RotatE.init(n, 11, d, seed=0),
    "l1": lambda n, d: kgfast.TransE.init(n, 11, d, seed=0),
    "l2": lambda n, d: kgfast.TransE.init(n, 11, d, seed=0, norm="l2"),
    "dot": lambda n, d: kgfast.DistMult.init(n, 11, d, seed=0),
}
BATCHES = (1, 4, 16, 64)
SWEPT = 128  # queries of the sweeps that building is compared with


def seconds_of(call: Callable[[], Any]) -> float:
    """CPU time of this thread."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def rows_of(score: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each number of queries."""
    model = MODELS[score](options.rows, options.dim)
    index = kgfast.Index(model)
    panels = index.panels(model.candidates("tail"), model.score)
    assert isinstance(panels, Panels)
    numbers = panels.tensors["panels"]
    rows = []
    for batch in BATCHES:
        asked = _asked(model, batch, options.k)
        found = [kgfast.topk(model, **asked, index=it) for it in (index, None)]
        calls: dict[str, Callable[[], Any]] = {
            "index": lambda asked=asked: kgfast.topk(model, **asked, index=index),
            "table": lambda asked=asked: kgfast.topk(model, **asked),
            "read": numbers.amax,
        }
        rounds = [[seconds_of(call) for call in calls.values()] for _ in range(options.rounds)]
        columns = dict(zip(calls, zip(*rounds, strict=True), strict=True))
        rows.append(
            {
                "benchmark": "index_speed",
                "section": score,
                "entities": options.rows,
                "dim": options.dim,
                "batch": batch,
                "k": asked["k"],
                "number_format": panels.number_format,
                "index_bytes": index.nbytes,
                "table_bytes": model.entity.nbytes,
                "seconds": {name: _spread(column) for name, column in columns.items()},
                "table_times_index": median(columns["table"]) / median(columns["index"]),
                "index_times_read": median(columns["index"]) / median(columns["read"]),
                "equal": torch.equal(found[0].ids, found[1].ids)
                and torch.equal(found[0].scores, found[1].scores),
            }
        )
    asked = _asked(model, SWEPT, options.k)
    turns = [
        (seconds_of(index.refresh), seconds_of(lambda: kgfast.topk(model, **asked)))
        for _ in range(options.rounds)
    ]
    build, sweep = (_spread(column) for column in zip(*turns, strict=True))
    return [row | {"build_seconds": build, "sweep_seconds": sweep} for row in rows]


def _asked(model: Any, batch: int, k: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(batch)
    heads = torch.randint(model.num_entities, (batch,), generator=generator)
    relations = torch.randint(model.num_relations, (batch,), generator=generator)
    return {"heads": heads, "relations": relations, "k": k}


def _spread(values: Any) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = known_options.new_parser(__doc__, quick="a small table: seconds")
    for name, what in (
        ("rows", "of the table"),
        ("dim", "features"),
        ("k", "answers to a query"),
        ("rounds", "turns of each contender"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=what)
    known_options.add_outputs(parser, "index-speed", plot=False)
    options = parser.parse_args(arguments)
    whole = {"rows": 40_943, "dim": 256, "k": 10, "rounds": 25}
    quick = {"rows": 500, "dim": 8, "k": 3, "rounds": 2}
    known_options.set_defaults(options, whole, quick)
    known_options.check_positive(parser, options, *whole)
    known_options.set_outputs(options, "index-speed")
    return options


def main() -> int:
    """Measure, print, write; 1 if an answer differs."""
    options, out, about = parse(), console(), facts("cpu")
    out.print(machine_line(about), style="dim")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [row | about for score in MODELS for row in rows_of(score, options)]
    finally:
        torch.set_num_threads(threads)
    for row in rows:
        table, own, read = (row["seconds"][it]["median"] * 1e3 for it in ("table", "index", "read"))
        out.print(
            f"{row['section']:<8}{row['batch']:4} queries  {table:8.2f} -> {own:8.2f} ms "
            f"({row['table_times_index']:.2f}x)  one read {read:6.2f} ms "
            f"({row['index_times_read']:.2f}x)"
        )
        if row["batch"] == BATCHES[-1]:
            build, sweep = row["build_seconds"]["median"], row["sweep_seconds"]["median"]
            out.print(f"{'':8}built in {build * 1e3:.1f} ms: {build / sweep:.2f} sweeps of {SWEPT}")
    if options.json is not None:
        write_json(options.json, {"rows": rows})
    return 0 if all(row["equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
