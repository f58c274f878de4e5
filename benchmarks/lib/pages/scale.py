"""The block of docs/explanation/scale.md: measurements of scale.py."""

from collections.abc import Iterator
from pathlib import Path

from lib.columns import SAMPLED, STREAMED
from lib.pages import goals_of, sources
from lib.results import Row, Rows, of_section, read_rows
from lib.tables import cell_of, markdown

RESULT = "cpu-scale.json"
KILLED = (
    "Killed with SIGKILL {kills} times at random moments and resumed, {entities:,} entities and "
    "{queries} queries: {end}; {again}.\n"
)
AGAIN = "at most {lost_ranges} ranges of {range_rows:,} rows were counted again after each"
ONE_AGAIN = "at most one range of {range_rows:,} rows was counted again after each"
NONE_AGAIN = "no range was counted twice"
TOGETHER = (
    "Two processes of one thread against one of two threads, {entities:,} entities: {ratio:.2f} "
    "times its speed by the clock, {ratio_by_cores:.2f} by the time of the cores (goal: {goal})."
)


def block(folder: Path) -> str:
    """Write what was measured."""
    return "\n".join(_lines(read_rows(folder / RESULT), goals_of(folder / RESULT)))


def _lines(rows: Rows, goals: dict[str, float]) -> Iterator[str]:
    yield "**A table in a file, 256 queries.**\n"
    yield from [*markdown(STREAMED, of_section(rows, "stream")), ""]
    for row in of_section(rows, "killed"):
        ends = {"end": "bit-equal" if row["equal"] else "NOT EQUAL", "again": _again(row)}
        yield cell_of({**row, **ends}, KILLED)
    for row in of_section(rows, "processes"):
        yield cell_of({**row, "goal": goals["processes"]}, TOGETHER)
    sent = of_section(rows, "sent")
    sizes = ", ".join(f"{row['entities']:,}" for row in sent)
    each = sorted({f"{row['bytes_per_query']:.0f}" for row in sent})
    yield (
        f"\nBytes that a query costs between four shards of {sizes} entities: "
        f"{' and '.join(each)}, of {sent[0]['dim']} complex numbers.\n"
    )
    yield (
        "**As large as ogbl-wikikg2**, its entities read from a file: 500 random candidates a "
        "query, or all. Ranks are planted: 1 to 32, of which filtering takes half.\n"
    )
    yield from [*markdown(SAMPLED, of_section(rows, "sampled")), "", *sources([rows])]


def _again(row: Row) -> str:
    """Say how many ranges a run that was killed counted again."""
    return cell_of(row, {0: NONE_AGAIN, 1: ONE_AGAIN}.get(row["lost_ranges"], AGAIN))
