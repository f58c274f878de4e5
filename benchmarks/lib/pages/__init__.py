"""Pages with a block that is made of results files: the block's place, and the tables in it.

The block stands between two markers; nothing in it is typed by hand.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.results import ROOT, Row, Rows, read_rows, synthetic_graphs
from lib.tables import Columns, cell_of, markdown

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"

Maker = Callable[[Path], str]


@dataclass(frozen=True)
class Page:
    """A page and the function that makes its block of a folder of results."""

    path: str  # within the repository
    make: Maker
    is_whole: bool = False  # a block without markers, which is the whole page

    def update(self, results: Path, *, check: bool = False, path: Path | None = None) -> int:
        """Put the block into the page, or say that it is out of date; return the exit code."""
        path = path or ROOT / self.path
        try:
            old = path.read_text()
            block = self.make(results)
            new = block if self.is_whole else insert(old, block)
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
        if new == old:
            return 0
        if check:
            print(f"{path.name} is out of date: run python benchmarks/pages.py", file=sys.stderr)
            return 1
        path.write_text(new)
        return 0


def insert(page: str, block: str) -> str:
    """Return the page with the block between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page must hold {BEGIN} and, after it, {END}")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


@dataclass(frozen=True)
class Table:
    """A table of the rows of results files; texts are templates of the first row."""

    files: str  # a name, or a pattern: each file has a table
    columns: Columns
    only: Callable[[Row], bool] = lambda row: True
    title: str = ""
    note: str = ""
    change: Callable[[Rows], Rows] = lambda rows: rows  # into the rows that the table shows

    def write(self, folder: Path) -> Iterator[tuple[Rows, list[str]]]:
        """Yield the rows and the lines of each file."""
        paths = sorted(folder.glob(self.files))
        if not paths and "*" not in self.files:
            raise ValueError(f"{folder.name} holds no {self.files}")
        for path in paths:
            if rows := [row for row in read_rows(path) if self.only(row)]:
                first = {**rows[0], "place": machine_of(rows)}
                before, after = (cell_of(first, text) for text in (self.title, self.note))
                lines = markdown(self.columns, self.change(rows))
                yield rows, [*[before, ""] * bool(before), *lines, "", *[after, ""] * bool(after)]


def block(*tables: Table) -> Maker:
    """Return the maker of a block: tables, and where their numbers come from."""

    def make(folder: Path) -> str:
        written = [one for table in tables for one in table.write(folder)]
        lines = [line for _, lines in written for line in lines]
        return "\n".join([*lines, *sources([rows for rows, _ in written])])

    return make


def is_of(**values: Any) -> Callable[[Row], bool]:
    """Return whether a row has these values; a tuple holds several allowed ones."""

    def check(row: Row) -> bool:
        return all(
            row.get(name) in (value if isinstance(value, tuple) else (value,))
            for name, value in values.items()
        )

    return check


def machine_of(rows: Rows) -> str:
    """Name where rows were measured: a CPU with its instruction set and threads, or a GPU."""
    about = rows[0]["machine"]
    threads = f", {about['threads']} threads" if about["device"] == "cpu" else ""
    return f"{_place(about)}{threads}"


_IN_FILES = ("python", "numpy", "triton")  # versions that rows hold and pages leave out
# Machine, and versions of kgfast, whose rows may have been measured with engines that went.
_GONE = ("Intel(R) Xeon(R) Processor @ 2.10GHz, avx512", ("0.1.0", "1.0.0"))
_MARK = " (with AMX and AVX512-FP16, which kgfast no longer uses)"


def sources(tables: Sequence[Rows]) -> Iterator[str]:
    """Yield the commands, versions and dates of rows, and the synthetic graph of some."""
    commands: dict[str, set[str]] = {}
    for row in (row for rows in tables for row in rows):
        told = {name: it for name, it in row["versions"].items() if name not in _IN_FILES}
        place = f"{_marked(row)}, {row['date']:.10}: {packages(told)}"
        command = re.sub(r" --((json|plot|folder) \S+|keep)", "", row["command"])
        commands.setdefault(place, set()).add(f"`{command}`")
    yield from sorted(f"{', '.join(sorted(them))} on {at}." for at, them in commands.items())
    if graphs := synthetic_graphs(tables):
        yield graphs


def _marked(row: Row) -> str:
    place = _place(row["machine"])
    return place + _MARK * (place == _GONE[0] and row["versions"]["kgfast"] in _GONE[1])


def _place(about: Mapping[str, Any]) -> str:
    isa = about["isa"] if about["device"] == "cpu" else None
    return f"{about['name']}, {isa}" if isa else str(about["name"])


def packages(versions: Mapping[str, Any]) -> str:
    """Write the versions of the packages that were installed."""
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)
