"""``kgfast serve``."""

from typing import Annotated

import typer

from kgfast.cli import flags
from kgfast.cli.common import NO_DATA, command, load, say


@command
def serve(
    run: flags.Folder,
    host: Annotated[
        str,
        typer.Option(
            help="The address to bind: any client that reaches the address may send queries."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 8000,
    allowed_host: Annotated[
        flags.Names,
        typer.Option(
            metavar="NAME",
            help="A name by which clients call the server, besides localhost and --host; may be "
            "repeated. * allows any name.",
        ),
    ] = None,
    max_k: Annotated[int, typer.Option(min=1, help="Answers to a query.")] = 1000,
    max_queries: Annotated[int, typer.Option(min=1, help="Queries of a request.")] = 1000,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 1 << 20,
    index: Annotated[
        bool,
        typer.Option(
            help="Pack the tables once: small requests take half the time, and memory grows by a "
            "table in float32."
        ),
    ] = True,
    dim: Annotated[int | None, typer.Option(help="The sub-model of croppable embeddings.")] = None,
    checkpoint: flags.Checkpoint = flags.Which.best,
    data: flags.Data = None,
    trust: flags.Trust = False,
) -> None:
    """Answer queries over HTTP: a page, /topk, /rank and /score."""
    from kgfast.frames import needed

    for package in ("fastapi", "uvicorn"):
        needed(package, "kgfast serve", '"kgfast[serve]"')
    from kgfast.eval.index import Index
    from kgfast.extras.serve import app as server
    from kgfast.extras.serve.engine import Engine
    from kgfast.models.base import operator_width

    loaded = load(run, checkpoint, data, trust=trust)
    model, names = loaded.model, loaded.vocabulary or (None, None)
    if dim is not None:
        operator_width(model, dim)  # raises an error with the available widths
    on_cpu = {parameter.device.type for parameter in model.parameters()} <= {"cpu"}
    packed = Index(model, croppable=dim is not None) if index and on_cpu else None
    engine = Engine(model, names, loaded.known(), dim, loaded.probabilities, packed)
    if engine.known is None:
        say(NO_DATA, err=True)
    limits = {"max_k": max_k, "max_queries": max_queries, "max_body": max_body}
    hosts = allowed_host or ()
    server.serve(
        engine, host, port, lambda url: say(f"serving {model!r} on {url}"), hosts, **limits
    )
