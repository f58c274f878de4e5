"""The 100 best new facts of all triples of FB15k-237: seconds and memory.

    python benchmarks/facts_speed.py --data DIR            writes results/cpu-facts-speed.json
    python benchmarks/facts_speed.py --run RUN ...         of trained models too

Fresh tables of the size of the graph (14,541 entities, 237 relations; 5e10 triples) are the worst
case of the bounds by which queries are left out; trained ones are what users have. The facts of a
few heads are compared with all scores of these, sorted (exit code 1 if they differ).
"""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kgfast
from kgfast.kernels.reference.canonical import canonical_scores
from kgfast.kernels.scores import get_score
from lib.benchmark import QUICK_SIZES, Benchmark, Option, Options, needs_data
from lib.columns import FACTS
from lib.measure import PeakMemory, timed

MODELS = ("DistMult", "ComplEx", "TransE", "RotatE")
DIM, QUICK_DIM, K = 128, 8, 100
CHECKED = 2  # heads whose facts are compared with all their scores


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each model."""
    if options.quick:
        graph = kgfast.datasets.synthetic(*QUICK_SIZES)
    else:
        graph = kgfast.datasets.load(options.data)
    known, sizes = graph.known(), (graph.num_entities, graph.num_relations)
    for name in options.models:
        model = getattr(kgfast, name).init(*sizes, QUICK_DIM if options.quick else DIM, seed=0)
        yield row_of(model, "fresh", known)
    for run in options.run or ():
        yield row_of(kgfast.load_run(run, False).model, "trained", known)


def row_of(model: Any, table: str, known: kgfast.KnownTriples) -> dict[str, Any]:
    """Search once, since it takes minutes."""
    kgfast.top_facts(model, k=K, known=known, heads=[0])  # warms up
    with PeakMemory("cpu") as peak:
        found, taken = timed(partial(kgfast.top_facts, model, k=K, known=known))
    return {
        "model": type(model).__name__,
        "table": table,
        "dim": model.dim,
        "entities": model.num_entities,
        "relations": model.num_relations,
        "triples": model.num_entities**2 * model.num_relations,
        "known": len(known),
        "k": len(found),
        **taken,
        "peak_mib": peak.bytes / 2**20,
        "memory_method": peak.method,
        "equal": all(equals_all_scores(model, known, it) for it in found.triples[:CHECKED, 0]),
    }


def equals_all_scores(model: Any, known: kgfast.KnownTriples, head: Tensor) -> bool:
    """Return whether the facts of a head are the first of all its scores."""
    found = kgfast.top_facts(model, k=K, known=known, heads=head)
    relations = torch.arange(model.num_relations, dtype=torch.int64, device="cpu")
    tails = torch.arange(model.num_entities, dtype=torch.int64, device="cpu")
    candidates = model.candidates("tail")
    with torch.no_grad():
        queries = model.queries(head.expand(len(relations)), relations, "tail")
        given = candidates.table, get_score(model.score), candidates.bias
        scores = torch.cat([canonical_scores(query, *given) for query in queries])
    pairs = torch.cartesian_prod(relations, tails)
    triples = torch.cat([head.expand(len(pairs), 1), pairs], 1)
    new = ~known.contains(triples)
    order = scores[new].argsort(stable=True, descending=True)[:K]
    return bool(torch.equal(found.triples, triples[new][order]))


BENCHMARK = Benchmark(
    "facts_speed",
    __doc__,
    {"facts": rows_of},
    options={
        "data": Option("the folder of FB15k-237", keywords={"type": Path}),
        "models": Option("fresh models", [*MODELS], keywords={"nargs": "*", "choices": MODELS}),
        "run": Option("folders of trained models", keywords={"type": Path, "nargs": "*"}),
    },
    tables=FACTS,
    check=needs_data("FB15k-237"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
