"""The same rank counts by kgfast and by what a user could try first, in one process, in turns.

    python benchmarks/eval_speed.py            everything; writes results/cpu-eval-speed.json, .png
    python benchmarks/eval_speed.py --quick    a smoke test: a tiny graph, eager torch only

A unit of work counts, for 128 queries, the entities that score above the target and those that
score the same. Peers are torch in chunks, torch.compile, KeOps; for whole test sets PyKEEN's
evaluator. Results are ratios: all contenders take turns, and medians are compared. Their integers
are compared too, and a sample of kgfast's with the float64 specification (exit code 1 if they
differ). The roof is the bare register loop of the sweep, on as many threads.
"""

import argparse
import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

import kgfast
from lib import eval_speed_tables as tables
from lib.bench import (
    BATCH,
    Bench,
    Contender,
    checked,
    dot_work,
    embeddings,
    isas,
    kgfast_counts,
    new_parser,
    rotate_model,
    rotate_work,
)
from lib.measure import SLOW_ROUNDS, Stopwatch, Timing
from lib.peers import ranks as peers
from lib.peers.ranks import Counts, Work

SWEEP_BATCH = 1024
DOT_DIMS = (200, 512)
REFERENCE_QUERIES = 4  # checked against the specification
PYKEEN_TRIPLES = (4, 12)  # the difference is what 8 triples cost, without what a call costs
PYKEEN = "PyKEEN's evaluator, L2"


def rotate_section(bench: Bench) -> None:
    """Every instruction set of kgfast, torch.compile, eager chunks, KeOps."""
    for dim in bench.options.dims:
        for table in bench.options.tables:
            work = rotate_work(bench, table, dim, BATCH)
            contenders = {"kgfast": partial(kgfast_counts, work)}
            for isa in isas(bench)[1:]:
                contenders[f"kgfast {isa}"] = partial(kgfast_counts, work, isa=isa)
            built, missing = bench.build(
                {
                    "compile": partial(peers.compiled, work),
                    "eager": partial(peers.eager, work),
                    "keops": partial(peers.keops, work),
                }
            )
            what = {"dim": dim, "table": table, "batch": BATCH}
            race(bench, "rotate", contenders | built, what)
            check(bench, work, "rotate")
            bench.add_missing("rotate", missing, what)
    title = f"RotatE rank counts of {BATCH} queries"
    tables.print_race(bench.out, bench.rows, "rotate", title)


def single_section(bench: Bench) -> None:
    """One query: all threads work on it."""
    dim = max(bench.options.dims)
    for table in bench.options.tables:
        work = rotate_work(bench, table, dim, 1)
        contenders = {"kgfast": partial(kgfast_counts, work)}
        built, missing = bench.build(
            {"compile": partial(peers.compiled, work), "eager": partial(peers.eager, work)}
        )
        what = {"dim": dim, "table": table, "batch": 1}
        race(bench, "single", contenders | built, what)
        check(bench, work, "rotate")
        bench.add_missing("single", missing, what)
    tables.print_race(bench.out, bench.rows, "single", "RotatE rank counts of one query")


def dot_section(bench: Bench) -> None:
    """Dot products: torch's matrix product and two comparisons are the peer."""
    for dim in bench.options.dims if bench.options.quick else DOT_DIMS:
        work = dot_work(bench, dim)
        contenders: dict[str, Contender] = {
            "kgfast": partial(kgfast_counts, work, "dot"),
            "matmul + compare": peers.matmul_compare(work),
        }
        race(bench, "dot", contenders, {"dim": dim, "table": "normal", "batch": BATCH})
        check(bench, work, "dot")
    tables.print_race(bench.out, bench.rows, "dot", f"dot rank counts of {BATCH} queries")


def race(
    bench: Bench, section: str, contenders: Mapping[str, Contender], work: Mapping[str, Any]
) -> None:
    """Let all take turns, and compare the integers."""
    counts, rows = bench.race(section, contenders, work)
    for name, row in rows.items():
        row |= difference(counts[name], counts["kgfast"])
        if counts[name][1] is None:
            row["note"] = "counts the greater ones only"


def difference(counts: Counts, ours: Counts) -> dict[str, int]:
    """How many queries a contender counts differently, and by how much at most."""
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


def check(bench: Bench, work: Work, score: str) -> None:
    """Hold the first queries of the latest kgfast row against the specification."""
    few = slice(REFERENCE_QUERIES)
    part = Work(work.queries[few], work.table, work.targets[few])
    with kgfast.use_backend("reference"):
        expected = kgfast_counts(part, score)
    found = kgfast_counts(work, score)
    row = next(row for row in reversed(bench.rows) if row["contender"] == "kgfast")
    row["equals_reference"] = all(
        torch.equal(ours[few], theirs)  # type: ignore[index, arg-type]
        for ours, theirs in zip(found, expected, strict=True)
    )


def roof_section(bench: Bench) -> None:
    """The sweep of a random table against the bare register loop, on every instruction set.

    Every target is one far row, so that all candidates beat it: none is abandoned early, and the
    sweep does the work of the loop.
    """
    if not isas(bench):
        return
    dim = max(bench.options.dims)
    work = without_abandon(rotate_work(bench, "random", dim, SWEEP_BATCH))
    elements = SWEEP_BATCH * bench.graph.num_entities * dim
    loop_seconds = 0.02 if bench.options.quick else 0.5
    for isa in isas(bench):
        kgfast_counts(work, isa=isa)
        seconds, speeds = [], []
        for _ in range(bench.options.rounds):
            speeds.append(roof(isa, dim, loop_seconds))
            seconds.append(bench.stopwatch.seconds(partial(kgfast_counts, work, isa=isa)))
        sweep, loop = Timing.of(seconds), Timing.of(speeds)
        bench.add(
            "roof",
            f"kgfast {isa}",
            isa=isa,
            dim=dim,
            table="random, far targets",
            batch=SWEEP_BATCH,
            seconds=sweep.as_dict(),
            elements_per_s=elements / sweep.median,
            roof_elements_per_s=loop.as_dict(),
            share_of_roof=elements / sweep.median / loop.median,
        )
    tables.print_roof(bench.out, bench.rows)


def without_abandon(work: Work) -> Work:
    """The same queries, all with a target that scores below every candidate."""
    table = work.table.clone()
    table[0] *= 1e3
    return Work(work.queries, table, torch.zeros_like(work.targets))


def roof(isa: str, dim: int, seconds: float) -> float:
    """Elements per second of the bare loop on all threads: it releases the interpreter's lock."""
    from kgfast.kernels import _cpu
    from kgfast.kernels.cpu.views import score_code
    from kgfast.kernels.scores import get_score

    code = score_code(get_score("rotate"), has_factor=False)
    speeds: list[float] = []

    def run() -> None:
        speeds.append(_cpu.roof(isa, code, dim, seconds))

    threads = [threading.Thread(target=run) for _ in range(torch.get_num_threads())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(speeds)


def whole_section(bench: Bench) -> None:
    """All test triples, both sides, filtered; PyKEEN's evaluator is extrapolated from a few."""
    known, test = bench.graph.known(), bench.graph.test.hrt
    for dim in bench.options.dims:
        contenders: dict[str, Contender] = {
            f"kgfast, {table}": partial(
                kgfast.rank, rotate_model(bench, table, dim), test, known=known
            )
            for table in bench.options.tables
        }
        calls: dict[int, Contender] = {}
        compared: dict[str, int] = {}
        planted = embeddings(bench.graph, "planted", dim)
        built, missing = bench.build(
            {"pykeen": partial(peers.PyKEEN, bench.graph, *planted, bench.device)}
        )
        if built:
            pykeen = built["pykeen"]
            same = pykeen.by_kgfast()
            contenders["kgfast, planted, L2"] = partial(kgfast.rank, same, test, known=known)
            few, more = PYKEEN_TRIPLES
            calls = {count: partial(pykeen.evaluate, count, few) for count in (few, more)}
            compared = compare_with_pykeen(pykeen, same, known)  # and warms it up
        rounds = min(SLOW_ROUNDS, bench.options.rounds)
        timings, calls_seconds = take_turns(bench.stopwatch, contenders, calls, rounds)
        work = {"dim": dim, "queries": 2 * len(test)}
        add_whole(bench, work, timings)
        if calls:
            add_extrapolated(bench, work, calls_seconds, compared)
        if missing:
            bench.add_missing("whole", {PYKEEN: missing["pykeen"]}, work)
    tables.print_whole(bench.out, bench.rows, 2 * len(test))


def compare_with_pykeen(pykeen: peers.PyKEEN, model: Any, known: Any) -> dict[str, int]:
    """PyKEEN's ranks of a few triples beside kgfast's of the same function."""
    few, more = PYKEEN_TRIPLES
    evaluator = pykeen.evaluate(more, few)
    ours = kgfast.rank(model, pykeen.test[:more], known=known)
    return _furthest(
        [
            (pykeen.ranks(evaluator, "optimistic") - ours.optimistic).abs(),
            (pykeen.ranks(evaluator, "pessimistic") - ours.pessimistic).abs(),
        ]
    )


def take_turns(
    stopwatch: Stopwatch,
    contenders: Mapping[str, Contender],
    calls: Mapping[int, Contender],
    rounds: int,
) -> tuple[dict[str, Timing], dict[int, list[float]]]:
    """Whole test sets, and calls of PyKEEN's evaluator by their number of triples."""
    seconds: dict[Any, list[float]] = {name: [] for name in (*contenders, *calls)}
    for _ in range(rounds):
        for name, run in [*contenders.items(), *calls.items()]:
            seconds[name].append(stopwatch.seconds(run))
    return (
        {name: Timing.of(seconds[name]) for name in contenders},
        {count: seconds[count] for count in calls},
    )


def add_whole(bench: Bench, work: Mapping[str, int], timings: Mapping[str, Timing]) -> None:
    """A row for each measured test set."""
    elements = work["queries"] * bench.graph.num_entities * work["dim"]
    for name, timing in timings.items():
        speed = elements / timing.median
        bench.add(
            "whole",
            name,
            **work,
            seconds=timing.as_dict(),
            elements_per_s=speed,
        )


def add_extrapolated(
    bench: Bench,
    work: Mapping[str, int],
    calls: Mapping[int, list[float]],
    compared: Mapping[str, int],
) -> None:
    """PyKEEN's row: a longer call minus a shorter one is the cost of the triples between."""
    few, more = calls
    triples = more - few
    differences = [
        max(long - short, 1e-9) for short, long in zip(calls[few], calls[more], strict=True)
    ]
    timing = Timing.of(differences).scaled(work["queries"] / 2 / triples)
    bench.add(
        "whole",
        PYKEEN,
        **work,
        seconds=timing.as_dict(),
        elements_per_s=work["queries"] * bench.graph.num_entities * work["dim"] / timing.median,
        extrapolated=True,
        note=f"extrapolated from {triples} triples",
        **compared,
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    return checked(new_parser(__doc__, "eval-speed"), "eval-speed", arguments)


def main() -> int:
    """Measure, print, write; 1 if a count of kgfast's differs from the specification."""
    sections = (rotate_section, single_section, dot_section, roof_section, whole_section)
    return Bench.of("eval_speed", parse()).run(sections, tables.ratios, "draw_speed")


if __name__ == "__main__":
    sys.exit(main())
