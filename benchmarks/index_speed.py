"""Few queries with an index and without one, in turns, beside one read of what the index holds.

    python benchmarks/index_speed.py            writes results/cpu-index-speed.json

Each call is one of `kgfast.topk` on a random table; `read` is the largest number of the panels
(`amax`), which reads them once (float32 panels without their bytes: a fifth less than the index
holds). Every answer with the index is compared with the one without it
(exit code 1 if they differ). Seconds are CPU time of one thread: other work runs on the machine.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import kgfast
from kgfast.kernels.panels import Panels
from lib.benchmark import Benchmark, Option, Options
from lib.measure import Timing, take_turns, thread_seconds

MODELS = {
    "rotate": lambda n, d: kgfast.RotatE.init(n, 11, d, seed=0),
    "l1": lambda n, d: kgfast.TransE.init(n, 11, d, seed=0),
    "l2": lambda n, d: kgfast.TransE.init(n, 11, d, seed=0, norm="l2"),
    "dot": lambda n, d: kgfast.DistMult.init(n, 11, d, seed=0),
}
BATCHES = (1, 4, 16, 64)
SWEPT = 128  # queries of the sweeps that building is compared with


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each score and number of queries."""
    for score, make in MODELS.items():
        model = make(options.rows, options.dim)
        index = kgfast.Index(model)
        asked = _asked(model, SWEPT, options.k)
        calls = {"build": index.refresh, "sweep": partial(kgfast.topk, model, **asked)}
        built = spreads(calls, options.rounds)
        for batch in BATCHES:
            row = row_of(model, index, batch, options)
            row |= {"build_seconds": built["build"], "sweep_seconds": built["sweep"]}
            yield {"section": score} | row


def row_of(model: Any, index: kgfast.Index, batch: int, options: Options) -> dict[str, Any]:
    """Compare calls of so many queries."""
    panels = index.panels(model.candidates("tail"), model.score)
    assert isinstance(panels, Panels)
    asked = _asked(model, batch, options.k)
    own, other = (kgfast.topk(model, **asked, index=it) for it in (index, None))
    calls: dict[str, Callable[[], Any]] = {
        "index": lambda: kgfast.topk(model, **asked, index=index),
        "table": lambda: kgfast.topk(model, **asked),
        "read": panels.tensors["panels"].amax,
    }
    seconds = spreads(calls, options.rounds)
    middle = {name: it["median"] for name, it in seconds.items()}
    return {
        "entities": options.rows,
        "dim": options.dim,
        "batch": batch,
        "k": asked["k"],
        "number_format": panels.number_format,
        "index_bytes": index.nbytes,
        "table_bytes": model.entity.nbytes,
        "seconds": seconds,
        "table_times_index": middle["table"] / middle["index"],
        "index_times_read": middle["index"] / middle["read"],
        "equal": torch.equal(own.ids, other.ids) and torch.equal(own.scores, other.scores),
    }


def spreads(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, dict[str, float]]:
    """Return the seconds of the turns of each call."""
    return {
        name: Timing.of(values).as_dict()
        for name, values in take_turns(calls, rounds, thread_seconds).items()
    }


def _asked(model: Any, batch: int, k: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(batch)
    heads = torch.randint(model.num_entities, (batch,), generator=generator)
    relations = torch.randint(model.num_relations, (batch,), generator=generator)
    return {"heads": heads, "relations": relations, "k": k}


BENCHMARK = Benchmark(
    "index_speed",
    __doc__,
    {"topk": rows_of},
    options={
        "rows": Option("rows of the table", 40_943, 500),
        "dim": Option("features", 256, 8),
        "k": Option("answers to a query", 10, 3),
        "rounds": Option("turns of each contender", 25, 2),
    },
    tables=(
        ("score", "{section}"),
        ("queries:", "{batch}"),
        ("without:", "{seconds[table][median]:time}"),
        ("with the index:", "{seconds[index][median]:time}"),
        ("times faster:", "{table_times_index:.2f}"),
        ("of one read:", "{index_times_read:.2f}"),
        ("built in:", "{build_seconds[median]:time}"),
        (f"a sweep of {SWEPT}:", "{sweep_seconds[median]:time}"),
    ),
    threads=1,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
