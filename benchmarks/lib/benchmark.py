"""The driver of a benchmark: options, rows with facts of the machine, tables, file, picture.

Contenders take turns; their answers are compared, and the exit code is 1 if one is wrong.
"""

import argparse
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import kgfast
from lib.machine import facts, load_average, machine_line, machine_tag, synthetic_graph
from lib.results import RESULTS, Row, engine_of, read_rows, write_json
from lib.tables import Columns, cell_of, plain

Options = argparse.Namespace
Parser = argparse.ArgumentParser
Titled = tuple[str, Columns]
Section = Callable[[Options], Iterable[Row]]  # measures, and yields rows
QUICK_SIZES = (500, 6, 1200, 60, 60)  # sizes of a smoke test's synthetic graph
CHECKS = ("equal", "equals_reference", "same_counts")  # values of a row that are never False
FAULTS = ("wrong", "errors")  # counts of a row that are always 0


def positive(word: str) -> int:
    """Read an option that is at least 1."""
    if (value := int(word)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {value}")
    return value


def picture_path(word: str) -> Path:
    """Read the path of a picture, and find out now whether it can be drawn."""
    if (path := Path(word)).suffix not in (".png", ".svg", ".pdf"):
        raise argparse.ArgumentTypeError(f"must end in .png, .svg or .pdf; got {path.name}")
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError('needs matplotlib: pip install "kgfast[bench]"')
    return path


@dataclass(frozen=True)
class Option:
    """An option: an int is at least 1, or 0 by default; a list takes several."""

    help: str
    whole: Any = None  # unless given
    quick: Any = None  # in a smoke test; None: as in earnest
    keywords: Mapping[str, Any] = field(default_factory=dict)  # keywords of ``add_argument``

    def add(self, parser: Parser, name: str) -> None:
        """Add the option to a parser."""
        flag = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
        values = self.whole if isinstance(self.whole, list) else [self.whole]
        keywords: dict[str, Any] = {}
        if self.whole is False:
            keywords = {"action": "store_true", "default": None}
        elif self.whole is not None:
            is_count = type(values[0]) is int and values[0] != 0
            keywords = {"type": positive if is_count else type(values[0])}
        if isinstance(self.whole, list):
            keywords["nargs"] = "+"
        said = f"; {' '.join(map(str, values))} unless given" * (self.whole not in (None, False))
        help = f"{self.help}{said}".replace("%", "%%")
        parser.add_argument(flag, help=help, **keywords | self.keywords)


THREADS = Option("torch's unless given", keywords={"type": positive})


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its sections yield rows."""

    name: str  # "benchmark" of its rows, and its results file
    doc: str | None  # the docstring of the script
    sections: Mapping[str, Section]  # rows of those that do not run stay in the file
    options: Mapping[str, Option] = field(default_factory=dict)
    # Columns of all rows; or for the rows of each section a title and columns, or several.
    tables: Columns | Mapping[str, Titled | list[Titled]] = ()
    section_of: Callable[[Row], str] = lambda row: str(row.get("section", ""))
    check: Callable[[Parser, Options], None] | None = None  # further, of the options
    notes: Callable[[Sequence[Row]], Iterable[str]] | None = None  # below the tables
    is_right: Callable[[Row], bool] = lambda row: has_no_fault(row)  # otherwise the exit code is 1
    stays: Callable[[Row, Sequence[Row], Options], bool] | None = None  # a row of the old file
    order: Callable[[Row], Any] | None = None  # the key by which rows of the file are sorted
    around: Callable[[Options], AbstractContextManager[None]] = nullcontext  # all sections
    picture: str | None = None  # a function of `lib.pictures`; adds ``--plot``
    has_device: bool = False  # adds ``--device``
    is_written: bool = True  # to a results file, unless ``--quick`` is given
    threads: int | None = None
    packages: tuple[str, ...] = ()  # packages whose versions matter beside the usual ones

    def parse(self, arguments: list[str] | None = None) -> Options:
        """Read and check the command line."""
        parser = Parser(description=(self.doc or "").split("\n")[0])
        parser.add_argument("--quick", action="store_true", help="a tiny graph: seconds")
        for name, option in self.options.items():
            option.add(parser, name)
        if len(self.sections) > 1:
            parser.add_argument("--sections", nargs="+", choices=tuple(self.sections))
        if self.has_device:
            parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        where = "results/<machine>-*.json unless given" if self.is_written else "write the rows"
        parser.add_argument("--json", type=Path, metavar="FILE", help=where)
        if self.picture is not None:
            parser.add_argument("--plot", type=picture_path, metavar="FILE", help="draw the rows")
        options = parser.parse_args(arguments)
        for name, it in self.options.items():
            if getattr(options, name) is None:
                is_quick = options.quick and it.quick is not None
                setattr(options, name, it.quick if is_quick else it.whole)
        options.sections = getattr(options, "sections", None) or list(self.sections)
        device = getattr(options, "device", "cpu")
        if device == "cuda" and not torch.cuda.is_available():
            parser.error("--device cuda: torch sees no GPU here")
        if self.check is not None:
            self.check(parser, options)
        if self.is_written and not options.quick and options.json is None:
            name = f"{machine_tag(device)}-{self.name.replace('_', '-')}.json"
            options.json = RESULTS / name
        return options

    def main(self) -> int:
        """Measure, print, write; 1 if an answer is wrong."""
        options, before = self.parse(), torch.get_num_threads()
        torch.set_num_threads(self.threads or getattr(options, "threads", None) or before)
        try:
            with self.around(options):
                return self._measure(options)
        finally:
            torch.set_num_threads(before)

    def _measure(self, options: Options) -> int:
        about = facts(getattr(options, "device", "cpu"), *self.packages)
        about["synthetic_graph"] = synthetic_graph()
        print(f"{machine_line(about)}; synthetic graph {about['synthetic_graph']}")
        rows: list[Row] = []
        failed = False
        for name in options.sections:
            first = len(rows)
            try:
                for row in self.sections[name](options):
                    rows.append({"benchmark": self.name} | about | load_average() | row)
                    self._write(options, rows)  # a run that is stopped keeps what there is
            except Exception:  # no memory, no compiler, a dead process: other sections go on
                traceback.print_exc()
                failed = True
            self._show(rows[first:])
        for note in self.notes(rows) if self.notes is not None else ():
            print(f"- {note}")
        if self.picture is not None and options.plot is not None:
            from lib import pictures

            drawn = [row for row in rows if row["benchmark"] == self.name]
            getattr(pictures, self.picture)(drawn, options.plot)
        if not all(map(self.is_right, rows)):
            print("ANSWERS ARE WRONG: this is a bug")
            failed = True
        return int(failed)

    def _show(self, rows: Sequence[Row]) -> None:
        if not isinstance(self.tables, Mapping):
            if rows:
                title = (self.doc or "").split("\n")[0]
                print(*plain(title, self.tables, rows), sep="\n", flush=True)
            return
        for section, given in self.tables.items():
            own = [row for row in rows if self.section_of(row) == section]
            for title, columns in given if isinstance(given, list) else [given]:
                if own:
                    print(*plain(cell_of(own[0], title), columns, own), sep="\n", flush=True)

    def _write(self, options: Options, rows: Sequence[Row]) -> None:
        if options.json is None:
            return
        old = read_rows(options.json) if options.json.exists() else []
        kept = [row for row in old if self._stays(row, rows, options)]
        both = [*kept, *rows]
        if self.order is not None:
            both.sort(key=self.order)
        write_json(options.json, {"rows": both})

    def _stays(self, row: Row, rows: Sequence[Row], options: Options) -> bool:
        if self.stays is not None:
            return self.stays(row, rows, options)
        section = self.section_of(row)
        return section in self.sections and section not in options.sections


def has_no_fault(row: Row) -> bool:
    """Return whether no check of a row failed."""
    return all(row.get(name, True) for name in CHECKS) and not any(map(row.get, FAULTS))


def of_others(row: Row, rows: Sequence[Row], options: Options) -> bool:
    """Return whether a row of the old file is of a machine or instruction set without new rows."""
    return engine_of(row) not in map(engine_of, rows)


def of_other_runs(row: Row, rows: Sequence[Row], _: Options) -> bool:
    """Return whether a row is of another run than the new ones."""
    return row["run"] not in {it["run"] for it in rows}


def graph_of(options: Options) -> Any:
    """Return the synthetic graph, of the size of WN18RR or of a smoke test."""
    return kgfast.datasets.synthetic(*(QUICK_SIZES if options.quick else ()))


def needs_data(graph: str) -> Callable[[Parser, Options], None]:
    """Return a check that a folder is named, or a smoke test is wanted, which needs none."""

    def check(parser: Parser, options: Options) -> None:
        if (options.data is None) != options.quick:
            parser.error(f"--data names the folder of {graph}, or --quick")

    return check
