"""``kgfast predict``: the best answers to queries, or the best facts of all."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kgfast.cli.common import (
    AsJson,
    Checkpoint,
    Data,
    Debug,
    Folder,
    Memory,
    Names,
    Out,
    Partial,
    SafeCells,
    Set,
    Trust,
    Which,
    app,
    check_limits,
    check_out,
    errors_in_a_line,
    json_line,
    load,
    print_table,
    say,
    say_that_no_data_were_found,
    with_labels_beside,
)
from kgfast.text import escaped


@app.command()
def predict(
    run: Folder,
    head: Annotated[Names, typer.Option(help="Predict its tails; may be repeated.")] = None,
    tail: Annotated[
        Names, typer.Option(help="Predict its heads; with --head, the relations of both.")
    ] = None,
    relation: Annotated[
        Names, typer.Option(help="One for all heads or tails, or one for each in turn.")
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="The best of all triples; of the heads, relations, tails that are given."
        ),
    ] = False,
    k: Annotated[int, typer.Option(min=1, help="How many answers.")] = 10,
    dim: Annotated[int | None, typer.Option(help="The sub-model of croppable embeddings.")] = None,
    checkpoint: Checkpoint = Which.best,
    data: Data = None,
    include_known: Annotated[
        bool,
        typer.Option("--include-known", help="Known triples are answers too, not only new ones."),
    ] = False,
    exclude: Annotated[Names, typer.Option(help="No answer to any query; may be repeated.")] = None,
    exclude_anchor: Annotated[
        bool,
        typer.Option("--exclude-anchor", help="The head, or tail, of a query is no answer to it."),
    ] = False,
    known: Annotated[bool, typer.Option("--known", hidden=True)] = False,
    as_json: AsJson = False,
    out: Out = None,
    safe_cells: SafeCells = False,
    index: Annotated[
        Path | None,
        typer.Option(
            help="A file of the model's packed tables, mapped into memory; made if it is not there."
        ),
    ] = None,
    max_memory: Memory = None,
    partial: Partial = None,
    set: Set = None,
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Predict the best tails of (head, relation, ?), or heads, or relations, or facts of all."""
    with errors_in_a_line(debug):
        from kgfast.frames import write_columns

        if known:
            raise ValueError("--known is called --include-known: known triples are answers too")
        check_out(out, safe_cells=safe_cells)
        if not every:
            _check_queries(head, relation, tail)
            if exclude and exclude_anchor:
                raise ValueError("give --exclude or --exclude-anchor, not both")
        elif dim is not None:
            raise ValueError("--dim goes with queries, not with --all")
        elif index is not None:
            raise ValueError("--index goes with queries, not with --all")
        elif exclude or exclude_anchor:
            raise ValueError("--exclude and --exclude-anchor go with queries, not with --all")
        limits = {"max_memory": max_memory, "partial": partial}
        check_limits(run, limits)
        in_blocks = any(value is not None for value in limits.values())
        loaded = load(run, checkpoint, data, set, as_table=in_blocks, trust=trust)
        entities, relations = loaded.vocabulary or (None, None)
        given: dict[str, Any] = {
            "heads": _ids("--head", head, entities) if head else None,
            "relations": _ids("--relation", relation, relations) if relation else None,
            "tails": _ids("--tail", tail, entities) if tail else None,
            "known": None if include_known else loaded.known(),
            **limits,
        }
        if every:
            from kgfast.eval.fact_search import top_facts

            facts = top_facts(loaded.model, **given, k=k, progress=sys.stdout.isatty())
            columns = _with_probabilities(loaded, facts.columns(loaded.vocabulary))
        else:
            given["index"] = None if index is None else _index_at(index, loaded.model)
            if exclude:
                answers = entities if relation else relations
                given["exclude"] = _ids("--exclude", exclude, answers)
            elif exclude_anchor:
                given["exclude"] = "anchor"
            columns = _answers(loaded, given, k, dim)
        if given["known"] is None and not include_known:
            say_that_no_data_were_found()
        if out is not None:
            say(str(write_columns(columns, out, safe_cells=safe_cells)))
        else:
            _print(columns, as_json)


def _check_queries(head: Names, relation: Names, tail: Names) -> None:
    """Check that two of the three are given."""
    if head and tail and not relation:
        return
    if bool(head) == bool(tail):
        raise ValueError(
            "give --head to predict tails, or --tail to predict heads (both without --relation "
            "predict relations, --all the best facts)"
        )
    if not relation:
        raise ValueError("give --relation, one for all or one for each")


def _answers(loaded: Any, given: dict[str, Any], k: int, dim: int | None) -> dict[str, Any]:
    """Return the columns of the answers to queries."""
    from kgfast.eval.prediction import topk

    model = loaded.model
    most = model.num_relations if given["relations"] is None else model.num_entities
    found = topk(model, **given, k=min(k, most), dims=dim, pad=True)
    return _with_probabilities(loaded, found.columns(loaded.vocabulary))


def _index_at(path: Path, model: Any) -> Any:
    """Load the index from a file; make and save it where the file is missing."""
    from kgfast.eval.index import Index

    if path.exists():
        return Index.load(path, model)
    index = Index(model, croppable=True)
    index.save(path)
    return index


def _with_probabilities(loaded: Any, columns: dict[str, Any]) -> dict[str, Any]:
    """Add probabilities, where the loss of the run defines them."""
    import torch

    values = loaded.probabilities(torch.from_numpy(columns["score"]))
    return columns if values is None else {**columns, "probability": values.numpy()}


def _ids(option: str, names: Sequence[str], vocabulary: Any) -> Any:
    """Return the ids of names; a run without names takes ids as typed."""
    try:
        if vocabulary is not None:
            ids = vocabulary.ids(names)
            return ids if len(ids) > 1 else int(ids)
        return [int(name) for name in names] if len(names) > 1 else int(names[0])
    except ValueError as error:
        why = str(error) if vocabulary is not None else f"this run has no names, give ids: {error}"
        raise ValueError(f"{option}: {why}") from None


def _print(columns: dict[str, Any], as_json: bool) -> None:
    """Print a table with a part for each query, or lines of JSON."""
    columns = columns if as_json else with_labels_beside(columns)
    names = [name for name in columns if name not in ("query", "rank")]
    values = [_plain(columns[name]) for name in names]
    if as_json:
        for row in zip(*values, strict=True):
            say(json_line(dict(zip(names, row, strict=True))))
        return
    from rich.table import Table
    from rich.text import Text

    queries = [*columns.get("query", [0] * len(values[0])), None]
    table = Table()
    for name in names:
        is_number = name in ("score", "probability")
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for place, (*triple, score) in enumerate(zip(*values[:4], strict=True)):
        cells = [Text(escaped(str(name))) for name in triple] + [Text(f"{score + 0.0:.4f}")]
        cells += [Text(f"{column[place]:.4f}") for column in values[4:]]
        table.add_row(*cells, end_section=queries[place] != queries[place + 1])
    print_table(table)


def _plain(column: Any) -> list[Any]:
    """Return a column as Python values."""
    values: list[Any] = column.tolist() if hasattr(column, "tolist") else list(column)
    return values
