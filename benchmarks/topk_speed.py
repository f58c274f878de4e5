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
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import peers
import topk_peers
import torch
from bench import BATCH, Bench, embeddings, kgfast_counts, rotate_model, rotate_work
from common import (
    QUICK_SIZES,
    RESULTS,
    Stopwatch,
    Timing,
    available_memory,
    console,
    facts,
    human_seconds,
    machine_line,
    machine_tag,
    write_json,
)
from rich import box
from rich.console import Console
from rich.table import Table
from speed_tables import LABELS, find, spread
from topk_peers import Best, Search

import kgfast
from kgfast import ops

PEERS = ("compile", "eager", "keops", "pykeen")
CONTENDERS = LABELS | {
    "counts": "kgfast.rank_counts, the same queries",
    "pykeen": "PyKEEN's predict_target",
}
REFERENCE_QUERIES = 4  # checked against the specification
REFERENCE_ROWS = 1 << 21  # of a larger table; its first rows are searched once more
SLOW_SECONDS, SLOW_ROUNDS = 3.0, 3  # a slower unit of work takes fewer turns
HEAD = (40_000, 50_011, 64)  # hidden states, outputs, width
OUTPUTS = (64, 10_000_000, 64)
QUICK_HEAD, QUICK_OUTPUTS = (300, 501, 8), (4, 20_000, 8)
PREDICTIONS = 8  # queries, one at a time

Contender = Callable[[], Any]


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
                    "compile": partial(topk_peers.compiled, search),
                    "eager": partial(topk_peers.eager, search),
                    "keops": partial(topk_peers.keops, search),
                }
            )
            what = {"dim": dim, "table": table, "k": search.k, "batch": BATCH}
            race(bench, "rotate", search, "rotate", contenders | built, what)
            add_missing(bench, "rotate", missing, what)
    title = f"RotatE, the {bench.options.k} best of {BATCH} queries"
    print_race(bench, "rotate", title)


def head_section(bench: Bench) -> None:
    """Greedy decoding of an output head."""
    search = normal_search(bench, QUICK_HEAD if bench.options.quick else HEAD)
    contenders = {"kgfast": partial(best_of, search, "dot")}
    built, _ = bench.build({"eager": partial(topk_peers.eager_head, search)})
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
    built, _ = bench.build(
        {"eager": lambda: topk_peers.ChunkedRows(search, topk_peers.dot_block, 1 << 18)}
    )
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
    """Warm up, take turns, compare the ids, keep a row for each contender."""
    found, few = {}, {}
    for name, run in contenders.items():
        found[name] = run()
        if bench.stopwatch.seconds(run) > SLOW_SECONDS:
            few[name] = min(SLOW_ROUNDS, bench.options.rounds)
    timings = bench.stopwatch.interleave(contenders, bench.options.rounds, few)
    pairs = len(search.queries) * len(search.table)
    for name, timing in timings.items():
        row = add(
            bench,
            section,
            name,
            **work,
            seconds=timing.as_dict(),
            elements_per_s=pairs * work["dim"] / timing.median,
            times_kgfast=timing.median / timings["kgfast"].median,
        )
        if name == "kgfast":
            row["equals_reference"] = equals_reference(search, score)
        elif name != "counts":
            other = (found[name][1] != found["kgfast"][1]).any(1)
            row |= {"compared_queries": len(other), "differing_queries": int(other.sum())}
        if hasattr(contenders[name], "chunk"):
            row["chunk"] = contenders[name].chunk


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
            {"pykeen": partial(peers.PyKEEN, bench.graph, entity, phase, bench.device)}
        )
        if built:
            pykeen = built["pykeen"]
            model = kgfast.RotatE(
                pykeen.entity,
                pykeen.relation,
                relation_format="complex",
                norm="l2",
                layout="interleaved",
            ).to(bench.device)
            contenders["pykeen"] = partial(
                one_by_one, partial(topk_peers.predict_target, pykeen, k=k), heads, relations
            )
        contenders = {
            "kgfast": partial(one_by_one, partial(predict, model, k=k), heads, relations)
        } | contenders
        found = {name: run() for name, run in contenders.items()}  # and warms up
        timings = bench.stopwatch.interleave(contenders, bench.options.rounds)
        what = {"dim": dim, "table": "planted", "k": k, "batch": 1}
        for name, timing in timings.items():
            add_prediction(bench, name, timing, timings["kgfast"], found, what)
        add_missing(bench, "prediction", missing, what)
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


def add_prediction(
    bench: Bench,
    name: str,
    timing: Timing,
    ours: Timing,
    found: Mapping[str, list[list[int]]],
    what: Mapping[str, Any],
) -> None:
    """A row with the time of one query."""
    one = timing.scaled(1 / PREDICTIONS)
    row = add(
        bench,
        "prediction",
        name,
        **what,
        seconds=one.as_dict(),
        elements_per_s=bench.graph.num_entities * what["dim"] / one.median,
        times_kgfast=timing.median / ours.median,
    )
    if name != "kgfast":
        differing = sum(a != b for a, b in zip(found[name], found["kgfast"], strict=True))
        row |= {"compared_queries": PREDICTIONS, "differing_queries": differing}


def add(bench: Bench, section: str, contender: str, **row: Any) -> dict[str, Any]:
    """Keep a row of this benchmark."""
    return bench.add(section, contender, **{"benchmark": "topk_speed", "extrapolated": False} | row)


def add_missing(
    bench: Bench, section: str, missing: Mapping[str, str], work: Mapping[str, Any]
) -> None:
    """Keep a row for each contender that cannot run here."""
    for name, reason in missing.items():
        add(bench, section, name, **work, seconds=None, note=reason)


def print_race(bench: Bench, section: str, title: str) -> None:
    """One line per contender."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for index, column in enumerate(
        ("", "table", "dim", "median", "min .. max", "elements/s", "x kgfast", "other ids")
    ):
        table.add_column(column, justify="right" if index else "left")
    for row in bench.rows:
        if row["section"] != section:
            continue
        name = CONTENDERS.get(row["contender"], row["contender"])
        if row["seconds"] is None:
            table.add_row(name, row["table"], str(row["dim"]), row["note"], style="dim")
            continue
        table.add_row(
            name,
            row["table"],
            str(row["dim"]),
            human_seconds(row["seconds"]["median"]),
            spread(row["seconds"]),
            f"{row['elements_per_s'] / 1e9:.3g} G",
            f"{row['times_kgfast']:.2f}",
            _differs(row),
            style="bold green" if row["contender"] == "kgfast" else None,
        )
    bench.out.print(table)


def _differs(row: Mapping[str, Any]) -> str:
    if row.get("equals_reference") is False:
        return "[bold red]NOT the specification's[/]"
    if row.get("equals_reference"):
        return "= reference"
    return f"{row['differing_queries']} queries" if "differing_queries" in row else ""


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
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
    return [dict(zip(("what", "measured", "goal"), line, strict=True)) for line in lines]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dims", type=int, nargs="+", metavar="D", help="128 512 unless given")
    parser.add_argument("-k", type=int, default=10, help="best candidates; 10 unless given")
    parser.add_argument(
        "--tables", nargs="+", choices=("random", "planted"), default=["random", "planted"]
    )
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="all of them unless given")
    parser.add_argument("--rounds", type=int, help="turns of each contender; 5 unless given")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="a tiny graph, eager torch: seconds")
    parser.add_argument("--json", type=Path, help="results/<machine>-topk-speed.json unless given")
    parser.add_argument("--plot", type=Path, help="beside the JSON unless given")
    options = parser.parse_args(arguments)
    options.dims = options.dims or ([16] if options.quick else [128, 512])
    options.rounds = (2 if options.quick else 5) if options.rounds is None else options.rounds
    if options.peers is None:
        options.peers = ["eager"] if options.quick else list(PEERS)
    for name, value in (
        ("--dims", min(options.dims)),
        ("-k", options.k),
        ("--rounds", options.rounds),
    ):
        if value < 1:
            parser.error(f"{name} must be at least 1; got {value}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here")
    if not options.quick:  # a smoke test writes only what it is told to
        name = f"{machine_tag(options.device)}-topk-speed.json"
        options.json = options.json or RESULTS / name
        options.plot = options.plot or options.json.with_suffix(".png")
    return options


def main() -> int:
    """Measure, print, write; 1 if an answer of kgfast's differs from the specification."""
    options = parse()
    graph = kgfast.datasets.synthetic(*(QUICK_SIZES if options.quick else ()))
    bench = Bench(options, console(), graph, Stopwatch(options.device))
    about = facts(options.device)
    bench.out.print(machine_line(about), style="dim")
    bench.out.print(f"{graph.num_entities:,} entities; {options.rounds} rounds\n", style="dim")
    for section in (rotate_section, head_section, outputs_section, prediction_section):
        section(bench)
        rows = [row | about for row in bench.rows]
        if options.json is not None:  # after each: a run that is stopped keeps what there is
            write_json(options.json, {"ratios": ratios(rows), "rows": rows})
    for line in ratios(bench.rows):
        bench.out.print(f"{line['what']}: [bold]{line['measured']}[/] {line['goal']}")
    if options.plot is not None:
        _draw(rows, options.plot, bench.out)
    if not all(row.get("equals_reference", True) for row in rows):
        bench.out.print("[bold white on red] IDS DIFFER FROM THE SPECIFICATION: this is a bug ")
        return 1
    return 0


def _draw(rows: list[dict[str, Any]], path: Path, out: Console) -> None:
    try:
        from pictures import draw_topk
    except ImportError:
        out.print('no picture: matplotlib is not installed (pip install "kgfast[bench]")')
        return
    draw_topk(rows, path)


if __name__ == "__main__":
    sys.exit(main())
