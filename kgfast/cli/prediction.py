"""``kgfast predict``: the best answers to queries, or the best facts of a graph."""

import sys
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from kgfast.cli import flags
from kgfast.cli.common import (
    NO_DATA,
    check_no_options,
    command,
    ids_of,
    load,
    load_known,
    say,
    say_columns,
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
    known: flags.Known = None,
    candidates: Annotated[
        Path | None, typer.Option(help="A file with the only answers: names, one per line.")
    ] = None,
    types: flags.Types = None,
    as_json: flags.AsJson = False,
    out: flags.Out = None,
    max_memory: flags.Memory = None,
    trust: flags.Trust = False,
) -> None:
    """Predict tails, heads or relations, or the best facts of all."""
    import torch

    if known and include_known:
        raise ValueError("give --known or --include-known, not both")
    if every:
        of_queries: dict[str, Any] = {"--above": above, "--dim": dim, "--queries": queries}
        of_queries |= {"--candidates": candidates, "--types": types}
        check_no_options("goes with queries, not with --all", of_queries)
    elif queries is not None and (head or relation or tail):
        raise ValueError("give --queries, or --head, --relation, --tail, not both")
    elif queries is None and not (head and tail and not relation):
        if bool(head) == bool(tail):
            raise ValueError(
                "give --head to predict tails, or --tail to predict heads (both without --relation "
                "predict relations, --all the best facts)"
            )
        if not relation:
            raise ValueError("give --relation, one for all or one for each")
    if candidates and types:
        raise ValueError("give --candidates or --types, not both")
    loaded = load(run, checkpoint, data, as_table=max_memory is not None, trust=trust)
    if dim is not None and not hasattr(loaded.model, "dims"):
        raise ValueError("--dim: the model has no sub-models, of croppable embeddings (MED)")
    entities, relations = loaded.vocabulary or (None, None)
    ids = {
        f"{role}s": ids_of(f"--{role}", names, relations if role == "relation" else entities)
        for role, names in (("head", head), ("relation", relation), ("tail", tail))
        if names
    }
    options: dict[str, Any] = {"max_memory": max_memory, "known": None}
    if not include_known:
        options["known"] = loaded.known() if known is None else load_known(known, loaded)
    if every:
        from kgfast.eval.facts import top_facts

        facts = top_facts(loaded.model, **ids, **options, k=k, progress=sys.stdout.isatty())
        columns = dict(facts.columns(loaded.vocabulary))
    else:
        allowed = loaded.type_constraints(types) if types else candidates
        options |= {"k": k, "above": above, "dims": dim, "candidate_ids": allowed}
        columns = _answers(loaded, ids, queries, options)
    values = loaded.probabilities(torch.from_numpy(columns["score"]))
    if values is not None:
        columns["probability"] = values.numpy()
    if options["known"] is None and not include_known:
        say(NO_DATA, err=True)
    queries_of_rows = columns.get("query", [0] * len(columns["score"]))
    if out is None:
        columns = {name: columns[name] for name in columns if name not in ("query", "rank")}
    formats = dict.fromkeys(("score", "probability"), ".4f")
    say_columns(columns, formats, queries_of_rows, as_json, out)


def _answers(
    loaded: Any, ids: dict[str, Any], queries: Path | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the columns of the answers to queries, with one pass per side."""
    import numpy as np

    from kgfast.datasets.query_files import read_candidates, read_queries
    from kgfast.eval.prediction import above, topk
    from kgfast.graph import with_times

    model, k, threshold = loaded.model, options.pop("k"), options.pop("above")
    spaces = loaded.vocabulary or (None, None), (model.num_entities, model.num_relations)
    if queries is None:
        (side,) = {"heads", "relations", "tails"} - ids.keys()
        ids_of_sides: Any = {side[:-1]: (None, ids)}
    else:
        ids_of_sides = read_queries(queries, *spaces)
        options["progress"] = sys.stdout.isatty()
    of_sides = []
    for side, (places, ids) in ids_of_sides.items():
        chosen = dict(options)
        if isinstance(chosen["candidate_ids"], Path):
            chosen["candidate_ids"] = read_candidates(chosen["candidate_ids"], side, *spaces)
        queries_of = with_times(ids, getattr(model, "num_times", None))
        if threshold is not None:
            answers: Any = above(model, threshold, **queries_of, **chosen)
        else:
            most = min(k, spaces[1][side == "relation"])
            answers = topk(model, **queries_of, **chosen, k=most, pad=True)
        columns = dict(answers.columns(loaded.vocabulary))
        if places is not None:
            columns["query"] = places[columns["query"]].tolist()
        of_sides.append(columns)
    if len(of_sides) == 1:
        return of_sides[0]
    whole = {name: [*chain(*(columns[name] for columns in of_sides))] for name in of_sides[0]}
    order = np.argsort(whole["query"], kind="stable").tolist()  # in the order of the file
    columns = {name: [values[row] for row in order] for name, values in whole.items()}
    return columns | {"score": np.array(columns["score"])}
