"""The 100 best new facts of all triples of FB15k-237: seconds and memory.

    python benchmarks/facts_speed.py --data DIR            writes results/cpu-facts-speed.json
    python benchmarks/facts_speed.py --run RUN ...         of trained models too
    python benchmarks/facts_speed.py --quick               a smoke test: a tiny graph

Fresh tables of the size of the graph (14,541 entities, 237 relations; 5e10 triples) are the worst
case of the bounds by which queries are left out; trained ones are what users have. The facts of a
few heads are compared with all scores of these, sorted (exit code 1 if they differ).
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kgfast
from kgfast.kernels.reference.canonical import canonical_scores
from kgfast.kernels.scores import get_score
from lib.machine import facts as about_machine
from lib.measure import PeakMemory
from lib.options import QUICK_SIZES, new_parser
from lib.results import RESULTS, write_json
from lib.tables import console

MODELS = ("DistMult", "ComplEx", "TransE", "RotatE")
DIM, QUICK_DIM, K = 128, 8, 100
CHECKED = 2  # heads whose facts are compared with all their scores


def main() -> int:
    """Measure, print, write."""
    parser = new_parser(__doc__)
    parser.add_argument("--data", type=Path, help="the folder of FB15k-237")
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS)
    parser.add_argument("--run", type=Path, nargs="*", default=[], help="folders of trained models")
    parser.add_argument("--json", type=Path, help="default: results/cpu-facts-speed.json")
    options = parser.parse_args()
    if options.data is None and not options.quick:
        parser.error("--data names the folder of FB15k-237, or --quick")
    graph = (
        kgfast.datasets.synthetic(*QUICK_SIZES)
        if options.quick
        else kgfast.datasets.load(options.data)
    )
    dim = QUICK_DIM if options.quick else DIM
    sizes = graph.num_entities, graph.num_relations
    models = [(getattr(kgfast, name).init(*sizes, dim, seed=0), "fresh") for name in options.models]
    models += [(kgfast.load_run(run, False).model, "trained") for run in options.run]
    known = graph.known()
    rows = []
    for model, table in models:
        row = about_machine("cpu") | row_of(model, table, known)
        rows.append(row)
        console().print(
            f"{row['model']:>9} {row['dim']:>4} {table:>8}: {row['seconds']:8.1f} s, "
            f"{row['cpu_seconds']:8.1f} CPU s, {row['peak_mib']:6.1f} MiB, "
            f"{'= all scores' if row['equal'] else 'NOT the best of all scores'}"
        )
    path = options.json or (None if options.quick else RESULTS / "cpu-facts-speed.json")
    if path is not None:
        write_json(path, {"rows": rows})
    return 0 if all(row["equal"] for row in rows) else 1


def row_of(model: Any, table: str, known: kgfast.KnownTriples) -> dict[str, Any]:
    """One search, timed once: it takes minutes."""
    kgfast.top_facts(model, k=K, known=known, heads=[0])  # warms up
    with PeakMemory("cpu") as peak:
        wall, cpu = time.perf_counter(), time.process_time()
        found = kgfast.top_facts(model, k=K, known=known)
        seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "benchmark": "facts_speed",
        "model": type(model).__name__,
        "table": table,
        "dim": model.dim,
        "entities": model.num_entities,
        "relations": model.num_relations,
        "triples": model.num_entities**2 * model.num_relations,
        "known": len(known),
        "k": len(found),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_mib": peak.bytes / 2**20,
        "memory_method": peak.method,
        "equal": all(equals_all_scores(model, known, it) for it in found.triples[:CHECKED, 0]),
    }


def equals_all_scores(model: Any, known: kgfast.KnownTriples, head: Tensor) -> bool:
    """Whether the facts of a head are the first of all its scores."""
    sizes = model.num_relations, model.num_entities
    found = kgfast.top_facts(model, k=K, known=known, heads=head)
    relations = torch.arange(sizes[0], dtype=torch.int64, device="cpu")
    candidates = model.candidates("tail")
    with torch.no_grad():
        queries = model.queries(head.expand(sizes[0]), relations, "tail")
        scores = torch.stack(
            [
                canonical_scores(query, candidates.table, get_score(model.score), candidates.bias)
                for query in queries
            ]
        ).flatten()
    tails = torch.arange(sizes[1], dtype=torch.int64, device="cpu")
    triples = torch.stack(
        [
            head.expand(len(scores)),
            relations.repeat_interleave(sizes[1]),
            tails.repeat(sizes[0]),
        ],
        1,
    )
    new = ~known.contains(triples)
    order = scores[new].argsort(stable=True, descending=True)[:K]
    return bool(torch.equal(found.triples, triples[new][order]))


if __name__ == "__main__":
    sys.exit(main())
