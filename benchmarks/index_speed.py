"""Few queries with an index and without one, in turns, beside one read of what the index holds.

    python benchmarks/index_speed.py            writes results/cpu-index-speed.json
    KGFAST_CPU_ISA=avx2 python ...              the same, with narrower instructions

Rows of other machines, instruction sets and scores stay in the file. Each call is one of
`kgfast.topk` on a random table; `read` is the largest number (`amax`) of the bytes that few queries
of a distance read first, or of the panels, which reads them once; `python` is such a call on a
table of 64 rows, again and again. Every answer with the index is compared with the one without it
(exit code 1 if they differ). Seconds are CPU time of one thread: other work runs on the machine.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

import kgfast
from kgfast.kernels.panels import Panels
from lib.benchmark import Benchmark, Option, Options, of_others
from lib.columns import INDEX
from lib.measure import Timing, take_turns, thread_seconds
from lib.results import Row

MODELS = {
    "rotate": lambda n, d: kgfast.RotatE.init(n, 11, d, seed=0),
    "l1": lambda n, d: kgfast.TransE.init(n, 11, d, seed=0),
    "l2": lambda n, d: kgfast.TransE.init(n, 11, d, seed=0, norm="l2"),
    "dot": lambda n, d: kgfast.DistMult.init(n, 11, d, seed=0),
}
BATCHES = (1, 4, 16, 64)
BYTE_QUERIES = {"l1": 16, "l2": 4, "rotate": 4}  # queries that bytes serve
TINY = 64  # rows
SWEPT = 128  # queries of the sweeps that building is compared with


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each score, width and number of queries."""
    for score, dim in product(options.scores, options.dims):
        model, tiny = (MODELS[score](rows, dim) for rows in (options.rows, TINY))
        index, tiny_index = kgfast.Index(model), kgfast.Index(tiny)
        asked = _asked(model, SWEPT, options.k)
        calls = {"build": index.refresh, "sweep": partial(kgfast.topk, model, **asked)}
        built = spreads(calls, options.rounds)
        for batch in BATCHES:
            row = row_of(model, index, (tiny, tiny_index), batch, options)
            row |= {"build_seconds": built["build"], "sweep_seconds": built["sweep"]}
            yield {"section": score} | row


def row_of(
    model: Any, index: kgfast.Index, tiny: tuple[Any, kgfast.Index], batch: int, options: Options
) -> dict[str, Any]:
    """Compare calls of so many queries; ``tiny``: a model of few rows, and its index."""
    panels = index.panels(model.candidates("tail"), model.score)
    assert isinstance(panels, Panels)
    asked = _asked(model, batch, options.k)
    asked_of_tiny = _asked(tiny[0], batch, options.k)
    own, other = (kgfast.topk(model, **asked, index=it) for it in (index, None))
    calls: dict[str, Callable[[], Any]] = {
        "index": lambda: kgfast.topk(model, **asked, index=index),
        "table": lambda: kgfast.topk(model, **asked),
        "read": _what_is_read(panels, batch).amax,
    }
    seconds = spreads(calls, options.rounds)
    alone = {"python": lambda: kgfast.topk(tiny[0], **asked_of_tiny, index=tiny[1])}
    seconds |= spreads(alone, 10 * options.rounds)
    middle = {name: it["median"] for name, it in seconds.items()}
    return {
        "entities": options.rows,
        "dim": model.dim,
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


def _what_is_read(panels: Panels, batch: int) -> Tensor:
    """Return what a call reads first, as numbers of eight bytes if it is bytes."""
    found = panels.tensors.get("bytes")
    if found is None or batch > BYTE_QUERIES[panels.score]:
        return panels.tensors["panels"]
    return found[: len(found) // 8 * 8].view(torch.int64)


def _asked(model: Any, batch: int, k: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(batch)
    heads = torch.randint(model.num_entities, (batch,), generator=generator)
    relations = torch.randint(model.num_relations, (batch,), generator=generator)
    return {"heads": heads, "relations": relations, "k": k}


def stays(row: Row, rows: Sequence[Row], options: Options) -> bool:
    """Return whether a row is of another machine, instruction set or score."""
    return row["section"] not in options.scores or of_others(row, rows, options)


BENCHMARK = Benchmark(
    "index_speed",
    __doc__,
    {"topk": rows_of},
    options={
        "scores": Option("scores", list(MODELS)),
        "rows": Option("rows of the table", 40_943, 500),
        "dims": Option("features", [128, 256, 512], [8]),
        "k": Option("answers to a query", 10, 3),
        "rounds": Option("turns of each contender", 25, 2),
    },
    tables=(
        *INDEX,
        ("built in:", "{build_seconds[median]:time}"),
        (f"a sweep of {SWEPT}:", "{sweep_seconds[median]:time}"),
    ),
    stays=stays,
    threads=1,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
