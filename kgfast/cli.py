"""The command line: ``kgfast train``, ``kgfast evaluate``, ``kgfast plot``.

What a user can get wrong ends in a line on the error stream and exit code 2; ``--debug`` shows the
traceback instead.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

# The expected failures: bad input, files, missing packages, a loss that is not a number.
_EXPECTED = (ValueError, TypeError, OSError, ImportError, ArithmeticError, RuntimeError)

app = typer.Typer(
    name="kgfast",
    help="Train, evaluate and plot knowledge-graph embeddings.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Split(StrEnum):
    """The splits to rank."""

    test = "test"
    valid = "valid"


class Which(StrEnum):
    """The checkpoints of a run."""

    best = "best"
    last = "last"


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as optim.lr=1e-3."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


@app.command()
def train(
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", help="A YAML file, or a name such as wn18rr/rotate_fast."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Instead of a config: the default one of this model.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The folder of the graph, with its train.txt.")
    ] = None,
    set: Set = None,
    run: Annotated[
        Path | None,
        typer.Option(help="The folder of the run; train.out_dir or runs/<folder>-<config>."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run ended.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: Debug = False,
) -> None:
    """Train a model, and rank the test set at the end."""
    with _errors_in_a_line(debug):
        from kgfast.training import Config, RunFolder, Trainer
        from kgfast.training.config_names import choose

        chosen = choose(config, model, data)
        checked = Config.from_yaml(chosen.path, [*chosen.overrides, *(set or ())])
        path = run or Path(checked.train.out_dir or f"runs/{chosen.run_name}")
        folder = RunFolder(path)
        _check_folder(folder, resume)
        if model is not None and not quiet:
            typer.echo(f"{chosen.path}:\n{chosen.path.read_text()}", err=True)
        Trainer(checked, path, progress=not quiet).fit(resume=resume)
        _print_result(path, folder.read_result())


@app.command()
def evaluate(
    run: Run,
    split: Annotated[Split, typer.Option(help="What to rank.")] = Split.test,
    checkpoint: Annotated[Which, typer.Option(help="Which state of the model.")] = Which.best,
    per_relation: Annotated[bool, typer.Option("--per-relation", help="A row each.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Unfiltered: known answers are candidates too.")
    ] = False,
    set: Set = None,
    debug: Debug = False,
) -> None:
    """Rank a split with a trained model."""
    with _errors_in_a_line(debug):
        from kgfast.training import Config, RunFolder, Trainer

        folder = RunFolder(run)
        if not folder.config.is_file():
            raise FileNotFoundError(f"{run}: not the folder of a run: it has no config.yaml")
        config = Config.from_yaml(folder.config, set)
        state = folder.load_best() if checkpoint == Which.best else folder.load_last()
        if state is None:
            raise FileNotFoundError(f"{run} holds no checkpoint")
        trainer = Trainer(config, progress=False)
        _load_model(trainer.model, state[0], run)
        found = trainer.evaluate(split.value)
        for dim, ranks in found.items() if isinstance(found, dict) else [(None, found)]:
            typer.echo("" if dim is None else f"dim {dim}", nl=dim is not None)
            shown = ranks.raw if raw else ranks
            typer.echo(repr(shown.by("relation") if per_relation else shown))


@app.command()
def plot(
    run: Run,
    out: Annotated[
        Path | None, typer.Option(help="The pictures without .png and .svg; RUN/metrics.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Draw loss and MRR per step, as PNG and SVG."""
    with _errors_in_a_line(debug):
        from kgfast.plots import plot as draw

        for path in draw(run, out):
            typer.echo(str(path))


def main() -> None:
    """The entry point."""
    app()


@contextmanager
def _errors_in_a_line(debug: bool) -> Iterator[None]:
    """Turn expected failures into a line and exit code 2, and warnings into lines."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        typer.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        except _EXPECTED as error:
            if debug or isinstance(error, NotImplementedError):  # that one is a bug of ours
                raise
            typer.echo(f"error: {_said_by(error)}", err=True)
            raise typer.Exit(2) from None


def _said_by(error: Exception) -> str:
    """The message; of an OSError of the system, with its file."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _check_folder(folder: Any, resume: bool) -> None:
    """Do not overwrite a run; say if there is none to go on with."""
    if resume and not folder.holds_a_run():
        typer.echo(f"{folder.path} holds no run to resume: starting one", err=True)
    if folder.holds_a_run() and not resume:
        raise ValueError(
            f"{folder.path} holds a run: go on with --resume, or name another folder with --run"
        )


def _load_model(model: Any, tensors: Mapping[str, Any], run: Path) -> None:
    state = {
        name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
        if name.startswith("model.")
    }
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{run}: the checkpoint does not fit the model: {why}") from None


def _print_result(path: Path, result: Mapping[str, Any]) -> None:
    """The metrics of the test set as a table."""
    from rich.console import Console
    from rich.table import Table

    from kgfast.training.trainer import steps_made

    minutes = result["seconds_training"] / 60
    made = steps_made(result["steps"], result["planned_steps"], result["stopped_early"])
    title = f"{path}: {made} in {minutes:.1f} min"
    table = Table(title=title, title_justify="left")
    submodels = result.get("test_of_submodels") or {}
    for name in [*(["dim"] if submodels else []), *result["test"]]:
        table.add_column(name.replace("_", " "), justify="right")
    for dim, metrics in submodels.items() or [(None, result["test"])]:
        cells = [
            f"{value:,.1f}" if name in ("mr", "median_rank") else f"{value:.4f}"
            for name, value in metrics.items()
        ]
        table.add_row(*([] if dim is None else [dim]), *cells)
    Console(width=None if sys.stdout.isatty() else 116).print(table)


if __name__ == "__main__":
    main()
