"""Exact cosines: documents, beside mteb's default and its index of faiss; and entity alignment.

    python benchmarks/retrieval.py --threads 1       writes results/cpu-retrieval.json

Two corpora of random vectors: SciFact's shape, and a million rows in a file of `--folder`, of
which kgfast holds `--max-memory` bytes. Adding documents to an index divides them by their lengths,
which mteb's default does at every search. Ids are compared with those of chunked float64 products
of numpy; kgfast's twice, and in batches of 7 queries (exit code 1 if they differ). Contenders take
turns; peers run where mteb and faiss are importable. Alignment is examples/alignment, by cosine and
by CSLS, beside the matrices [N, N] of torch where they fit. Seconds are CPU time; memory is the
peak beyond the inputs.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from kgfast.adapters.mteb import KgfastSearchIndex
from lib.benchmark import THREADS, Benchmark, Option, Options
from lib.columns import ALIGNMENT, RETRIEVAL
from lib.measure import PeakMemory, Timing, take_turns
from lib.peers import retrieval as peers
from lib.results import ROOT, Row

sys.path.append(str(ROOT / "examples" / "alignment"))
import align

Array = peers.Array
Ranks = dict[str, Tensor]
SIZES = {"scifact": (5_183, 300, 384), "million": (1_000_000, 300, 384)}
QUICK = {"scifact": (300, 20, 16), "million": (2_000, 20, 16)}
BATCH = 7  # queries of the batches that must give the same ids
ALIGNED, QUICK_ALIGNED = [(15_000, 256), (100_000, 128)], [(300, 16)]
MOST_DENSE = 20_000  # rows of the matrices of torch
ROWS = 1 << 16  # rows of a piece of the corpus, made or multiplied in float64


def section(name: str) -> Callable[[Options], Iterator[Row]]:
    """Return the function that measures a corpus."""

    def rows(options: Options) -> Iterator[Row]:
        count, asked, dim = (QUICK if options.quick else SIZES)[name]
        generator = np.random.default_rng(0)
        queries = generator.standard_normal((asked, dim), dtype=np.float32)
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            path = Path(folder) / "corpus.npy"
            documents = np.lib.format.open_memmap(path, "w+", np.float32, (count, dim))
            for first in range(0, count, ROWS):
                some = documents[first : first + ROWS]
                some[:] = generator.standard_normal(some.shape, dtype=np.float32)
            documents.flush()
            yield from compared(name, documents, queries, options)

    return rows


def compared(name: str, documents: Array, queries: Array, options: Options) -> Iterator[Row]:
    """Yield a row for each contender."""
    limit = options.max_memory if name == "million" else None
    k = min(options.k, len(documents))
    indices: dict[str, Any] = {
        "kgfast": KgfastSearchIndex(None, similarity="cosine", max_memory=limit),
    }
    calls: dict[str, Callable[[], list[list[int]]]] = {}
    if find_spec("mteb"):
        calls["mteb"] = peers.default(documents, queries, k)
        if find_spec("faiss"):
            indices["faiss"] = peers.faiss_index()
    facts: dict[str, Row] = {it: {} for it in (*indices, *calls)}
    for contender, index in indices.items():
        with PeakMemory("cpu") as memory:
            facts[contender]["add_seconds"] = cpu_seconds(lambda it=index: add(it, documents))
        facts[contender]["add_peak_bytes"] = memory.bytes
        calls[contender] = lambda it=index: it.search(queries, k, None)[1]
    found = {}
    for contender, call in calls.items():
        with PeakMemory("cpu") as memory:
            found[contender] = call()
        facts[contender]["search_peak_bytes"] = memory.bytes
    own = indices["kgfast"]
    batches = [queries[it : it + BATCH] for it in range(0, len(queries), BATCH)]
    again = [ids for some in batches for ids in own.search(some, k, None)[1]]
    expected = brute_force(documents, queries, k)
    facts["kgfast"]["equal"] = found["kgfast"] == again == calls["kgfast"]() == expected
    times = take_turns(calls, options.rounds, cpu_seconds)
    middle = {it: Timing.of(values).median for it, values in times.items()}
    for contender, values in times.items():
        differing = sum(a != b for a, b in zip(found[contender], expected, strict=True))
        yield {
            "section": name,
            "contender": contender,
            "documents": len(documents),
            "queries": len(queries),
            "dim": queries.shape[1],
            "k": k,
            "max_memory": limit if contender == "kgfast" else None,
            "seconds": Timing.of(values).as_dict(),
            "times_kgfast": middle[contender] / middle["kgfast"],
            "differing_queries": differing,
        } | facts[contender]


def add(index: Any, documents: Array) -> None:
    """Add all documents in one call, as mteb does."""
    index.add_documents(documents, [str(it) for it in range(len(documents))])


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Return the CPU seconds that a call takes all threads of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def brute_force(documents: Array, queries: Array, k: int) -> list[list[int]]:
    """Search by float64 products of rows of length 1 in float32, the lowest id first if equal."""
    asked, best = unit(queries), np.empty((len(queries), 0))
    ids = np.empty((len(queries), 0), np.int64)
    for first in range(0, len(documents), ROWS):
        rows = unit(documents[first : first + ROWS])
        scores = np.concatenate([best, asked @ rows.T], 1)
        here = np.broadcast_to(np.arange(first, first + len(rows)), (len(queries), len(rows)))
        ids = np.concatenate([ids, here], 1)
        order = np.argsort(-scores, 1, kind="stable")[:, :k]
        best, ids = (np.take_along_axis(it, order, 1) for it in (scores, ids))
    return ids.tolist()


def unit(rows: Array) -> Array:
    """Return rows divided by their lengths in float64, rounded to float32, in float64."""
    exact = rows.astype(np.float64)
    exact /= np.sqrt(np.square(exact).sum(1, keepdims=True))
    return exact.astype(np.float32).astype(np.float64)


def aligned(options: Options) -> Iterator[Row]:
    """Yield a row for each size and contender."""
    for entities, dim in QUICK_ALIGNED if options.quick else ALIGNED:
        source, target = map(align.unit_rows, align.synthetic(entities, dim))
        ways: dict[str, Callable[[], Any]] = {"kgfast": partial(kgfast_ranks, source, target)}
        if entities <= MOST_DENSE:
            ways["matrices"] = partial(matrices, source, target)
        found: dict[str, Any] = {}
        for contender, way in ways.items():
            with PeakMemory("cpu") as memory:
                start = time.process_time()
                found[contender] = way()
                seconds = time.process_time() - start
            yield {
                "section": "alignment",
                "contender": contender,
                "entities": entities,
                "dim": dim,
                "cpu_seconds": seconds,
                "peak_bytes": memory.bytes,
                "matrix_bytes": 4 * entities**2,
                "mrr": {it: float((1 / own).mean()) for it, own in found[contender].items()},
                "other_ranks": {
                    it: int((own != found["kgfast"][it]).sum())
                    for it, own in found[contender].items()
                },
            }


def kgfast_ranks(source: Tensor, target: Tensor) -> Ranks:
    """Rank by the example."""
    return align.align(source, target)._asdict()


def matrices(source: Tensor, target: Tensor) -> Ranks:
    """Rank by a matrix of cosines and one of CSLS."""
    cosines = source @ target.T
    csls = cosines - cosines.topk(align.NEIGHBOURS, dim=0).values.mean(0) / 2
    ranks = {}
    for name, scores in (("cosine", cosines), ("csls", csls)):
        own = scores.diagonal()[:, None]
        ranks[name] = 1 + (scores > own).sum(1) + ((scores == own).sum(1) - 1).double() / 2
    return ranks


BENCHMARK = Benchmark(
    "retrieval",
    __doc__,
    {name: section(name) for name in SIZES} | {"alignment": aligned},
    options={
        "k": Option("documents of a query", 100, 10),
        "rounds": Option("turns of each contender", 3, 2),
        "threads": THREADS,
        "max_memory": Option("of kgfast, of the file", "256MiB", "20kB"),
        "folder": Option("where the corpora are written", keywords={"type": Path}),
    },
    tables={
        "scifact": ("A corpus of SciFact's shape", RETRIEVAL),
        "million": ("A million documents in a file", RETRIEVAL),
        "alignment": ("Entity alignment", ALIGNMENT),
    },
    packages=("mteb", "faiss-cpu"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
