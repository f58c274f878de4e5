"""``kgfast evaluate``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kgfast.cli.common import Checkpoint, Data, Debug, Set, Which, app, errors_in_a_line, load


class Split(StrEnum):
    """The splits to rank."""

    test = "test"
    valid = "valid"


class Sides(StrEnum):
    """What is predicted."""

    head = "head"
    relation = "relation"
    tail = "tail"


Folder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a run, or of tables (with --data).")
]


@app.command()
def evaluate(
    run: Folder,
    split: Annotated[Split, typer.Option(help="What to rank.")] = Split.test,
    side: Annotated[
        list[Sides] | None,
        typer.Option(help="What to predict; may be repeated. Head and tail unless given."),
    ] = None,
    checkpoint: Checkpoint = Which.best,
    data: Data = None,
    per_relation: Annotated[bool, typer.Option("--per-relation", help="A row each.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Unfiltered: known answers are candidates too.")
    ] = False,
    set: Set = None,
    debug: Debug = False,
) -> None:
    """Rank a split with a trained model, or with the tables in a folder."""
    with errors_in_a_line(debug):
        from kgfast.models.base import SIDES
        from kgfast.training import RunFolder

        sides = tuple(dict.fromkeys(it.value for it in side)) if side else SIDES
        if RunFolder(run).holds_a_run() or not (run / "config.json").is_file():
            results = _of_run(load(run, checkpoint, data, set), split, sides)
        else:
            results = _of_tables(run, data, split, sides)
        for dim, ranks in results.items() if isinstance(results, dict) else [(None, results)]:
            typer.echo("" if dim is None else f"dim {dim}", nl=dim is not None)
            shown = ranks.raw if raw else ranks
            typer.echo(repr(shown.by("relation") if per_relation else shown))


def _of_run(loaded: Any, split: Split, sides: Any) -> Any:
    """The ranks of a run."""
    from kgfast.training.loading import find_dataset
    from kgfast.training.trainer import ranks_of

    if loaded.dataset is None:
        find_dataset(loaded.config)  # says where it was looked for
    return ranks_of(loaded.model, loaded.dataset, split.value, loaded.config, sides)


def _of_tables(folder: Path, data: Path | None, split: Split, sides: Any) -> Any:
    """The ranks of a folder of tables, whose rows have the names of the data."""
    from kgfast.datasets import load as load_data
    from kgfast.eval.ranking import rank
    from kgfast.graph.named import check_same_names
    from kgfast.training.exported import load_tables

    if data is None:
        raise ValueError(f"{folder} holds tables, not a run: say with --data what to rank")
    model, names = load_tables(folder)
    dataset = load_data(data)
    check_same_names(
        (dataset.entities, dataset.relations), names, f"{folder} (its rows are in another order)"
    )
    unnamed = [
        what
        for what, own in zip(("entities", "relations"), names, strict=True)
        if own is None and getattr(dataset, what) is not None
    ]
    if unnamed:
        typer.echo(
            f"{folder} does not name its {' and '.join(unnamed)}: rows are taken to be numbered "
            f"as in {data}",
            err=True,
        )
    triples, known = getattr(dataset, split.value), dataset.known()
    try:
        return rank(model, triples, known=known, sides=sides, vocabulary=dataset)
    except NotImplementedError as error:  # tables that score no relations, not a bug
        raise ValueError(str(error)) from error
