"""Compare rank counts by kgfast with those of torch, torch.compile and PyKEEN, in turns.

    python benchmarks/eval_speed.py            everything; writes results/cpu-eval-speed.json

A unit of work counts, for 128 queries, the entities above the target and those that are equal;
whole test sets are ranked beside PyKEEN's evaluator and products of matrices, by the L2 norm. A
sample of kgfast's counts is compared with the float64 specification. `bare` is a loop over packed
rows that is compiled here (lib/bare_loop.cpp).
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import kgfast
from kgfast import ops
from kgfast.kernels import cpu
from lib.benchmark import Benchmark, Option, Options, graph_of
from lib.columns import RACE, RACE_WORK
from lib.measure import SLOW_ROUNDS, Stopwatch, Timing, take_turns
from lib.peers import Missing, bare
from lib.peers import ranks as peers
from lib.peers.ranks import Counts, Work
from lib.results import Row
from lib.tables import Columns

BATCH = 128
DOT_DIMS = (200, 512)
REFERENCE_QUERIES = 4  # checked against the specification
TABLES = ["random", "planted"]
# the difference is what some triples cost, without what a call costs
PYKEEN_TRIPLES = {"cpu": (8, 40), "cuda": (64, 320)}
PYKEEN = "PyKEEN's evaluator, L2"
PRODUCTS = "matmul + compare, L2"

Contender = Callable[..., Any]
MAKERS: dict[str, Contender] = {
    "compile": peers.compiled,
    "eager": peers.eager,
    "bare": partial(bare.Loop, score="rotate"),
}
PEERS = [*MAKERS, "pykeen"]


def model_of(graph: Any, table: str, dim: int, device: str) -> kgfast.RotatE:
    """Return a model of planted embeddings, or as a fresh model has them."""
    if table == "planted":
        entity, phase = graph.planted(dim)
    else:
        fresh = kgfast.RotatE.init(graph.num_entities, graph.num_relations, dim, seed=0)
        entity = fresh.entity.detach()
        phase = fresh.relation.detach() * (torch.pi / fresh.embedding_range)
    return kgfast.RotatE(entity, phase, relation_format="phase").to(device)


def rotate_work(graph: Any, model: kgfast.RotatE, batch: int) -> Work:
    """Return distinct tail queries of random test triples: equal ones are swept only once."""
    test = graph.test.hrt
    shuffled = test[torch.randperm(len(test), generator=torch.Generator().manual_seed(0))]
    _, group = shuffled[:, :2].unique(dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(test)).scatter_reduce_(
        0, group, torch.arange(len(test)), "amin"
    )
    distinct = first.sort().values
    chosen = distinct[torch.arange(batch) % len(distinct)]  # a tiny graph has too few
    heads, relations, tails = shuffled[chosen].to(model.entity.device).T.contiguous()
    with torch.no_grad():
        return Work(model.queries(heads, relations, "tail"), model.entity.detach(), tails)


def kgfast_counts(work: Work, score: str = "rotate", isa: str | None = None) -> Counts:
    """Count by kgfast: raw counts, nothing excluded."""
    nothing = torch.zeros(len(work.targets) + 1, dtype=torch.int64, device=work.device)
    with patch.dict(os.environ, {"KGFAST_CPU_ISA": isa} if isa else {}):
        greater, equal, _, _ = ops.rank_counts(
            work.queries, work.table, work.targets, nothing, nothing[:0], score
        )
    return greater, equal


def rotate_rows(options: Options, *, is_single: bool = False) -> Iterator[Row]:
    """Yield every instruction set of kgfast, torch.compile, eager chunks; or a single query."""
    graph, section = graph_of(options), "single" if is_single else "rotate"
    isas = [] if is_single or options.device != "cpu" else cpu.available_isas()[1:]
    for dim in [max(options.dims)] if is_single else options.dims:
        for table in TABLES:
            model = model_of(graph, table, dim, options.device)
            work = rotate_work(graph, model, 1 if is_single else BATCH)
            contenders = {"kgfast": partial(kgfast_counts, work)}
            contenders |= {f"kgfast {isa}": partial(kgfast_counts, work, isa=isa) for isa in isas}
            makers = {name: partial(make, work) for name, make in MAKERS.items()}
            yield from compared(options, (section, table, dim), work, contenders, makers)


def dot_rows(options: Options) -> Iterator[Row]:
    """Yield dot products: torch's matrix product and two comparisons are the peer."""
    entities = graph_of(options).num_entities
    for dim in options.dims if options.quick else DOT_DIMS:
        work = Work.normal(entities, dim, BATCH, options.device)
        contenders: dict[str, Contender] = {
            "kgfast": partial(kgfast_counts, work, "dot"),
            "matmul + compare": peers.matmul_compare(work),
        }
        makers = {"bare": partial(bare.Loop, work, "dot")}
        yield from compared(options, ("dot", "normal", dim), work, contenders, makers)


def compared(
    options: Options,
    what: tuple[str, str, int],
    work: Work,
    contenders: Mapping[str, Contender],
    makers: Mapping[str, Contender],
) -> Iterator[Row]:
    """Let all take turns, and compare the integers; yield the rows."""
    section, table, dim = what
    entities, batch = len(work.table), len(work.queries)
    about = {"section": section, "entities": entities, "dim": dim, "table": table, "batch": batch}
    about |= {"extrapolated": False}
    found, missing = built({name: makers[name] for name in makers if name in options.peers})
    runs = {**contenders, **found}
    counts, timings = Stopwatch(options.device).race(runs, options.rounds)
    few = slice(REFERENCE_QUERIES)
    score = "dot" if section == "dot" else "rotate"
    with kgfast.use_backend("reference"):
        sample = Work(work.queries[few], work.table, work.targets[few])
        expected = kgfast_counts(sample, score)
    for name, timing in timings.items():
        row = about | {"contender": name, "seconds": timing.as_dict()}
        row["elements_per_s"] = batch * entities * dim / timing.median
        row["times_kgfast"] = timing.median / timings["kgfast"].median
        row |= difference(counts[name], counts["kgfast"])
        if name == "kgfast":
            ours = counts[name]
            row["equals_reference"] = all(map(torch.equal, (it[few] for it in ours), expected))
        if hasattr(runs[name], "chunk"):
            row["chunk"] = runs[name].chunk
        yield row
    for name, note in missing.items():
        yield about | {"contender": name, "seconds": None, "note": note}


def built(makers: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    """Make peers; return those that can run here, and why others are missing."""
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except Missing as error:
            missing[name] = str(error)
    return found, missing


def difference(counts: Sequence[Tensor], ours: Sequence[Tensor]) -> dict[str, int]:
    """Count the queries that a contender counts differently, and by how much at most."""
    gaps = [(theirs - mine).abs() for theirs, mine in zip(counts, ours, strict=True)]
    furthest = torch.stack(gaps).amax(0)
    return {
        "compared_queries": furthest.numel(),
        "differing_queries": int((furthest > 0).sum()),
        "largest_difference": int(furthest.max()),
    }


def whole_rows(options: Options) -> Iterator[Row]:
    """Yield whole test sets, both sides, filtered; PyKEEN's is extrapolated from a few triples."""
    graph, device = graph_of(options), options.device
    known, test = graph.known(), graph.test.hrt
    few, more = PYKEEN_TRIPLES[device]
    for dim in options.dims:
        models = {table: model_of(graph, table, dim, device) for table in TABLES}
        contenders: dict[Any, Contender] = {
            f"kgfast, {table}": partial(kgfast.rank, model, test, known=known)
            for table, model in models.items()
        }
        make = partial(peers.PyKEEN, graph, *graph.planted(dim), device)
        found, missing = built({"pykeen": make} if "pykeen" in options.peers else {})
        beside: dict[str, dict[str, Any]] = {}
        if found:
            pykeen = found["pykeen"]
            same = pykeen.by_kgfast()
            contenders["kgfast, planted, L2"] = partial(kgfast.rank, same, test, known=known)
            products = peers.products_of_l2(same, test, known)
            contenders[PRODUCTS] = products
            contenders |= {count: partial(pykeen.evaluate, count) for count in (few, more)}
            ours = kgfast.rank(same, test, known=known)
            theirs = [it.reshape(2, -1).T.cpu() for it in products()]
            beside[PRODUCTS] = {"batch": products.options.batch, "chunk": products.options.chunk}
            beside[PRODUCTS] |= difference(theirs, (ours.greater, ours.equal))
            evaluator = pykeen.evaluate(more)  # and warms it up
            ranks = [pykeen.ranks(evaluator, kind) for kind in ("optimistic", "pessimistic")]
            beside[PYKEEN] = {"extrapolated": True, **pykeen.options}
            beside[PYKEEN] |= {"note": f"extrapolated from {more - few} triples"}
            beside[PYKEEN] |= difference(ranks, (ours.optimistic[:more], ours.pessimistic[:more]))
        rounds = min(SLOW_ROUNDS, options.rounds)
        seconds = take_turns(contenders, rounds, Stopwatch(device).seconds)
        if found:
            pairs = zip(seconds.pop(few), seconds.pop(more), strict=True)
            scale = len(test) / (more - few)
            seconds[PYKEEN] = [max(long - short, 1e-9) * scale for short, long in pairs]
        about = {"section": "whole", "entities": graph.num_entities, "dim": dim}
        about |= {"queries": 2 * len(test), "extrapolated": False}
        for name, values in seconds.items():
            timing = Timing.of(values)
            speed = 2 * len(test) * graph.num_entities * dim / timing.median
            row = about | {"contender": name, "seconds": timing.as_dict(), "elements_per_s": speed}
            yield row | beside.get(name, {})
        for note in missing.values():
            yield about | {"contender": PYKEEN, "seconds": None, "note": note}


def differs(row: Row) -> str:
    """Say how a contender's answers differ from kgfast's, or kgfast's from the specification."""
    if "equals_reference" in row:
        return "= reference" if row["equals_reference"] else "NOT the specification's"
    by = f", by {row['largest_difference']}" if row.get("largest_difference") else ""
    return f"{row['differing_queries']} queries{by}" if "differing_queries" in row else ""


COUNTED: Columns = (*RACE_WORK, ("differ:", differs))
WHOLE: Columns = (
    *RACE[:1],
    ("dim:", "{dim}"),
    *RACE[1:3],
    ("elements/s:", "{elements_per_s:billions}"),
    ("differ:", differs),
)
BENCHMARK = Benchmark(
    "eval_speed",
    __doc__,
    {"rotate": rotate_rows, "single": partial(rotate_rows, is_single=True)}
    | {"dot": dot_rows, "whole": whole_rows},
    options={
        "dims": Option("features", [128, 512], [16]),
        "peers": Option("contenders", PEERS, ["eager", "bare"], {"nargs": "*", "choices": PEERS}),
        "rounds": Option("turns of each contender", 5, 2),
    },
    tables={
        "rotate": ("RotatE rank counts of {batch} queries", COUNTED),
        "single": ("RotatE rank counts of one query", COUNTED),
        "dot": ("dot rank counts of {batch} queries", COUNTED),
        "whole": ("The whole test set, both sides, filtered: {queries:,} queries", WHOLE),
    },
    has_device=True,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
