"""The measured table of the README, from the files under benchmarks/results/.

    python benchmarks/readme_table.py            put it into README.md, between the markers
    python benchmarks/readme_table.py --print    print it
    python benchmarks/readme_table.py --check    exit code 1 if README.md says something else

A column per machine: the CPU first, then a GPU for each file that has one; without such a file
the GPU column is empty. Below it, what tiers and an index gain. Nothing is typed by hand, and what
was extrapolated keeps its mark.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib import pages
from lib.pages import ROOT, machine_of, sources
from lib.results import Rows, find, read_rows
from lib.tables import LABELS, human_bytes, human_seconds

README = ROOT / "README.md"
LEGEND = (
    "N = 40,943 entities; whole test set: 6,268 queries, filtered. Bold: kgfast, measured; in "
    "brackets, how many times as long its peers take. ~ extrapolated from a part of the work."
)


def read_results(folder: Path) -> list[Rows]:
    """The rows of each machine, the CPU first."""
    machines: dict[tuple[bool, str], list[Mapping[str, Any]]] = {}
    for path in [*sorted(folder.glob("*-eval-*.json")), *sorted(folder.glob("*-train-speed.json"))]:
        for row in read_rows(path):
            if row["benchmark"] in ("eval_mem_crops", "epoch_speed"):  # of other pages
                continue
            about = row["machine"]
            machines.setdefault((about["device"] != "cpu", about["name"]), []).append(row)
    return [machines[key] for key in sorted(machines)]


def markdown(machines: Sequence[Rows]) -> str:
    """The table, one column per machine, and where its numbers come from."""
    machines = list(machines)
    while len(machines) < 2:  # the columns are there before the machines are
        machines.append([])
    names: list[str] = []
    lines = [dict(_measurements(rows)) for rows in machines]
    for line in lines:
        names += [name for name in line if name not in names]
    header = [
        machine_of(rows) if rows else ("GPU" if index else "CPU")
        for index, rows in enumerate(machines)
    ]
    table = [
        f"| {pages.row(*header)}",
        "|---|" + "---:|" * len(header),
        *(pages.row(name, *(line.get(name, "") for line in lines)) for name in names),
    ]
    return "\n".join([*table, "", LEGEND, *sources(machines)])


def ratios(folder: Path) -> str:
    """How many times as fast tiers and an index make an answer; empty without their files."""
    files = [folder / f"cpu-{name}-speed.json" for name in ("tiers", "index", "dot-tiers")]
    if not all(path.is_file() for path in files):
        return ""
    tiers, index, dot = map(read_rows, files)
    lines = [*_tier_lines(tiers), *_index_lines(index), *_faiss_lines(dot)]
    header = pages.row("one thread", f"times as fast, {tiers[0]['machine']['name']}")
    table = [header, "|---|---:|", *(pages.row(*line) for line in lines)]
    return "\n".join(["", "", *table, "", *sources([tiers, index, dot])])


def _tier_lines(rows: Rows) -> Iterator[tuple[str, str]]:
    """Trained tables, tail and head queries."""
    trained = [row for row in rows if row.get("run")]
    for tiers, what in (("linear,fp16", "all tiers"), ("linear", "without half precision")):
        chosen = [row for row in trained if row["tiers"] == tiers]
        found = (
            (dim, [f"{row['times_faster']['median']:.2f}x" for row in chosen if row["dim"] == dim])
            for dim in dict.fromkeys(row["dim"] for row in chosen)
        )
        cells = "; ".join(f"dim {dim}: {' / '.join(both)}" for dim, both in found)
        yield f"ranks of trained RotatE, tail / head, {what}, to the float32 sweep", cells


def _index_lines(rows: Rows) -> Iterator[tuple[str, str]]:
    single = [row for row in rows if row["batch"] == 1]
    cells = ", ".join(f"{row['section']} {row['table_times_index']:.1f}x" for row in single)
    first = single[0]
    work = f"{first['entities']:,} x {first['dim']}"
    yield f"one query with an index, top-{first['k']}, {work}, to none", cells


def _faiss_lines(rows: Rows) -> Iterator[tuple[str, str]]:
    large = [row for row in rows if row["work"] == "best" and row["entities"] == 1_000_000]
    cells = ", ".join(
        f"{_queries(row['batch'])} {row['seconds']['faiss'] / row['seconds']['index']:.1f}x"
        for row in sorted(large, key=lambda row: int(row["batch"]))
        if row["seconds"].get("faiss") and row["seconds"].get("index")
    )
    yield "top-10 of dot with an index, 1,000,000 x 128, to faiss `IndexFlatIP`", cells


def _measurements(rows: Rows) -> Iterator[tuple[str, str]]:
    """(what, measured) of one machine."""
    memory = [row for row in rows if row["benchmark"] == "eval_mem"]
    speed = [row for row in rows if row["benchmark"] == "eval_speed"]
    yield from _memory_lines(memory)
    yield from _whole_lines(speed)
    yield from _peer_lines(speed)
    yield from _training_lines([row for row in rows if row["benchmark"] == "train_speed"])


def _memory_lines(rows: Rows) -> Iterator[tuple[str, str]]:
    if not rows:
        return
    row = max(rows, key=lambda row: int(row["dim"]))
    dim, formula, ours = row["dim"], row["formula"], row["kgfast"]
    yield (
        f"peak memory beyond the inputs, whole test set, dim {dim}",
        f"**{human_bytes(ours['bytes'])}**",
    )
    yield (
        f"one `[{formula['batch']}, N, {dim}]` complex tensor, by formula",
        human_bytes(formula["tensor"]),
    )
    yield (
        f"official code / LibKGE / PyKEEN, batch {formula['batch']}, dim {dim}, by formula",
        " / ".join(human_bytes(formula[name]) for name in ("official", "libkge", "pykeen")),
    )
    if row["naive"] and row["naive"]["batch"]:
        yield (
            f"naive evaluation in plain torch, whole test set, dim {dim}",
            "~" + human_seconds(row["naive"]["extrapolated_seconds"]),
        )


def _whole_lines(rows: Rows) -> Iterator[tuple[str, str]]:
    for row in rows:
        if row["section"] == "whole" and row["seconds"]:
            seconds = human_seconds(row["seconds"]["median"])
            yield (
                f"{row['contender']}: whole test set, dim {row['dim']}",
                f"~{seconds}" if row["extrapolated"] else f"**{seconds}**",
            )


def _peer_lines(rows: Rows) -> Iterator[tuple[str, str]]:
    """Rank counts: kgfast's time, and its peers as multiples of it."""
    works = dict.fromkeys(
        (row["section"], row["table"], row["dim"], row["batch"])
        for row in rows
        if row["section"] in ("rotate", "single", "dot")
    )
    for section, table, dim, batch in works:
        work = {"table": table, "dim": dim, "batch": batch}
        score = "dot" if section == "dot" else "rotate"
        what = f"{score}, dim {dim}, {table} table, {_queries(batch)}"
        ours = find(rows, section, "kgfast", **work)
        if ours is None:
            continue
        peers = [
            f"{label} {row['times_kgfast']:.1f}x"
            for peer, label in (LABELS | {"matmul + compare": "matmul + compare"}).items()
            if (row := find(rows, section, peer, **work))
        ]
        seconds = human_seconds(ours["seconds"]["median"])
        yield f"{what}", f"**{seconds}** ({', '.join(peers)})"


def _training_lines(rows: Rows) -> Iterator[tuple[str, str]]:
    """A step of training, and its peers as multiples of it."""
    ours = [row for row in rows if row["contender"] == "kgfast" and row["seconds"]]
    for row in ours:
        peers = [
            f"{it['contender'].replace('pykeen', 'PyKEEN')} {it['times_kgfast']:.0f}x"
            for it in rows
            if it["contender"] != "kgfast" and it["seconds"]
        ]
        work = f"{row['batch']} triples x {row['negatives']} negatives"
        seconds = human_seconds(row["seconds"]["median"])
        yield (
            f"RotatE training step, dim {row['dim']}, {work}",
            f"**{seconds}** ({', '.join(peers)})",
        )


def _queries(batch: int) -> str:
    return "1 query" if batch == 1 else f"{batch} queries"


def main() -> int:
    """Update, print or check the page."""
    return pages.main(
        __file__, __doc__, README, lambda folder: markdown(read_results(folder)) + ratios(folder)
    )


if __name__ == "__main__":
    sys.exit(main())
