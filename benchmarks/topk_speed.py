"""The best k candidates by kgfast and by what a user could try first, in one process, in turns.

    python benchmarks/topk_speed.py            everything; writes results/cpu-topk-speed.json, .png
    python benchmarks/topk_speed.py --quick    a smoke test: a tiny graph, eager torch only

Four works: the 10 best tails of 128 RotatE queries (beside kgfast's rank counts of the same
queries, which the same sweep makes); greedy decoding of an output head, 40,000 hidden states by
50,011 outputs; the same of 10 million outputs; and one prediction beside PyKEEN's. All contenders
take turns, and medians are compared. Ids are compared too: a sample of kgfast's with the float64
specification (exit code 1 if they differ), the peers' with kgfast's.
"""

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

import kgfast
from kgfast import ops
from lib.bench import (
    BATCH,
    Bench,
    Contender,
    checked,
    embeddings,
    kgfast_counts,
    new_parser,
    rotate_model,
    rotate_work,
)
from lib.machine import available_memory
from lib.peers import topk as peers
from lib.peers.ranks import PyKEEN
from lib.peers.topk import Best, Search
from lib.results import Rows, find
from lib.tables import LABELS, race_table, ratio_lines

CONTENDERS = LABELS | {
    "counts": "kgfast.rank_counts, the same queries",
    "pykeen": "PyKEEN's predict_target",
}
REFERENCE_QUERIES = 4  # checked against the specification
REFERENCE_ROWS = 1 << 21  # of a larger table; its first rows are searched once more
HEAD = (40_000, 50_011, 64)  # hidden states, outputs, width
OUTPUTS = (64, 10_000_000, 64)
QUICK_HEAD, QUICK_OUTPUTS = (300, 501, 8), (4, 20_000, 8)
PREDICTIONS = 8  # queries, one at a time


def rotate_section(bench: Bench) -> None:
    """The k best tails; `counts` is the rank of one target in place of the k best."""
    for dim in bench.options.dims:
        for table in bench.options.tables:
            work = rotate_work(bench, table, dim, BATCH)
            search = Search(work.queries, work.table, bench.options.k)
            contenders = {
                "kgfast": partial(best_of, search, "rotate"),
                "counts": partial(kgfast_counts, work),
            }
            built, missing = bench.build(
                {
                    "compile": partial(peers.compiled, search),
                    "eager": partial(peers.eager, search),
                    "keops": partial(peers.keops, search),
                }
            )
            what = {"dim": dim, "table": table, "k": search.k, "batch": BATCH}
            race(bench, "rotate", search, "rotate", contenders | built, what)
            bench.add_missing("rotate", missing, what)
    title = f"RotatE, the {bench.options.k} best of {BATCH} queries"
    print_race(bench, "rotate", title)


def head_section(bench: Bench) -> None:
    """Greedy decoding of an output head."""
    search = normal_search(bench, QUICK_HEAD if bench.options.quick else HEAD)
    contenders = {"kgfast": partial(best_of, search, "dot")}
    built, _ = bench.build({"eager": partial(peers.eager_head, search)})
    outputs_race(bench, "head", search, contenders | built)
    print_race(bench, "head", f"An output head: the best of {len(search.table):,} outputs")


def outputs_section(bench: Bench) -> None:
    """Outputs by the million."""
    sizes = QUICK_OUTPUTS if bench.options.quick else OUTPUTS
    needed = 2 * 4 * sizes[1] * sizes[2]  # a copy is made on the way to a GPU
    if available_memory() < needed:
        print_race(bench, "outputs", "Many outputs: too large for the memory here")
        return
    search = normal_search(bench, sizes)
    contenders = {"kgfast": partial(best_of, search, "dot")}
    built, _ = bench.build({"eager": lambda: peers.ChunkedRows(search, peers.dot_block, 1 << 18)})
    outputs_race(bench, "outputs", search, contenders | built)
    print_race(bench, "outputs", f"Many outputs: the best of {len(search.table):,}")


def normal_search(bench: Bench, sizes: tuple[int, int, int]) -> Search:
    """Normal numbers."""
    batch, outputs, width = sizes
    generator = torch.Generator().manual_seed(0)
    return Search(
        torch.randn(batch, width, generator=generator).to(bench.device),
        torch.randn(outputs, width, generator=generator).to(bench.device),
        1,
    )


def outputs_race(
    bench: Bench, section: str, search: Search, contenders: Mapping[str, Contender]
) -> None:
    """A race over dot products."""
    batch, dim = search.queries.shape
    what = {"dim": dim, "table": "normal", "k": search.k, "batch": batch}
    race(bench, section, search, "dot", contenders, what | {"entities": len(search.table)})


def best_of(search: Search, score: str) -> Best:
    """The unit of work by kgfast."""
    return ops.topk(search.queries, search.table, search.k, score=score)


def race(
    bench: Bench,
    section: str,
    search: Search,
    score: str,
    contenders: Mapping[str, Contender],
    work: Mapping[str, Any],
) -> None:
    """Let all take turns, and compare the ids."""
    answers, rows = bench.race(section, contenders, work)
    for name, row in rows.items():
        if name == "kgfast":
            row["equals_reference"] = equals_reference(search, score)
        elif name != "counts":
            other = (answers[name][1] != answers["kgfast"][1]).any(1)
            row |= {"compared_queries": len(other), "differing_queries": int(other.sum())}


def equals_reference(search: Search, score: str) -> bool:
    """Whether the first queries' answers are the specification's, to the last bit."""
    few = Search(search.queries[:REFERENCE_QUERIES], search.table[:REFERENCE_ROWS], search.k)
    with kgfast.use_backend("reference"):
        expected = best_of(few, score)
    found = best_of(search, score) if len(few.table) == len(search.table) else best_of(few, score)
    return all(
        torch.equal(ours[:REFERENCE_QUERIES], theirs)
        for ours, theirs in zip(found, expected, strict=True)
    )


def prediction_section(bench: Bench) -> None:
    """One (head, relation, ?) at a time, as predict_target takes them."""
    k = bench.options.k
    for dim in bench.options.dims:
        entity, phase = embeddings(bench.graph, "planted", dim)
        heads, relations, _ = bench.graph.test.hrt[:PREDICTIONS].T.tolist()
        contenders: dict[str, Contender] = {}
        model: Any = rotate_model(bench, "planted", dim)
        built, missing = bench.build(
            {"pykeen": partial(PyKEEN, bench.graph, entity, phase, bench.device)}
        )
        if built:
            pykeen = built["pykeen"]
            model = pykeen.by_kgfast()
            contenders["pykeen"] = partial(
                one_by_one, partial(peers.predict_target, pykeen, k=k), heads, relations
            )
        contenders = {
            "kgfast": partial(one_by_one, partial(predict, model, k=k), heads, relations)
        } | contenders
        found = {name: run() for name, run in contenders.items()}  # and warms up
        timings = bench.stopwatch.interleave(contenders, bench.options.rounds)
        what = {"dim": dim, "table": "planted", "k": k, "batch": 1}
        one = {name: timing.scaled(1 / PREDICTIONS) for name, timing in timings.items()}
        for name, timing in one.items():
            row = bench.add_timed("prediction", name, timing, one["kgfast"], what)
            if name != "kgfast":
                pairs = zip(found[name], found["kgfast"], strict=True)
                differing = sum(theirs != ours for theirs, ours in pairs)
                row |= {"compared_queries": PREDICTIONS, "differing_queries": differing}
        bench.add_missing("prediction", missing, what)
    print_race(bench, "prediction", f"One prediction of the {k} best tails")


def predict(model: Any, head: int, relation: int, k: int) -> list[int]:
    """One prediction by kgfast."""
    ids: list[list[int]] = kgfast.topk(model, heads=head, relations=relation, k=k).ids.tolist()
    return ids[0]


def one_by_one(answer: Contender, heads: list[int], relations: list[int]) -> list[list[int]]:
    """Each query in a call of its own."""
    return [
        answer(head=head, relation=relation)
        for head, relation in zip(heads, relations, strict=True)
    ]


def print_race(bench: Bench, section: str, title: str) -> None:
    """One line per contender of a section."""
    rows = [row for row in bench.rows if row["section"] == section]
    bench.out.print(race_table(title, rows, CONTENDERS, "other ids", _differs))


def _differs(row: Mapping[str, Any]) -> str:
    if row.get("equals_reference") is False:
        return "[bold red]NOT the specification's[/]"
    if row.get("equals_reference"):
        return "= reference"
    return f"{row['differing_queries']} queries" if "differing_queries" in row else ""


def ratios(rows: Rows) -> list[dict[str, str]]:
    """What the benchmark is for: what, measured, goal."""
    lines = []
    dim = max((row["dim"] for row in rows if row["section"] == "rotate"), default=0)
    for table in ("random", "planted"):
        for contender, goal in (
            ("counts", "<= 1.3x"),
            ("compile", ""),
            ("eager", ""),
            ("keops", ""),
        ):
            row = find(rows, "rotate", contender, dim=dim, table=table)
            if row is None:
                continue
            what = f"rotate, {BATCH} queries, dim {dim}, {table}: kgfast against "
            times = row["times_kgfast"]
            if contender == "counts":
                line = (what + "rank_counts, in time", f"{1 / times:.2f}x", goal)
            else:
                line = (what + CONTENDERS[contender], f"{times:.1f}x", goal)
            lines.append(line)
    for section, contender, what in (
        ("head", "eager", "output head: kgfast against matmul + topk in chunks"),
        ("outputs", "eager", "10 million outputs: kgfast against matmul + topk in chunks"),
        ("prediction", "pykeen", "one prediction: kgfast against PyKEEN's predict_target"),
    ):
        found = [row for row in rows if row["section"] == section and row["contender"] == contender]
        lines += [
            (f"{what}, dim {row['dim']}", f"{row['times_kgfast']:.1f}x", ">= 1x")
            for row in found
            if row["seconds"]
        ]
    return ratio_lines(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = new_parser(__doc__, "topk-speed")
    parser.add_argument("-k", type=int, default=10, help="best candidates; 10 unless given")
    return checked(parser, "topk-speed", arguments, "k")


def main() -> int:
    """Measure, print, write; 1 if an answer of kgfast's differs from the specification."""
    sections = (rotate_section, head_section, outputs_section, prediction_section)
    return Bench.of("topk_speed", parse()).run(sections, ratios, "draw_topk")


if __name__ == "__main__":
    sys.exit(main())
