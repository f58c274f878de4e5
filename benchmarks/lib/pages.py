"""Pages with a block that is generated from files under benchmarks/results/.

The block stands between two markers; nothing in it is typed by hand. A script of such a page puts
the block in, or says with ``--check`` that the page holds another.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.results import RESULTS, Rows

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def main(script: str, doc: str | None, page: Path, block: Callable[[Path], str]) -> int:
    """Update, print or check the page, whose block is made of a folder of results."""
    parser = new_parser(doc, page)
    parser.add_argument("--print", action="store_true", help="instead of updating the page")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.print:
        print(block(options.results))
        return 0
    return update(options, script, block(options.results))


def new_parser(doc: str | None, page: Path) -> argparse.ArgumentParser:
    """The options that every page has."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if the page is out of date")
    parser.add_argument("--page", type=Path, default=page)
    return parser


def update(options: argparse.Namespace, script: str, block: str) -> int:
    """Put the block into the page, or say that it is out of date; the exit code."""
    page: Path = options.page
    try:
        old = page.read_text()
        new = insert(old, block)
    except (OSError, ValueError) as error:
        print(f"{page}: {error}", file=sys.stderr)
        return 1
    if new == old:
        return 0
    if options.check:
        name = Path(script).name
        print(f"{page.name} is out of date: run python benchmarks/{name}", file=sys.stderr)
        return 1
    page.write_text(new)
    return 0


def insert(page: str, block: str) -> str:
    """The page with the block between its markers.

    Raises
    ------
    ValueError
        If the markers are missing or in the wrong order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page must hold {BEGIN} and, after it, {END}")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def row(*cells: str) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def machine_of(rows: Rows) -> str:
    """Where rows were measured: a CPU with its threads, or a GPU."""
    about = rows[0]["machine"]
    threads = f", {about['threads']} threads" if about["device"] == "cpu" else ""
    return f"{about['name']}{threads}"


def sources(tables: Sequence[Rows]) -> Iterator[str]:
    """The commands, versions and dates."""
    lines = {
        (row["command"], row["machine"]["name"], row["date"][:10], packages(row["versions"]))
        for rows in tables
        for row in rows
    }
    for command, name, date, versions in sorted(lines):
        yield f"`{command}` on {name}, {date}: {versions}."


def packages(versions: Mapping[str, Any]) -> str:
    """Those that were there."""
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)
