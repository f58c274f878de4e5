"""Rows of eval_mem.py for croppable and filtered RotatE: MED and RSCF.

The sub-models of MED are ranked by one nested sweep and, with ``--ways``, by a call each. With RSCF
every sub-model has a sweep of its own, since its filters depend on the crop. The specification
takes long for angles of all entities, so that without ``--ways`` it ranks RSCF's narrowest
sub-model alone.

The evaluation that people use would hold, for B queries, E entities and d complex dimensions:

    RotatE alone   as `official` in naive.py                                  28 B E d
    with RSCF      the filtered candidates 2, t A3 1, its norm's quotient 1,
                   the relation of every pair 1, beside those of RotatE       48 B E d

MED evaluates one sub-model after the other, so the widest counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

import kgfast
from lib import naive
from lib.measure import PeakMemory, Stopwatch, in_child, waiting

FILTERED_FLOATS = 12  # floats of `with RSCF`, per pair and feature
CHECKED = 2  # triples that the specification ranks too
KINDS = ("med", "med + rscf")


def measure(job: Any, dims: list[int], kind: str, all_ways: bool) -> dict[str, Any]:
    """Rank the test set by every sub-model in each way; ``job`` is that of the widest."""
    graph = job.graph()
    model, known, test = job.model(graph), graph.known(), graph.test.hrt
    if kind == "med + rscf":
        model = kgfast.RSCF(model, seed=0)
    model = kgfast.MED(model, dims).requires_grad_(False).to(job.device)
    few = test[:1]
    kgfast.rank(model, few, dims=dims)  # loads code, starts threads, leaves memory to the next

    def one_by_one(some: Sequence[int]) -> dict[int, kgfast.Ranks]:
        return {dim: kgfast.rank(model, test, known=known, dims=dim) for dim in some}

    ways: dict[str, Callable[[], Any]] = {
        kind: lambda: kgfast.rank(model, test, known=known, dims=dims)
    }
    if all_ways and kind == "med":
        ways["med separate"] = lambda: one_by_one(dims)
    if all_ways:
        ways["widest alone" if kind == "med" else "rscf"] = lambda: one_by_one(dims[-1:])
    # A table like the model's: N(t A3) + 1 of every entity, for one side and crop at a time.
    factor = 4 * graph.num_entities * max(dims) if "rscf" in kind else 0
    stopwatch = Stopwatch(job.device)
    found, results = {}, {}
    for name, way in ways.items():
        if job.device != "cpu":
            way()  # one call compiles all that the next one needs
        with PeakMemory(job.device) as peak:
            results[name], seconds = stopwatch.timed(way)
        found[name] = {
            "bytes": peak.bytes - factor,
            "factor_bytes": factor,
            "method": peak.method,
            "seconds": seconds,
        }
    ranks, checked = results[kind], dims if all_ways or kind == "med" else dims[:1]
    return {
        "ways": found,
        "mrr": {str(dim): it.mrr for dim, it in ranks.items()},
        "check": check(model, test, known, results, checked, CHECKED),
    }


def check(
    model: Any,
    test: torch.Tensor,
    known: Any,
    results: Mapping[str, Mapping[int, kgfast.Ranks]],
    dims: Sequence[int],
    triples: int,
) -> dict[str, Any]:
    """Compare all ways with each other, and a sample of triples at ``dims`` with the specification.

    Ranks are equal if the counts of both sides are, filtered and raw.
    """
    chosen = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:triples]
    with kgfast.use_backend("reference"):
        expected = kgfast.rank(model, test[chosen], known=known, dims=list(dims))
    first, differing = next(iter(results.values())), 0
    for found in results.values():
        for dim, ranks in found.items():
            same = torch.equal(_counts(ranks), _counts(first[dim]))
            if dim in dims:
                same &= torch.equal(_counts(ranks)[:, chosen], _counts(expected[dim]))
            differing += not same
    queries = 2 * len(chosen) * len(dims)
    return {"queries": queries, "differing": differing, "equal": not differing}


def _counts(ranks: kgfast.Ranks) -> torch.Tensor:
    names, kinds = ("greater", "equal", "num_candidates"), (ranks, ranks.raw)
    return torch.stack([getattr(counts, name) for counts in kinds for name in names])


def rows(
    base: Any, sizes: Mapping[str, Any], dims: Sequence[int], all_ways: bool
) -> Iterator[dict[str, Any]]:
    """Yield a row per way of ranking all sub-models; ``base`` is the job of the widest."""
    for kind in KINDS:
        with waiting(f"RotatE, {kind.upper()}, sub-models {dims}"):
            measured = in_child(measure, base, list(dims), kind, all_ways)
        per_pair = 4 * (FILTERED_FLOATS if "rscf" in kind else naive.FLOATS_PER_ELEMENT["official"])
        formula = per_pair * naive.BATCH * sizes["entities"] * max(dims)
        for way, ours in measured.pop("ways").items():
            yield {
                "benchmark": "eval_mem_crops",
                "way": way,
                "dims": list(dims),
                "graph": sizes,
                "formula": {"batch": naive.BATCH, "bytes": formula},
                "kgfast": ours,
                **measured,
            }
