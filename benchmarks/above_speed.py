"""All answers above a threshold that keeps one pair in a thousand, beside ranks of the queries.

    python benchmarks/above_speed.py --run RUN ...         writes results/cpu-above-speed.json

Queries are the distinct (h, r) of the test set of a run, ranks those of one of their tails. Times
are CPU seconds of one thread, in turns; a ratio is the median over neighbouring turns. Memory is
the peak beyond the result. The answers in other batches, by two threads, by another instruction
set, by the reference (of a few queries) and from a file are compared (exit code 1 if they differ).
"""

import os
import statistics
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import kgfast
from kgfast.kernels import cpu
from lib.benchmark import QUICK_SIZES, Benchmark, Option, Options, Parser
from lib.columns import ABOVE
from lib.measure import PeakMemory, Timing, take_turns, thread_seconds

KEPT = 1e-3  # share of the pairs
SAMPLE = 256  # queries whose scores set the threshold
CHECKED = 4  # queries that the reference answers


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each run, or one of a fresh model in a smoke test."""
    if options.quick:
        graph = kgfast.datasets.synthetic(*QUICK_SIZES)
        model = kgfast.ComplEx.init(graph.num_entities, graph.num_relations, 8, seed=0)
        yield row_of(model, graph.test.hrt, "synthetic", options.rounds)
    for run in options.run or ():
        loaded = kgfast.load_run(run)
        if loaded.dataset is None:
            raise SystemExit(f"--run {run}: its dataset is not at hand")
        yield row_of(loaded.model, loaded.dataset.test.hrt, loaded.dataset.name, options.rounds)


def row_of(model: Any, hrt: Tensor, data: str, rounds: int) -> dict[str, Any]:
    """Measure both calls, and compare the answers."""
    _, group = hrt[:, :2].unique(dim=0, return_inverse=True)
    triples = hrt[
        torch.full((int(group.max()) + 1,), -1).index_copy_(0, group, torch.arange(len(hrt)))
    ]
    heads, relations, _ = triples.T.contiguous()
    search = partial(kgfast.above, heads=heads, relations=relations)
    threshold = threshold_of(model, heads, relations)
    find = partial(search, model, threshold)
    rank = partial(kgfast.rank, model, triples, sides=("tail",))
    turns = take_turns({"above": find, "ranks": rank}, rounds + 1, thread_seconds)
    seconds = {name: values[1:] for name, values in turns.items()}  # the first warms up
    with PeakMemory("cpu") as peak:
        found = find()
    result = sum(it.nbytes for it in (found.indptr, found.ids, found.scores))
    ratios = [a / b for a, b in zip(seconds["above"], seconds["ranks"], strict=True)]
    return {
        "model": type(getattr(model, "model", model)).__name__,  # within Reciprocal
        "data": data,
        "dim": model.dim,
        "isa": cpu.isa(),
        "queries": len(triples),
        "entities": model.num_entities,
        "threshold": threshold,
        "results": len(found.ids),
        "kept": len(found.ids) / (len(triples) * model.num_entities),
        "cpu_seconds": {name: Timing.of(values).as_dict() for name, values in seconds.items()},
        "times_ranks": {
            "median": statistics.median(ratios),
            "min": min(ratios),
            "max": max(ratios),
        },
        "result_bytes": result,
        "peak_mib": (peak.bytes - result) / 2**20,
        "memory_method": peak.method,
        "equal": all(same(found, it) for it in others(model, search, threshold)),
        "equals_reference": equals_reference(found, model, (heads, relations), threshold),
    }


def threshold_of(model: Any, heads: Tensor, relations: Tensor) -> float:
    """Return the score that one pair in a thousand has, or a higher one.

    A lower one, which about three have by the scores of some queries, finds all that may be it.
    """
    some = torch.randperm(len(heads), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    few = round(3 * KEPT * len(some) * model.num_entities)
    asked = {"heads": heads[some], "relations": relations[some]}
    scores = kgfast.topk(model, **asked, k=min(few, model.num_entities)).scores
    loose = float(scores.flatten().topk(few).values[-1])
    found = kgfast.above(model, loose, heads=heads, relations=relations)
    return float(found.scores.topk(round(KEPT * len(heads) * model.num_entities)).values[-1])


def others(model: Any, search: Any, threshold: float) -> Iterator[Any]:
    """Yield the answers in other batches, by other threads and instructions, and from a file."""
    yield search(model, threshold, batch_size=700)
    with patch.object(torch, "get_num_threads", lambda: 2):
        yield search(model, threshold)
    for isa in cpu.available_isas()[1:]:
        with patch.dict(os.environ, KGFAST_CPU_ISA=isa):
            yield search(model, threshold)
    with TemporaryDirectory() as folder:
        path = Path(folder, "entity.npy")
        np.save(path, model.entity.detach().numpy())
        stored = model.with_entity(kgfast.tables.open(path))
        yield search(stored, threshold, max_memory="8MiB")


def same(a: Any, b: Any) -> bool:
    """Return whether two results are equal, to the last bit."""
    return all(torch.equal(getattr(a, it), getattr(b, it)) for it in ("indptr", "ids", "scores"))


def equals_reference(
    found: Any, model: Any, queries: tuple[Tensor, Tensor], threshold: float
) -> bool:
    """Return whether the answers to the first queries are those of the specification."""
    heads, relations = (it[:CHECKED] for it in queries)
    with kgfast.use_backend("reference"):
        expected = kgfast.above(model, threshold, heads=heads, relations=relations)
    count = len(expected.ids)
    return bool(
        torch.equal(found.indptr[: CHECKED + 1], expected.indptr)
        and torch.equal(found.ids[:count], expected.ids)
        and torch.equal(found.scores[:count], expected.scores)
    )


def check(parser: Parser, options: Options) -> None:
    """Check that there is something to measure."""
    if (options.run is None) != options.quick:
        parser.error("--run names the folders of trained models, or --quick")


BENCHMARK = Benchmark(
    "above_speed",
    __doc__,
    {"above": rows_of},
    options={
        "run": Option("folders of trained models", keywords={"type": Path, "nargs": "*"}),
        "rounds": Option("turns of each call", 7, 2),
    },
    tables=ABOVE,
    check=check,
    threads=1,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
