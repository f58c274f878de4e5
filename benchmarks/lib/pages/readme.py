"""The block of README.md: the most telling rows of docs/reference/speed.md, of one machine."""

from collections.abc import Iterator
from pathlib import Path

from lib.pages import machine_of, sources
from lib.pages.speed import LEGEND, measurements, read_results
from lib.tables import markdown

ROWS = (
    "peak memory",
    "one `[",
    "official code",
    "naive",
    "kgfast, planted: whole",
    "PyKEEN's evaluator, L2",
    "kgfast, planted, L2",
    "rotate, dim 512, planted",
    "dot, dim 512",
    "RotatE training step",
)
NARROW = "whole test set, dim 128"


def block(folder: Path) -> str:
    """Write the table of the first machine, and its sources."""
    return "\n".join(_lines(folder))


def _lines(folder: Path) -> Iterator[str]:
    rows = read_results(folder)[0]
    lines = [
        {"what": what, "measured": measured}
        for what, measured in measurements(rows)
        if what.startswith(ROWS) and NARROW not in what
    ]
    yield from markdown(((" ", "{what}"), (f"{machine_of(rows)}:", "{measured}")), lines)
    yield from ["", LEGEND, *sources([rows])]
