"""The command line: ``kgfast train``, ``evaluate``, ``predict``, ``export``, ``plot``, ``info``.

What a user can get wrong ends in a line on the error stream and exit code 2; ``--debug`` shows the
traceback instead.
"""

import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from kgfast import __version__

# The expected failures: bad input, files, missing packages, a loss that is not a number.
_EXPECTED = (ValueError, TypeError, OSError, ImportError, ArithmeticError, RuntimeError)

app = typer.Typer(
    name="kgfast",
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


class Target(StrEnum):
    """What a model can be exported to."""

    npy = "npy"
    safetensors = "safetensors"
    official = "official"
    pykeen = "pykeen"


Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as optim.lr=1e-3."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Data = Annotated[
    Path | None,
    typer.Option(help="The folder of the dataset, or one that holds it; dataset.root."),
]
Checkpoint = Annotated[Which, typer.Option(help="Which state of the model.")]
Names = list[str] | None


def _show_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"kgfast {__version__}")
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
    trust_data: Annotated[
        bool,
        typer.Option("--trust-data", help="Resume a run of an earlier kgfast with these data."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    debug: Debug = False,
) -> None:
    """Train a model, and rank the test set at the end."""
    with _errors_in_a_line(debug):
        from kgfast.training import Config, RunFolder, Trainer
        from kgfast.training.config.names import choose

        chosen = choose(config, model, data)
        checked = Config.from_yaml(chosen.path, [*chosen.overrides, *(set or ())])
        path = run or Path(checked.train.out_dir or f"runs/{chosen.run_name}")
        folder = RunFolder(path)
        _check_folder(folder, resume)
        if model is not None and not quiet:
            typer.echo(f"{chosen.path}:\n{chosen.path.read_text()}", err=True)
        Trainer(checked, path, progress=not quiet).fit(resume, trust_data=trust_data)
        _print_result(path, folder.read_result())


@app.command()
def evaluate(
    run: Run,
    split: Annotated[Split, typer.Option(help="What to rank.")] = Split.test,
    checkpoint: Checkpoint = Which.best,
    data: Data = None,
    per_relation: Annotated[bool, typer.Option("--per-relation", help="A row each.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Unfiltered: known answers are candidates too.")
    ] = False,
    set: Set = None,
    debug: Debug = False,
) -> None:
    """Rank a split with a trained model."""
    with _errors_in_a_line(debug):
        from kgfast.training.loading import find_dataset
        from kgfast.training.trainer import ranks_of

        loaded = _load(run, checkpoint, data, set)
        if loaded.dataset is None:
            find_dataset(loaded.config)  # says where it was looked for
        results = ranks_of(loaded.model, loaded.dataset, split.value, loaded.config)
        for dim, ranks in results.items() if isinstance(results, dict) else [(None, results)]:
            typer.echo("" if dim is None else f"dim {dim}", nl=dim is not None)
            shown = ranks.raw if raw else ranks
            typer.echo(repr(shown.by("relation") if per_relation else shown))


@app.command()
def predict(
    run: Run,
    head: Annotated[Names, typer.Option(help="Predict its tails; may be repeated.")] = None,
    tail: Annotated[Names, typer.Option(help="Predict its heads; may be repeated.")] = None,
    relation: Annotated[
        Names, typer.Option(help="One for all heads or tails, or one for each in turn.")
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="How many answers.")] = 10,
    dim: Annotated[int | None, typer.Option(help="The sub-model of croppable embeddings.")] = None,
    checkpoint: Checkpoint = Which.best,
    data: Data = None,
    known: Annotated[
        bool, typer.Option("--known", help="Known triples are answers too, not only new ones.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="An object a line instead of a table.")
    ] = False,
    set: Set = None,
    debug: Debug = False,
) -> None:
    """Predict the best tails of (head, relation, ?), or the best heads of (?, relation, tail)."""
    with _errors_in_a_line(debug):
        from kgfast.eval.prediction import topk

        if bool(head) == bool(tail):
            raise ValueError("give --head to predict tails, or --tail to predict heads")
        if not relation:
            raise ValueError("give --relation, one for all or one for each")
        loaded = _load(run, checkpoint, data, set)
        entities, relations = loaded.vocabulary or (None, None)
        predictions = topk(
            loaded.model,
            heads=_ids("--head", head, entities) if head else None,
            tails=_ids("--tail", tail, entities) if tail else None,
            relations=_ids("--relation", relation, relations),
            k=min(k, loaded.model.num_entities),
            known=None if known or loaded.dataset is None else loaded.dataset.known(),
            dims=dim,
            pad=True,
        ).named(loaded.vocabulary)
        if loaded.dataset is None and not known:
            typer.echo(
                "no data were found: known triples are among the answers (--data DIR leaves them "
                "out)",
                err=True,
            )
        _print_predictions(predictions, loaded.vocabulary, as_json)


@app.command()
def export(
    run: Run,
    to: Annotated[Target, typer.Option(help="The format.")],
    out: Annotated[
        Path | None, typer.Option(help="A new folder for the files; RUN/export-FORMAT.")
    ] = None,
    checkpoint: Checkpoint = Which.best,
    set: Set = None,
    debug: Debug = False,
) -> None:
    """Write a trained model for another program."""
    with _errors_in_a_line(debug):
        from kgfast.training.export import export_run

        loaded = _load(run, checkpoint, False, set)
        for path in export_run(loaded, to.value, out or run / f"export-{to.value}"):
            typer.echo(str(path))


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The pictures without .png and .svg; metrics in the first folder."),
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="A logarithmic axis for the loss.")] = False,
    debug: Debug = False,
) -> None:
    """Draw loss and MRR per step, and the test results, of one run or several: PNG and SVG."""
    with _errors_in_a_line(debug):
        from kgfast.plots import plot as draw

        for path in draw(runs, out, log=log):
            typer.echo(str(path))


@app.command()
def info() -> None:
    """Show what kgfast runs on here: backend, threads, versions, devices."""
    from kgfast import info as found

    typer.echo(repr(found()))


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


def _load(run: Path, checkpoint: Which, data: Path | Literal[False] | None, set: Set) -> Any:
    """The run on the device of its config."""
    from kgfast.training import RunFolder, load_run
    from kgfast.training.build import device_of
    from kgfast.training.loading import config_of

    device = device_of(config_of(RunFolder(run), set))
    return load_run(run, data, checkpoint=checkpoint.value, device=device, overrides=set)


def _ids(option: str, names: Sequence[str], vocabulary: Any) -> Any:
    """The ids of names; of a run that has no names, ids as they were typed."""
    try:
        if vocabulary is not None:
            ids = vocabulary.ids(names)
            return ids if len(ids) > 1 else int(ids)
        return [int(name) for name in names] if len(names) > 1 else int(names[0])
    except ValueError as error:
        why = str(error) if vocabulary is not None else f"this run has no names, give ids: {error}"
        raise ValueError(f"{option}: {why}") from None


def _print_predictions(predictions: Any, vocabulary: Any, as_json: bool) -> None:
    """The answers as a table with a part for each query, or as lines of JSON."""
    entities, relations = vocabulary or (None, None)
    anchors = (
        predictions.anchors.tolist() if entities is None else entities.names_of(predictions.anchors)
    )
    relation_names = (
        predictions.relations.tolist()
        if relations is None
        else relations.names_of(predictions.relations)
    )
    answers = [
        (
            row,
            *(
                (anchor, relation, answer)
                if predictions.side == "tail"
                else (answer, relation, anchor)
            ),
            score,
        )
        for row, (anchor, relation) in enumerate(zip(anchors, relation_names, strict=True))
        for answer, score in predictions[row]
    ]
    if as_json:
        for _, head, relation, tail, score in answers:
            line = {"head": head, "relation": relation, "tail": tail, "score": score}
            typer.echo(json.dumps(line, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in ("head", "relation", "tail"):
        is_answer = name == predictions.side
        table.add_column(name, style="bold" if is_answer else "", overflow="fold")
    table.add_column("score", justify="right")
    for place, (row, *triple, score) in enumerate(answers):
        ends = place + 1 == len(answers) or answers[place + 1][0] != row
        cells = [Text(str(name)) for name in triple]
        table.add_row(*cells, f"{score + 0.0:.4f}", end_section=ends)
    Console(width=None if sys.stdout.isatty() else 116).print(table)


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
