"""The shared part of commands: app, errors in a line, loading runs, choosing configs.

A user's mistake ends in a line on the error stream and exit code 2; ``--debug`` shows the traceback
instead.
"""

import json
import statistics
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from kgfast import __version__
from kgfast.text import escaped, reading, shortened

# The base of wrong options in click, which newer versions of typer bring along.
ClickException: Any = typer.BadParameter.__mro__[2]

# Expected failures: bad input, files, missing packages, a loss that is not a number.
_EXPECTED = (ValueError, TypeError, OSError, ImportError, ArithmeticError, RuntimeError)

MOST_ROWS = 1000  # rows of a table on the screen; --json and --out have all
NO_DATA = (
    "no data were found: known triples are among the answers (--data DIR leaves known triples out)"
)


class _Commands(TyperGroup):
    """Commands whose mistakes end in one line, with exit code 2, and whose warnings are lines."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **options: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in words
        words = [word for word in words if word != "--debug"]
        code: Any = 2
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: say(f"warning: {message}", err=True)
            try:
                code = super().main(words, *more, **(options | {"standalone_mode": False}))
            except ClickException as error:
                if type(error).__name__ == "NoArgsIsHelpError":
                    error.show()
                else:
                    path = getattr(getattr(error, "ctx", None), "command_path", "kgfast")
                    message = " ".join(error.format_message().split()).rstrip(".")
                    message = message.replace("Value error, ", "")  # pydantic's words
                    say(f"error: {shortened(message, 300)} (see {path} --help)", err=True)
            except _EXPECTED as error:
                if debug:
                    raise
                message = str(error) or type(error).__name__
                if isinstance(error, OSError) and error.filename is not None:
                    message = f"{error.filename}: {error.strerror}"
                say(f"error: {message}", err=True)
        sys.exit(code or 0)


app = typer.Typer(
    cls=_Commands,
    name="kgfast",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
command = app.command()


def _show_version(is_set: bool) -> None:
    if is_set:
        say(f"kgfast {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train, evaluate, predict with and export knowledge-graph embeddings."""


@command
def info() -> None:
    """Show what kgfast runs on: backend, threads, versions, devices."""
    from kgfast import info as found

    say(repr(found()))


def say(text: str, *, err: bool = False) -> None:
    """Print text; control characters in names do nothing to the terminal."""
    typer.echo(escaped(text, kept="\n"), err=err)


def print_table(table: Any) -> None:
    """Print a table of rich, 116 columns wide if the output is no terminal."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 116, markup=False).print(table)


def say_columns(
    columns: dict[str, Any],
    formats: dict[str, str],
    groups: Sequence[Any],
    as_json: bool,
    out: Path | None,
) -> bool:
    """Write columns to a file, or print lines of JSON or a table; return True for a table.

    JSON is ASCII if the output may lack characters. A table has the first rows, with labels in
    brackets after names, numbers by ``formats``, and a line after the last row of a group.
    """
    from kgfast.frames import rows_of, write_columns

    if out is not None:
        say(str(write_columns(columns, out)))
        return False
    if as_json:
        is_unicode = (sys.stdout.encoding or "ascii").lower().startswith("utf")
        for answer in rows_of(columns):
            say(json.dumps(answer, ensure_ascii=not is_unicode))
        return False
    from rich.table import Table
    from rich.text import Text

    labels = {name: columns[name] for name in columns if name.endswith("_label")}
    columns = {name: values for name, values in columns.items() if name not in labels}
    for column, of_names in labels.items():
        named = column.removesuffix("_label")
        both = zip(columns[named], of_names, strict=True)
        columns[named] = [name if label is None else f"{name} ({label})" for name, label in both]
    table = Table()
    for name in columns:
        table.add_column(name, justify="right" if name in formats else "left", overflow="fold")
    rows = zip(*(column[:MOST_ROWS] for column in columns.values()), strict=True)
    after = [*groups[1 : MOST_ROWS + 1], None]
    for place, row in enumerate(rows):
        values = zip(row, columns, strict=True)
        cells = (escaped(format(value, formats.get(name, ""))) for value, name in values)
        table.add_row(*map(Text, cells), end_section=groups[place] != after[place])
    print_table(table)
    if len(groups) > MOST_ROWS:
        say(f"{len(groups) - MOST_ROWS:,} more answers: --json or --out FILE", err=True)
    return True


def seed_folders(folder: Path) -> list[Path]:
    """Return the runs ``seed-S`` of ``kgfast train --seeds`` in a folder, by the seed."""
    named = [path for path in folder.glob("seed-*") if path.name[5:].isdecimal() and path.is_dir()]
    return sorted(named, key=lambda path: int(path.name[5:]))


def with_spread(rows: dict[str, dict[str, float]], name: str = "") -> dict[str, dict[str, float]]:
    """Return metrics of runs, with their mean and sample deviation if there are several."""
    if len(rows) < 2:
        return rows
    metrics = next(iter(rows.values()))
    columns = {metric: [row[metric] for row in rows.values()] for metric in metrics}
    spreads = {"mean": statistics.mean, "deviation": statistics.stdev}
    return rows | {
        f"{name}{spread}": {metric: of(values) for metric, values in columns.items()}
        for spread, of in spreads.items()
    }


def ids_of(option: str, names: Sequence[str], vocabulary: Any) -> Any:
    """Return the ids of names, one or a list; a run without names takes ids as typed."""
    try:
        ids = list(map(int, names)) if vocabulary is None else vocabulary.ids(names)
        return ids if len(ids) > 1 else int(ids[0])
    except ValueError as error:
        why = str(error) if vocabulary is not None else f"this run has no names, give ids: {error}"
        raise ValueError(f"{option}: {why}") from None


def check_no_options(why: str, options: dict[str, Any]) -> None:
    """Check that none of some options is given."""
    for name, value in options.items():
        if value is not None and value is not False and value != []:
            raise ValueError(f"{name} {why}")


def load(folder: Path, checkpoint: Any, data: Any, **options: bool) -> Any:
    """Load a run on the device of the config, or a saved model."""
    from kgfast.training import load_run

    return load_run(folder, data, checkpoint=checkpoint.value, device=None, **options)


def load_known(folder: Path, loaded: Any) -> Any:
    """Open known triples in a folder of ``kgfast known``, or read the triples of a graph."""
    from kgfast.datasets import load as load_data
    from kgfast.graph import KnownTriples
    from kgfast.graph.stored import MANIFEST
    from kgfast.models.saved import with_data

    if (folder / MANIFEST).exists():
        return KnownTriples.open(folder)
    names = loaded.vocabulary or (None, None)
    with reading(folder, "--known"):
        return with_data(folder, names, load_data(folder)).known()


class Chosen(NamedTuple):
    """Config that a command line chooses."""

    path: Path
    overrides: list[str]  # overrides of the dataset, in the form of --set
    run_name: str


def choose(config: str | None, model: str | None, data: Path | None) -> Chosen:
    """Choose the config and data of ``kgfast train``.

    ``config`` is a file or the name of a config of the package; ``model`` chooses its default
    config instead. ``data`` is the folder of a graph, with its train file; it replaces the config's
    dataset. Raises ValueError or FileNotFoundError for anything missing, unknown or too much.
    """
    from kgfast.training.config import find_config, packaged_configs

    if (config is None) == (model is None):
        which = "neither" if config is None else "both"
        raise ValueError(f"name either a --config, or a --model and --data; got {which}")
    defaults = {
        name.removeprefix("default/"): path
        for name, path in packaged_configs().items()
        if name.startswith("default/")
    }
    if model is not None and model.lower() not in defaults:
        raise ValueError(f"--model {model}: has no default config; known are {', '.join(defaults)}")
    path = find_config(str(config)) if model is None else defaults[model.lower()]
    if data is None:
        if model is not None:
            raise ValueError(f"--model {model} needs --data, the folder of the graph")
        return Chosen(path, [], f"{path.resolve().parent.name}-{path.stem}")
    if not data.exists():
        raise FileNotFoundError(f"--data {data}: no such folder or table")
    if data.name in ("", ".."):
        data = data.resolve()
    values = {"dataset.root": str(data.parent), "dataset.name": data.name}
    overrides = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return Chosen(path, overrides, f"{data.name}-{path.stem}")
