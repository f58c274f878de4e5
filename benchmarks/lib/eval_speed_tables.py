"""What eval_speed prints: a table per section, and the ratios beside the goals."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from lib.results import Rows, find
from lib.tables import LABELS, billions, median, new_table, race_table, ratio_lines, spread


def print_race(out: Console, rows: Rows, section: str, title: str) -> None:
    """One line per contender of a section."""
    rows = [row for row in rows if row["section"] == section]
    out.print(race_table(title, rows, LABELS, "differ", _differs))


def _differs(row: Mapping[str, Any]) -> str:
    if row.get("equals_reference") is False:
        return "[bold red]NOT the specification's[/]"
    if row["contender"] == "kgfast":
        return "= reference" if row.get("equals_reference") else ""
    note = " (greater only)" if "note" in row else ""
    if not row["differing_queries"]:
        return "none" + note
    return f"{row['differing_queries']} queries, by {row['largest_difference']}{note}"


def print_roof(out: Console, rows: Rows) -> None:
    """The sweep's share of the bare loop."""
    rows = [row for row in rows if row["section"] == "roof"]
    table = new_table(
        f"The sweep of {rows[0]['batch']} queries against the bare register loop",
        *("", "dim", "sweep, elements/s", "bare loop", "min .. max", "share"),
    )
    for row in rows:
        roof = row["roof_elements_per_s"]
        table.add_row(
            row["contender"],
            str(row["dim"]),
            billions(row),
            f"{roof['median'] / 1e9:.3g} G",
            f"{roof['min'] / 1e9:.3g} .. {roof['max'] / 1e9:.3g} G",
            f"{row['share_of_roof']:.0%}",
        )
    out.print(table)
    if any(row["share_of_roof"] > 1 for row in rows):
        out.print(
            "Above 100%: this bare loop is slower than the sweep's own, so it is no roof for it.\n"
        )


def print_whole(out: Console, rows: Rows, queries: int) -> None:
    """Seconds of whole test sets."""
    table = new_table(
        f"The whole test set, both sides, filtered: {queries:,} queries",
        *("", "dim", "median", "min .. max", "elements/s", ""),
    )
    for row in rows:
        if row["section"] != "whole":
            continue
        if row["seconds"] is None:
            table.add_row(row["contender"], str(row["dim"]), row["note"], style="dim")
            continue
        notes = [row["note"]] if "note" in row else []
        if "compared_queries" in row:
            notes.append(f"{row['differing_queries']} of {row['compared_queries']} ranks differ")
        table.add_row(
            row["contender"],
            str(row["dim"]),
            median(row),
            spread(row["seconds"]),
            billions(row),
            "\n".join(notes),
            style=None if row["extrapolated"] else "green",
        )
    out.print(table)


def ratios(rows: Rows) -> list[dict[str, str]]:
    """What the benchmark is for: what, measured, goal."""
    lines = [*_rotate_ratios(rows), *_roof_ratios(rows), *_dot_ratios(rows), *_whole_ratios(rows)]
    return ratio_lines(lines)


def _rotate_ratios(rows: Rows) -> Iterator[tuple[str, str, str]]:
    for section, what in (("rotate", "128 queries"), ("single", "one query")):
        dim = max((row["dim"] for row in rows if row["section"] == section), default=0)
        for table in ("random", "planted"):
            goal = {"random": ">= 7x", "planted": ">= 10x"}[table] if section == "rotate" else ""
            for peer, name in LABELS.items():
                if row := find(rows, section, peer, dim=dim, table=table):
                    yield (
                        f"rotate, {what}, dim {dim}, {table}: kgfast against {name}",
                        f"{row['times_kgfast']:.1f}x",
                        goal if peer == "compile" else "",
                    )


def _roof_ratios(rows: Rows) -> Iterator[tuple[str, str, str]]:
    speeds = {row["isa"]: row["elements_per_s"] for row in rows if row["section"] == "roof"}
    if "avx2" in speeds and "avx512" in speeds:
        yield "sweep, AVX2 against AVX-512", f"{speeds['avx2'] / speeds['avx512']:.0%}", ">= 50%"
    for row in rows:
        if row["section"] == "roof":
            name = f"sweep against the bare loop, {row['isa']}, dim {row['dim']}"
            yield name, f"{row['share_of_roof']:.0%}", ">= 80%"


def _dot_ratios(rows: Rows) -> Iterator[tuple[str, str, str]]:
    for row in rows:
        if row["section"] == "dot" and row["contender"] != "kgfast":
            name = f"dot, dim {row['dim']}: kgfast against {row['contender']}"
            yield name, f"{row['times_kgfast']:.2f}x", ">= 1.0x"


def _whole_ratios(rows: Rows) -> Iterator[tuple[str, str, str]]:
    for row in rows:
        if row["section"] != "whole" or not row.get("extrapolated"):
            continue
        if ours := find(rows, "whole", "kgfast, planted, L2", dim=row["dim"]):
            ratio = row["seconds"]["median"] / ours["seconds"]["median"]
            name = f"whole test set, L2, dim {row['dim']}: kgfast against PyKEEN's evaluator"
            yield name, f"~{ratio:.0f}x", ""
