"""Compare rank counts by kgfast with those of torch, torch.compile, KeOps and PyKEEN, in turns.

    python benchmarks/eval_speed.py            everything; writes results/cpu-eval-speed.json

A unit of work counts, for 128 queries, the entities above the target and those that are equal;
whole test sets are ranked beside PyKEEN's evaluator and products of matrices, by the L2 norm. A
sample of kgfast's counts is compared with the float64 specification. `bare` is a loop over packed
rows that is compiled here (lib/bare_loop.cpp).
"""

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

import kgfast
from lib.bench import (
    BATCH,
    OPTIONS,
    Contender,
    Race,
    built,
    differs,
    embeddings,
    equals_reference,
    kgfast_counts,
)
from lib.benchmark import Benchmark, Options
from lib.columns import RACE, RACE_WORK
from lib.measure import SLOW_ROUNDS, Timing, take_turns
from lib.peers import bare
from lib.peers import ranks as peers
from lib.peers.ranks import Counts, Work
from lib.results import Row
from lib.tables import Columns

DOT_DIMS = (200, 512)
REFERENCE_QUERIES = 4  # checked against the specification
# the difference is what some triples cost, without what a call costs
PYKEEN_TRIPLES = {"cpu": (8, 40), "cuda": (64, 320)}
PYKEEN = "PyKEEN's evaluator, L2"
PRODUCTS = "matmul + compare, L2"


def rotate_rows(options: Options) -> Iterator[Row]:
    """Yield every instruction set of kgfast, torch.compile, eager chunks, KeOps."""
    race = Race(options)
    for dim in options.dims:
        for table in options.tables:
            work = race.rotate_work(table, dim, BATCH)
            contenders = {"kgfast": partial(kgfast_counts, work)}
            for isa in race.isas()[1:]:
                contenders[f"kgfast {isa}"] = partial(kgfast_counts, work, isa=isa)
            makers = {it: partial(MAKERS[it], work) for it in MAKERS}
            what = {"dim": dim, "table": table, "batch": BATCH}
            yield from compared(race, "rotate", work, contenders, makers, what)


def single_rows(options: Options) -> Iterator[Row]:
    """Yield one query: all threads work on it."""
    race, dim = Race(options), max(options.dims)
    for table in options.tables:
        work = race.rotate_work(table, dim, 1)
        makers = {it: partial(MAKERS[it], work) for it in MAKERS if it != "keops"}
        what = {"dim": dim, "table": table, "batch": 1}
        yield from compared(
            race, "single", work, {"kgfast": partial(kgfast_counts, work)}, makers, what
        )


def dot_rows(options: Options) -> Iterator[Row]:
    """Yield dot products: torch's matrix product and two comparisons are the peer."""
    race = Race(options)
    for dim in options.dims if options.quick else DOT_DIMS:
        work = race.dot_work(dim)
        contenders: dict[str, Contender] = {
            "kgfast": partial(kgfast_counts, work, "dot"),
            "matmul + compare": peers.matmul_compare(work),
        }
        what = {"dim": dim, "table": "normal", "batch": BATCH}
        makers = {"bare": partial(bare.Loop, work, "dot")}
        yield from compared(race, "dot", work, contenders, makers, what)


MAKERS: dict[str, Contender] = {
    "compile": peers.compiled,
    "eager": peers.eager,
    "keops": peers.keops,
    "bare": partial(bare.Loop, score="rotate"),
}


def compared(
    race: Race,
    section: str,
    work: Work,
    contenders: Mapping[str, Contender],
    makers: Mapping[str, Contender],
    what: Mapping[str, Any],
) -> Iterator[Row]:
    """Let all take turns, and compare the integers; yield the rows."""
    counts, rows = race.run(section, contenders, makers, what)
    for name, found in counts.items():
        rows[name] |= difference(found, counts["kgfast"])
        if found[1] is None:
            rows[name]["note"] = "counts the greater ones only"
    few = slice(REFERENCE_QUERIES)
    part = Work(work.queries[few], work.table, work.targets[few])
    score = "dot" if section == "dot" else "rotate"
    rows["kgfast"]["equals_reference"] = equals_reference(
        partial(kgfast_counts, part, score), counts["kgfast"]
    )
    yield from rows.values()


def difference(counts: Counts, ours: Counts) -> dict[str, int]:
    """Count the queries that a contender counts differently, and by how much at most."""
    parts = [
        (theirs - mine).abs()
        for theirs, mine in zip(counts, ours, strict=True)
        if theirs is not None and mine is not None
    ]
    return _furthest(parts)


def _furthest(differences: list[Tensor]) -> dict[str, int]:
    furthest = torch.stack(differences).amax(0)
    return {
        "compared_queries": furthest.numel(),
        "differing_queries": int((furthest > 0).sum()),
        "largest_difference": int(furthest.max()),
    }


def whole_rows(options: Options) -> Iterator[Row]:
    """Yield whole test sets, both sides, filtered; PyKEEN's is extrapolated from a few triples."""
    race = Race(options)
    known, test = race.graph.known(), race.graph.test.hrt
    for dim in options.dims:
        work = {"dim": dim, "queries": 2 * len(test)}
        contenders: dict[Any, Contender] = {
            f"kgfast, {table}": partial(kgfast.rank, race.model(table, dim), test, known=known)
            for table in options.tables
        }
        planted = embeddings(race.graph, "planted", dim)
        makers = {"pykeen": partial(peers.PyKEEN, race.graph, *planted, race.device)}
        found, missing = built(makers if "pykeen" in options.peers else {})
        few, more = PYKEEN_TRIPLES[race.device]
        compared: dict[str, int] = {}
        beside: dict[str, Any] = {}
        if found:
            pykeen = found["pykeen"]
            same = pykeen.by_kgfast()
            contenders["kgfast, planted, L2"] = partial(kgfast.rank, same, test, known=known)
            by_products = peers.products_of_l2(same, test, known)
            contenders[PRODUCTS] = by_products
            ours = kgfast.rank(same, test, known=known)
            theirs = (it.reshape(2, -1).T.cpu() for it in by_products())
            pairs = zip(theirs, (ours.greater, ours.equal), strict=True)
            chosen = {"batch": by_products.options.batch, "chunk": by_products.options.chunk}
            beside = chosen | _furthest([(a - b).abs() for a, b in pairs])
            contenders |= {count: partial(pykeen.evaluate, count) for count in (few, more)}
            compared = compare_with_pykeen(pykeen, same, known, more)  # and warms it up
        rounds = min(SLOW_ROUNDS, options.rounds)
        seconds = take_turns(contenders, rounds, race.stopwatch.seconds)
        calls = [seconds.pop(count) for count in (few, more) if found]
        for name, values in seconds.items():
            row = whole_row(race, name, Timing.of(values), work)
            yield row | beside if name == PRODUCTS else row
        if calls:
            pairs = zip(*calls, strict=True)
            between = Timing.of([max(long - short, 1e-9) for short, long in pairs])
            row = whole_row(race, PYKEEN, between.scaled(len(test) / (more - few)), work)
            note = f"extrapolated from {more - few} triples"
            yield row | {"extrapolated": True, "note": note, **pykeen.options} | compared
        for note in missing.values():
            yield race.row("whole", PYKEEN, **work, seconds=None, note=note)


def whole_row(race: Race, name: str, timing: Timing, work: Mapping[str, int]) -> dict[str, Any]:
    """Return the row of a measured test set."""
    elements = work["queries"] * race.graph.num_entities * work["dim"]
    speed = elements / timing.median
    return race.row("whole", name, **work, seconds=timing.as_dict(), elements_per_s=speed)


def compare_with_pykeen(pykeen: peers.PyKEEN, model: Any, known: Any, count: int) -> dict[str, int]:
    """Compare PyKEEN's ranks of a few triples with kgfast's of the same function."""
    evaluator = pykeen.evaluate(count)
    ours = kgfast.rank(model, pykeen.test[:count], known=known)
    return _furthest(
        [
            (pykeen.ranks(evaluator, "optimistic") - ours.optimistic).abs(),
            (pykeen.ranks(evaluator, "pessimistic") - ours.pessimistic).abs(),
        ]
    )


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
    {
        "rotate": rotate_rows,
        "single": single_rows,
        "dot": dot_rows,
        "whole": whole_rows,
    },
    options=OPTIONS,
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
