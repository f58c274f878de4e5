"""``kgfast predict``: the best answers to queries, or the best facts of a graph."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kgfast.cli import flags
from kgfast.cli.common import (
    check_limits,
    check_no_options,
    check_out,
    command,
    is_run,
    json_line,
    load,
    load_known,
    print_columns,
    say,
    say_that_no_data_were_found,
)


@command
def predict(
    run: flags.Folder,
    head: Annotated[
        flags.Names,
        typer.Option(metavar="NAME", help="Predict the tails of this head; may be repeated."),
    ] = None,
    tail: Annotated[
        flags.Names,
        typer.Option(
            metavar="NAME",
            help="Predict the heads of this tail; with --head, the relations of both.",
        ),
    ] = None,
    relation: Annotated[
        flags.Names,
        typer.Option(
            metavar="NAME", help="One relation for all heads or tails, or one for each in turn."
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="The best of all triples, or of triples with the given heads, relations, tails.",
        ),
    ] = False,
    queries: Annotated[
        Path | None,
        typer.Option(
            help="Instead of options, a file of queries, with tabs between columns: head and "
            "relation, or the columns in the first line. The missing one of head, relation and "
            "tail is predicted."
        ),
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Number of answers to each query.")] = 10,
    above: Annotated[
        float | None,
        typer.Option(
            metavar="SCORE",
            help="Instead of the best answers, all answers with at least this score.",
        ),
    ] = None,
    dim: Annotated[int | None, typer.Option(help="The sub-model of croppable embeddings.")] = None,
    checkpoint: flags.Checkpoint = flags.Which.best,
    data: flags.Data = None,
    include_known: Annotated[
        bool,
        typer.Option(
            "--include-known", help="Known triples are answers, too, not only new triples."
        ),
    ] = False,
    known: Annotated[
        Path | None,
        typer.Option(
            help="Leave out the known triples of a folder of `kgfast known`, or of a graph, "
            "instead of all splits."
        ),
    ] = None,
    candidates: Annotated[
        Path | None, typer.Option(help="A file with the only answers: names, one per line.")
    ] = None,
    types: Annotated[
        str | None,
        typer.Option(
            metavar="train|FILE",
            help="Answers are only entities that the relation has in training, or in a file.",
        ),
    ] = None,
    as_json: flags.AsJson = False,
    out: flags.Out = None,
    index: Annotated[
        Path | None,
        typer.Option(
            help="A file of the model's packed tables, mapped into memory; made if missing."
        ),
    ] = None,
    max_memory: flags.Memory = None,
    partial: flags.Partial = None,
    set: flags.Set = None,
    trust: flags.Trust = False,
) -> None:
    """Predict tails, heads or relations, or the best facts of all."""
    from kgfast.frames import write_columns

    check_out(out)
    if known and include_known:
        raise ValueError("give --known or --include-known, not both")
    if every:
        check_no_options(
            "goes with queries, not with --all",
            {
                "--above": above is not None,
                "--dim": dim is not None,
                "--index": index,
                "--queries": queries,
                "--candidates": candidates,
                "--types": types,
            },
        )
    elif queries is None:
        _check_queries(head, relation, tail)
    elif head or relation or tail:
        raise ValueError("give --queries, or --head, --relation, --tail, not both")
    if above is not None and partial is not None:
        raise ValueError("--partial saves the best answers, and excludes --above")
    if candidates and types:
        raise ValueError("give --candidates or --types, not both")
    limits = {"max_memory": max_memory, "partial": partial}
    check_limits(run, {"max_memory": max_memory})
    in_blocks = any(value is not None for value in limits.values()) and not is_run(run)
    loaded = load(run, checkpoint, data, set, as_table=in_blocks, trust=trust)
    entities, relations = loaded.vocabulary or (None, None)
    named = {"heads": head, "relations": relation, "tails": tail}
    given: dict[str, Any] = {
        role: _ids(f"--{role[:-1]}", own, relations if role == "relations" else entities)
        for role, own in named.items()
        if own
    }
    options: dict[str, Any] = {**limits, "known": None}
    if not include_known:
        options["known"] = loaded.known() if known is None else load_known(known, loaded)
    if every:
        from kgfast.eval.facts import top_facts

        facts = top_facts(loaded.model, **given, **options, k=k, progress=sys.stdout.isatty())
        columns = _with_probabilities(loaded, facts.columns(loaded.vocabulary))
    else:
        options["index"] = None if index is None else _index_at(index, loaded.model)
        options |= {"k": k, "above": above, "dims": dim}
        options["candidate_ids"] = loaded.type_constraints(types) if types else candidates
        options["progress"] = queries is not None and sys.stdout.isatty()
        columns = _answers(loaded, _asked(loaded, given, queries), options)
    if options["known"] is None and not include_known:
        say_that_no_data_were_found()
    if out is not None:
        say(str(write_columns(columns, out)))
    else:
        _print(columns, as_json)


def _check_queries(head: flags.Names, relation: flags.Names, tail: flags.Names) -> None:
    if head and tail and not relation:
        return
    if bool(head) == bool(tail):
        raise ValueError(
            "give --head to predict tails, or --tail to predict heads (both without --relation "
            "predict relations, --all the best facts)"
        )
    if not relation:
        raise ValueError("give --relation, one for all or one for each")


def _asked(loaded: Any, given: dict[str, Any], queries: Path | None) -> Any:
    """Return queries by predicted side: places in the file, or None, and ids by role."""
    if queries is None:
        (side,) = {"head", "relation", "tail"} - {role[:-1] for role in given}
        return {side: (None, given)}
    from kgfast.datasets.query_files import read_queries

    return read_queries(queries, *_spaces(loaded))


def _spaces(loaded: Any) -> tuple[Any, tuple[int, int]]:
    model = loaded.model
    return loaded.vocabulary or (None, None), (model.num_entities, model.num_relations)


def _answers(loaded: Any, asked: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of the answers to queries, with one pass per side."""
    import numpy as np

    parts = []
    for side, (places, given) in asked.items():
        columns = _answers_of(loaded, side, given, dict(options), len(asked))
        if places is not None:
            columns["query"] = places[columns["query"]].tolist()
        parts.append(columns)
    if len(parts) > 1:  # in the order of the file
        whole = {name: [it for part in parts for it in part[name]] for name in parts[0]}
        order = np.argsort(whole["query"], kind="stable").tolist()
        parts = [{name: [own[row] for row in order] for name, own in whole.items()}]
        parts[0]["score"] = np.array(parts[0]["score"])
    return _with_probabilities(loaded, parts[0])


def _answers_of(
    loaded: Any, side: Any, given: dict[str, Any], options: dict[str, Any], sides: int
) -> dict[str, Any]:
    from kgfast.datasets.query_files import read_candidates
    from kgfast.eval.prediction import above, topk

    (names, sizes), place = _spaces(loaded), int(side == "relation")
    if isinstance(options["candidate_ids"], Path):
        options["candidate_ids"] = read_candidates(options["candidate_ids"], side, names, sizes)
    if options["partial"] is not None and sides > 1:
        options["partial"] = options["partial"] / side
    k, threshold = min(options.pop("k"), sizes[place]), options.pop("above")
    if threshold is not None:
        del options["partial"]
        found: Any = above(loaded.model, threshold, **given, **options)
    else:
        found = topk(loaded.model, **given, **options, k=k, pad=True)
    return dict(found.columns(loaded.vocabulary))


def _index_at(path: Path, model: Any) -> Any:
    """Load the index from a file; if the file is missing, make and save an index."""
    from kgfast.eval.index import Index

    if path.exists():
        return Index.load(path, model)
    index = Index(model, croppable=True)
    index.save(path)
    return index


def _with_probabilities(loaded: Any, columns: dict[str, Any]) -> dict[str, Any]:
    """Add probabilities, if the loss of the run defines probabilities."""
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
    from kgfast.frames import rows_of

    shown = {name: values for name, values in columns.items() if name not in ("query", "rank")}
    if as_json:
        for row in rows_of(shown):
            say(json_line(row))
        return
    count = len(columns["score"])
    queries = columns.get("query", [0] * count)
    printed = print_columns(shown, dict.fromkeys(("score", "probability"), ".4f"), queries)
    if printed < count:
        say(f"{count - printed:,} more answers: --json or --out FILE", err=True)
