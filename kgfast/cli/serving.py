"""``kgfast serve``."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from kgfast.cli.common import (
    Checkpoint,
    Data,
    Debug,
    Folder,
    Names,
    Set,
    Trust,
    Which,
    app,
    errors_in_a_line,
    load,
    say,
    say_that_no_data_were_found,
)


@app.command()
def serve(
    run: Folder,
    host: Annotated[
        str,
        typer.Option(
            help="The address to bind: any client that reaches the address may send queries."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 8000,
    allowed_host: Annotated[
        Names,
        typer.Option(
            metavar="NAME",
            help="A name by which clients call the server, besides the address; may be repeated. * "
            "allows any name.",
        ),
    ] = None,
    max_k: Annotated[int, typer.Option(min=1, help="Answers to a query.")] = 1000,
    max_queries: Annotated[int, typer.Option(min=1, help="Queries of a request.")] = 1000,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 1 << 20,
    max_requests: Annotated[
        int,
        typer.Option(min=1, help="Requests answered at the same time; further requests get 503."),
    ] = 256,
    index: Annotated[
        bool,
        typer.Option(
            help="Pack the tables once: small requests take half the time, and memory grows by a "
            "table in float32."
        ),
    ] = True,
    dim: Annotated[int | None, typer.Option(help="The sub-model of croppable embeddings.")] = None,
    types: Annotated[
        str | None,
        typer.Option(
            metavar="train|FILE",
            help='Candidates of each relation, for requests with "candidates": "types": train, or '
            "a file.",
        ),
    ] = None,
    checkpoint: Checkpoint = Which.best,
    data: Data = None,
    set: Set = None,
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Answer queries over HTTP: a page, /topk, /rank and /score."""
    with errors_in_a_line(debug):
        _check_installed()
        from kgfast.eval.index import Index
        from kgfast.extras.serve.limits import Limits
        from kgfast.extras.serve.running import serve as serve_until_told

        limits = Limits(k=max_k, queries=max_queries, body=max_body, requests=max_requests)
        loaded = load(run, checkpoint, data, set, trust=trust)
        engine = _engine(loaded, dim)
        if types is not None:
            engine = replace(engine, types=loaded.type_constraints(types))
        devices = {parameter.device.type for parameter in engine.model.parameters()}
        if index and devices <= {"cpu"}:
            engine = replace(engine, index=Index(engine.model, croppable=dim is not None))
        if engine.known is None:
            say_that_no_data_were_found()

        def ready(url: str) -> None:
            say(f"serving {engine.model!r} on {url}")

        serve_until_told(engine, host, port, limits, ready, allowed_host or ())


def _check_installed() -> None:
    """Check that the packages of the extra are installed."""
    from importlib.util import find_spec

    missing = [name for name in ("starlette", "h11") if find_spec(name) is None]
    if missing:
        raise ImportError(
            f'kgfast serve needs {" and ".join(missing)}: pip install "kgfast[serve]"'
        )


def _engine(loaded: Any, dim: int | None) -> Any:
    """Return the engine of a loaded model, with names and known triples."""
    from kgfast.eval.batches import check_names
    from kgfast.extras.serve.engine import Engine
    from kgfast.models.base import operator_width

    model, names = loaded.model, loaded.vocabulary or (None, None)
    check_names(tuple(names), model)
    if dim is not None:
        operator_width(model, dim)  # raises an error with the available widths
    return Engine(model, tuple(names), loaded.known(), dim, loaded.probabilities)
