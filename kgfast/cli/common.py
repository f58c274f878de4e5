"""The shared part of commands: app, options, errors in a line, loading runs, choosing configs.

A user's mistake ends in a line on the error stream and exit code 2; ``--debug`` shows the traceback
instead.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from typer.core import TyperGroup

from kgfast import __version__
from kgfast.text import escaped, reading, shortened

# The base of wrong options in click, which newer versions of typer bring along.
ClickException: Any = typer.BadParameter.__mro__[2]

# Expected failures: bad input, files, missing packages, a loss that is not a number.
_EXPECTED = (ValueError, TypeError, OSError, ImportError, ArithmeticError, RuntimeError)

MOST_ROWS = 1000  # rows of a table on the screen; --json and --out have all


class _Commands(TyperGroup):
    """Commands whose wrong options end like other mistakes: in one line, with exit code 2."""

    def main(self, *args: Any, **options: Any) -> Any:
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except ClickException as error:
            code = error.exit_code
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
            else:
                path = getattr(getattr(error, "ctx", None), "command_path", "kgfast")
                message = " ".join(error.format_message().split()).rstrip(".")
                message = message.replace("Value error, ", "")  # pydantic's words
                say(f"error: {shortened(message, 300)} (see {path} --help)", err=True)
        sys.exit(code or 0)


app = typer.Typer(
    cls=_Commands,
    name="kgfast",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Which(StrEnum):
    """Checkpoints of a run."""

    best = "best"
    last = "last"


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as optim.lr=1e-3."),
]
DefaultOf = Annotated[
    str | None,
    typer.Option(
        metavar="complex|conve|cp|distmult|rescal|rotate|transe",
        help="Instead of a config: the default config of this model.",
    ),
]
Graph = Annotated[Path | None, typer.Option(help="The folder of the graph, with its train.txt.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Folder = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="The folder of a run, or of a model (`kgfast.save`)."),
]
FolderToRank = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="The folder of a run; or, with --data, of a model (`kgfast.save`)."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(help="The folder of the dataset, or a folder that contains it; dataset.root."),
]
Checkpoint = Annotated[Which, typer.Option(help="State of the model.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run the Python code of a model or a loss that the run names."),
]
Names = list[str] | None
SafeCells = Annotated[
    bool,
    typer.Option(
        "--safe-cells", help="Write .csv and .tsv for spreadsheets: no name is a formula."
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="BYTES",
        help='For a folder of tables: memory for blocks of entities, such as "4GiB".',
    ),
]
Partial = Annotated[
    Path | None,
    typer.Option(
        help="Save results in this folder, and resume from there after a kill: for predictions, "
        "and for ranks of a folder of tables."
    ),
]


Hits = Annotated[
    list[int] | None,
    typer.Option(
        "--hits", metavar="K", min=1, help="Report hits@K; may be repeated. 1, 3, 10 by default."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="One JSON object per line instead of a table.")
]
Out = Annotated[
    Path | None, typer.Option(help="Write a file instead: .csv, .tsv, .jsonl or .parquet.")
]


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
) -> None:
    """Train, evaluate, predict with, export and plot knowledge-graph embeddings."""


@app.command()
def info() -> None:
    """Show what kgfast runs on: backend, threads, versions, devices."""
    from kgfast import info as found

    say(repr(found()))


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text; control characters in names do nothing to the terminal."""
    typer.echo(escaped(text, kept="\n"), err=err, nl=nl)


def say_that_no_data_were_found() -> None:
    """Print that known triples are not left out."""
    say(
        "no data were found: known triples are among the answers (--data DIR leaves known triples "
        "out)",
        err=True,
    )


def with_labels_beside(columns: dict[str, Any]) -> dict[str, Any]:
    """Return columns for people: labels in brackets after names."""
    found = {name: values for name, values in columns.items() if not name.endswith("_label")}
    for name in set(columns) - set(found):
        own = name.removesuffix("_label")
        both = zip(columns[own], columns[name], strict=True)
        found[own] = [it if label is None else f"{it} ({label})" for it, label in both]
    return found


def print_table(table: Any, **options: Any) -> None:
    """Print a table of rich, 116 columns wide if the output is no terminal."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 116, **options).print(table)


def check_out(out: Path | None, *, safe_cells: bool) -> None:
    """Check the options of a file of answers before any answer is computed."""
    from kgfast.frames import check_suffix

    if out is not None:
        check_suffix(out, safe_cells=safe_cells)
    elif safe_cells:
        raise ValueError("--safe-cells goes with --out")


@contextmanager
def errors_in_a_line(debug: bool) -> Iterator[None]:
    """Turn expected failures into a line and exit code 2, and warnings into lines."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        say(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        except _EXPECTED as error:
            if debug or isinstance(error, NotImplementedError):  # a bug of kgfast
                raise
            say(f"error: {_said_by(error)}", err=True)
            raise typer.Exit(2) from None


def json_line(value: dict[str, Any]) -> str:
    """Return an object as JSON, in ASCII if the output lacks some of the characters."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def _said_by(error: Exception) -> str:
    """Return the message of an error; for an OSError of the system, with the file."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def check_limits(folder: Path, limits: dict[str, Any]) -> None:
    """Refuse options for tables if the folder holds a run."""
    given = [name for name, value in limits.items() if value is not None]
    if given and is_run(folder):
        raise ValueError(
            f"--{given[0].replace('_', '-')} is for folders of tables, but {folder} is a run with "
            f"tables in memory: kgfast export {folder} --to npy makes such a folder"
        )


def check_no_options(why: str, given: dict[str, Any]) -> None:
    """Check that none of some options is given."""
    for name, value in given.items():
        if value:
            raise ValueError(f"{name} {why}")


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, and no tables."""
    from kgfast.training import RunFolder

    return RunFolder(folder).holds_a_run()


def load(
    folder: Path,
    checkpoint: Which,
    data: Path | Literal[False] | None,
    set: Set,
    *,
    as_table: bool = False,
    trust: bool = False,
) -> Any:
    """Load a run on the device of the config, or a saved model, also of the official code."""
    from kgfast.training.loading import load_run, loaded_tables
    from kgfast.training.saved import holds_tables, is_saved

    if holds_tables(folder) and not is_saved(folder):
        from kgfast.adapters.official_runs import load_official

        model = load_official(folder, as_table=as_table)
        return loaded_tables(folder, model, (None, None), None, data)
    return load_run(
        folder,
        data,
        checkpoint=checkpoint.value,
        device=None,
        overrides=set,
        as_table=as_table,
        trust=trust,
    )


def load_known(folder: Path, loaded: Any) -> Any:
    """Open known triples in a folder of ``kgfast known``, or read the triples of a graph."""
    from kgfast.datasets import load as load_data
    from kgfast.graph import KnownTriples
    from kgfast.graph.stored.folder import MANIFEST
    from kgfast.training.saved import with_data

    if (folder / MANIFEST).exists():
        return KnownTriples.open(folder)
    names = loaded.vocabulary or (None, None)
    with reading(folder, "--known"):
        return with_data(folder, loaded.model, names, load_data(folder))[1].known()


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
    from kgfast.training.config.files import find_config, said

    if (config is None) == (model is None):
        which = "neither" if config is None else "both"
        raise ValueError(f"name either a --config, or a --model and --data; got {which}")
    path = find_config(config) if config is not None else _default_of(str(model))
    if data is None:
        if model is not None:
            raise ValueError(f"--model {model} needs --data, the folder of the graph")
        return Chosen(path, [], f"{path.resolve().parent.name}-{path.stem}")
    if not data.is_dir():
        raise FileNotFoundError(f"--data {said(data)}: no such folder")
    if data.name in ("", ".."):
        data = data.resolve()
    values = {"dataset.root": str(data.parent), "dataset.name": data.name}
    overrides = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return Chosen(path, overrides, f"{data.name}-{path.stem}")


def _default_of(model: str) -> Path:
    """Return the default config of a model."""
    from kgfast.training.config.files import packaged_configs, said

    named = (name.partition("/") for name in packaged_configs())
    known = [name for folder, _, name in named if folder == "default"]
    if model.lower() not in known:
        raise ValueError(
            f"--model {said(model)}: has no default config; known are {', '.join(known)}"
        )
    return packaged_configs()[f"default/{model.lower()}"]
