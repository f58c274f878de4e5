"""The tables of docs/influence.md and docs/paths.md, and the picture of three systems.

python benchmarks/reports_page.py            put them into the pages, draw results/cpu-reports.png
python benchmarks/reports_page.py --check    exit code 1 if a page says something else
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lib import pages
from lib.pages import ROOT
from lib.results import RESULTS, Rows, read_rows
from lib.tables import human_bytes, human_seconds

INFLUENCE, PATHS, STAR = (
    f"cpu-{name}.json" for name in ("influence-speed", "paths-speed", "path-star")
)
PICTURE = "cpu-reports.png"


def of_influence(folder: Path) -> str:
    """A row of each contender and graph."""
    rows = [row for row in read_rows(folder / INFLUENCE) if row["section"] != "part"]
    heads = ("graph", "training examples", "by", "seconds", "seconds of cores", "peak memory")
    lines = [pages.row(*heads), "|---|---:|---|---:|---:|---:|"]
    for row in rows:
        is_race = row["section"] == "captum"
        by = "kgfast" if row["contender"] == "kgfast" else f"captum, batch {row['batch']}"
        guess = "~" if row.get("extrapolated_from") else ""
        times = f" ({row['cpu_seconds_ratio']:.1f}x)" if row["contender"] == "captum" else ""
        lines.append(
            pages.row(
                row["dataset"],
                f"{row['examples']:,}",
                f"{by}, no biases" if is_race else by,
                f"{guess}{row['seconds']:,.0f}",
                f"{guess}{row['cpu_seconds']:,.0f}{times}",
                "" if is_race else human_bytes(row["peak_bytes"]),
            )
        )
    return "\n".join([*lines, "", *_parts(folder), "", *pages.sources([rows])])


def _parts(folder: Path) -> Sequence[str]:
    """What a part without many equal queries took, and from how many captum is extrapolated."""
    rows = read_rows(folder / INFLUENCE)
    said = []
    for graph in dict.fromkeys(row["dataset"] for row in rows):
        own = [row for row in rows if row["dataset"] == graph]
        part = [row for row in own if row["section"] == "part"]
        best = min(part[1:], key=lambda row: float(row["cpu_seconds"]))
        naive = next(row["naive_bytes"] for row in own if row["section"] == "whole")
        last = own[-1]
        guessed = last.get("extrapolated_from")
        said.append(
            f"{graph}: gradients of each example, by formula, {human_bytes(naive)}; the first "
            f"{part[0]['examples']:,} examples take kgfast {part[0]['cpu_seconds']:.2f} and captum "
            f"(batch {best['batch']}) {best['cpu_seconds']:.2f} seconds of cores, "
            f"{best['cpu_seconds_ratio']:.1f}x; values differ by {last['relative_difference']:.0e} "
            "of the largest"
            + (f"; captum's time for all is extrapolated from {guessed:,} (~)." if guessed else ".")
        )
    return [line for one in said for line in (one, "")][:-1]


def of_paths(folder: Path) -> str:
    """A row of each contender and number of paths."""
    rows = read_rows(folder / PATHS)
    lines = [
        pages.row("paths", "by", "peak", "seconds", "seconds of cores", "ratio of these"),
        "|---:|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        is_ours = row["contender"] == "kgfast"
        timed = [
            f"{row[kind]['median']:.1f}" if row[kind] else ""
            for kind in ("seconds", "cpu_seconds")
            if kind in row
        ]
        ratio = f"{row['cpu_seconds_ratio']:.2f}x" if "cpu_seconds_ratio" in row else ""
        lines.append(
            pages.row(
                f"{row['paths']:,}",
                "kgfast" if is_ours else "torch, all paths held",
                human_bytes(row["bytes"]) if row["bytes"] is not None else row["note"],
                *(timed + ["", ""])[:2],
                ratio,
            )
        )
    threads, rounds = rows[0]["machine"]["threads"], (rows[0]["seconds"] or {}).get("rounds")
    told = (
        f"{threads} thread{'s' * (threads != 1)}, {rounds} turn{'s' * (rounds != 1)} each, medians."
    )
    return "\n".join([*lines, "", told, "", *pages.sources([rows])])


def draw(folder: Path) -> None:
    """The picture, of the three results files."""
    from lib.pictures import draw_reports, report_bar

    def pair(slow: Any, ours: Mapping[str, Any], names: tuple[str, str], kind: str) -> list[Any]:
        text = human_bytes if kind == "bytes" else human_seconds
        value, guessed = slow
        return [
            report_bar(names[0], value, text(value), guessed=guessed),
            report_bar(names[1], _median(ours[kind]), text(_median(ours[kind]))),
        ]

    influence, star, paths = (read_rows(folder / name) for name in (INFLUENCE, STAR, PATHS))
    whole, raced, captum = _of_first_graph(influence)
    whole = dict(whole) | {"bytes": whole["peak_bytes"]}
    everything = next(
        row
        for row in star
        if row["samples"] == 40_000 and row["dense_bytes"] > 1e12 and row["section"] == "greedy"
    )
    ours, dense = (
        next(
            row
            for row in star
            if (row["section"], row["contender"], row["samples"]) == ("greedy", name, 40_000)
            and "candidates" in row
        )
        for name in ("kgfast", "dense")
    )
    streamed = min(
        (row for row in paths if row["contender"] == "kgfast" and row["seconds"]),
        key=lambda row: abs(row["paths"] - 1e6),
    )
    held = next(
        row for row in paths if row["contender"] == "held" and row["paths"] == streamed["paths"]
    )
    guessed = bool(captum.get("extrapolated_from"))
    naive = ("each gradient", "kgfast")
    systems = {
        "TracIn": (
            pair((whole["naive_bytes"], False), whole, naive, "bytes"),
            pair((captum["cpu_seconds"], guessed), raced, ("captum", "kgfast"), "cpu_seconds"),
        ),
        "path-\nstar": (
            pair((everything["dense_bytes"], False), everything, ("logits", "kgfast"), "bytes"),
            pair((dense["cpu_seconds"], False), ours, ("logits", "kgfast"), "cpu_seconds"),
        ),
        "paths": (
            pair((held["bytes"], False), streamed, ("all held", "kgfast"), "bytes"),
            pair(
                (_median(held["cpu_seconds"]), False),
                streamed,
                ("all held", "kgfast"),
                "cpu_seconds",
            ),
        ),
    }
    draw_reports(systems, folder / PICTURE)


def _of_first_graph(rows: Rows) -> list[Mapping[str, Any]]:
    """The whole, kgfast's and captum's row of a race."""
    own = [row for row in rows if row["dataset"] == rows[0]["dataset"]]
    return [own[0], *(row for row in own if row["section"] == "captum")]


def _median(value: Any) -> float:
    return float(value["median"] if isinstance(value, dict) else value)


def main() -> int:
    """Update or check the pages; draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if a page is out of date")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, code = parser.parse_args(), 0
    for name, block in (("influence", of_influence), ("paths", of_paths)):
        options.page = ROOT / "docs" / f"{name}.md"
        code |= pages.update(options, __file__, block(options.results))
    if not options.check:
        draw(options.results)
    return code


if __name__ == "__main__":
    sys.exit(main())
