"""Define what commands share: the app, options, errors in a line; load runs and choose configs.

What a user can get wrong ends in a line on the error stream and exit code 2; ``--debug`` shows the
traceback instead.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from kgfast import __version__
from kgfast.text import escaped

# The expected failures: bad input, files, missing packages, a loss that is not a number.
_EXPECTED = (ValueError, TypeError, OSError, ImportError, ArithmeticError, RuntimeError)

app = typer.Typer(
    name="kgfast",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Which(StrEnum):
    """The checkpoints of a run."""

    best = "best"
    last = "last"


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as optim.lr=1e-3."),
]
DefaultOf = Annotated[
    str | None, typer.Option(help="Instead of a config: the default one of this model.")
]
Graph = Annotated[Path | None, typer.Option(help="The folder of the graph, with its train.txt.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Folder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run, or of tables (with --data).")
]
Data = Annotated[
    Path | None,
    typer.Option(help="The folder of the dataset, or one that holds it; dataset.root."),
]
Checkpoint = Annotated[Which, typer.Option(help="Which state of the model.")]
Names = list[str] | None
SafeCells = Annotated[
    bool,
    typer.Option("--safe-cells", help="Of .csv and .tsv: no name is a formula to a spreadsheet."),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="BYTES",
        help='Of a folder of tables: read the entities in blocks within so much, as "4GiB".',
    ),
]
Partial = Annotated[
    Path | None,
    typer.Option(
        help="Of a folder of tables: keep what is found here, and go on from it when killed."
    ),
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
    """Show what kgfast runs on here: backend, threads, versions, devices."""
    from kgfast import info as found

    say(repr(found()))


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text; names in it that hold control characters do nothing to the terminal."""
    typer.echo(escaped(text, kept="\n"), err=err, nl=nl)


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
            if debug or isinstance(error, NotImplementedError):  # that one is a bug of ours
                raise
            say(f"error: {_said_by(error)}", err=True)
            raise typer.Exit(2) from None


def json_line(value: dict[str, Any]) -> str:
    """Return an object as JSON, in ASCII where the output does not have all its characters."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def _said_by(error: Exception) -> str:
    """The message; of an OSError of the system, with its file."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


@dataclass(frozen=True)
class LoadedTables:
    """What a folder of tables holds, with the data that name its rows.

    Attributes
    ----------
    model : Model
    vocabulary : pair of Vocabulary, optional
    dataset : Dataset, optional
    """

    model: Any
    vocabulary: Any
    dataset: Any

    def probabilities(self, scores: Any) -> None:
        """None: tables do not say what they were trained for."""


def holds_tables(folder: Path) -> bool:
    """Whether a folder holds tables and not a run."""
    from kgfast.training import RunFolder

    return not RunFolder(folder).holds_a_run() and (folder / "config.json").is_file()


def check_limits(folder: Path, limits: dict[str, Any]) -> None:
    """That what only tables take is not given for a run."""
    from kgfast.training import RunFolder

    given = [name for name, value in limits.items() if value is not None]
    if given and RunFolder(folder).holds_a_run():
        raise ValueError(
            f"--{given[0].replace('_', '-')} is of folders of tables, and {folder} is a run, "
            f"whose tables fit in memory: kgfast export {folder} --to npy makes such a folder"
        )


def load_folder(folder: Path, data: Path | None, *, as_table: bool) -> LoadedTables:
    """A folder of tables; with data, whose names must be those of its rows."""
    from kgfast.adapters.table_folders import load_tables
    from kgfast.datasets import load as load_data
    from kgfast.graph.named import check_same_names

    model, names = load_tables(folder, as_table=as_table)
    if data is None:
        return LoadedTables(model, names if any(names) else None, None)
    dataset = load_data(data)
    own = dataset.entities, dataset.relations
    check_same_names(own, names, f"{folder} (its rows are in another order)")
    unnamed = [
        what
        for what, its, theirs in zip(("entities", "relations"), names, own, strict=True)
        if its is None and theirs is not None
    ]
    if unnamed:
        say(
            f"{folder} does not name its {' and '.join(unnamed)}: rows are taken to be numbered "
            f"as in {data}",
            err=True,
        )
    return LoadedTables(model, own, dataset)


def load(run: Path, checkpoint: Which, data: Path | Literal[False] | None, set: Set) -> Any:
    """The run on the device of its config."""
    from kgfast.training import load_run

    return load_run(run, data, checkpoint=checkpoint.value, device=None, overrides=set)


class Chosen(NamedTuple):
    """Choices of a command line.

    Attributes
    ----------
    path : Path
        The file of the config.
    overrides : list of str
        What it says of the dataset, as ``--set`` does.
    run_name : str
        What to call the run.
    """

    path: Path
    overrides: list[str]
    run_name: str


def choose(config: str | None, model: str | None, data: Path | None) -> Chosen:
    """Choose what ``kgfast train`` with these options trains.

    Parameters
    ----------
    config : str, optional
        A file, or the name of a config of the package.
    model : str, optional
        Instead: take the default config of this model.
    data : Path, optional
        The folder of a graph, which holds its train file itself; goes before the config's.

    Raises
    ------
    ValueError
        If not exactly one of config and model is given, the model has no default config, or it has
        no data.
    FileNotFoundError
        If there is no such config or folder.
    """
    from kgfast.training.config.files import find_config, said

    if (config is None) == (model is None):
        which = "neither" if config is None else "both"
        raise ValueError(f"name either a --config or a --model and its --data; got {which}")
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
