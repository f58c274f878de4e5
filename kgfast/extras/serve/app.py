"""The server: POST /topk, /rank, /score; GET /, /health; /docs and /openapi.json of FastAPI.

No endpoint writes. Errors of questions are JSON: ``{"error": ..., "field": ...}``.
"""

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import uvicorn
from fastapi import FastAPI, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.body_limit import RequestBodyLimitMiddleware

from kgfast import __version__
from kgfast.extras.serve.engine import Engine
from kgfast.extras.serve.questions import RankBody, Reader, Refused, ScoreBody, TopkBody
from kgfast.graph import did_you_mean
from kgfast.text import escaped, shown

_HOST = re.compile(r"\*|(\*\.)?[^\s:/@*\[\]]+|\[[0-9a-f:.]+\]", re.IGNORECASE)


class Error(BaseModel):
    """Message of an error, and the wrong field of the body."""

    error: str
    field: str | None = None


def make_app(
    engine: Engine,
    *,
    hosts: Sequence[str] = (),
    max_k: int = 1000,
    max_queries: int = 1000,
    max_body: int = 1 << 20,
) -> FastAPI:
    """Return the ASGI application that serves a model.

    Parameters
    ----------
    engine : Engine
        The model, with names and known triples.
    hosts : sequence of str
        Names and addresses of the server besides ``localhost``, ``127.0.0.1`` and ``[::1]``;
        ``"*"`` allows any name. A request whose header Host has another name gets status 400.
    max_k, max_queries, max_body : int
        The most answers to a query, queries of a request, and bytes of a request.

    Returns
    -------
    FastAPI
        An application.

    Raises
    ------
    ValueError
        If an entry of ``hosts`` is no name of a host.
    """
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise ValueError(f"an allowed host is a name, an address, or *; got {shown(host)}")
    reader, thread = Reader(engine, max_k, max_queries), ThreadPoolExecutor(1, "kgfast-engine")
    handlers: dict[Any, Any] = {
        Refused: lambda _, error: _error(422, str(error), error.field),
        RequestValidationError: lambda _, error: _error(422, *_first_wrong(error.errors())),
        HTTPException: lambda _, error: _error(error.status_code, error.detail),
        **dict.fromkeys((404, 405), _not_served),
        # a ValueError of kgfast describes the model, such as the row of a NaN in a table
        ValueError: lambda _, error: _error(500, str(error)),
        Exception: lambda *_: _error(500, "internal error"),
    }
    app = FastAPI(title="kgfast", version=__version__, redoc_url=None, exception_handlers=handlers)
    allowed = ["localhost", "127.0.0.1", "[::1]", *hosts]
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=max_body)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=allowed, www_redirect=False)
    described: Any = {"responses": {422: {"model": Error}}, "response_class": _Json}

    async def answer(read: Callable[[Any], Any], body: BaseModel, field: str) -> Response:
        question = await asyncio.to_thread(read, body)  # names like a wrong one take a while
        # One call at a time has all cores.
        loop = asyncio.get_running_loop()
        try:
            return _Json(await loop.run_in_executor(thread, engine.answer, question))
        except NotImplementedError as error:  # relations, for a model that cannot score them
            raise Refused(field, str(error)) from None

    @app.post("/topk", **described)
    async def topk(body: TopkBody) -> Response:
        return await answer(reader.topk, body, "relations")

    @app.post("/rank", **described)
    async def rank(body: RankBody) -> Response:
        return await answer(reader.rank, body, "sides")

    @app.post("/score", **described)
    async def score(body: ScoreBody) -> Response:
        return await answer(reader.score, body, "triples")

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Describe the model."""
        model, known, names = engine.model, engine.known, engine.names
        return {
            "status": "ok",
            "version": __version__,
            "model": type(model).__name__,
            "entities": model.num_entities,
            "relations": model.num_relations,
            "known_triples": None if known is None else len(known),
            "names": None not in names,
            "labels": any(words is not None and bool(words.labels) for words in names),
            "max_k": max_k,
        }

    app.mount("/", StaticFiles(packages=[("kgfast.extras.serve", "page")], html=True))
    return app


def serve(
    engine: Engine,
    host: str,
    port: int,
    ready: Callable[[str], None],
    hosts: Sequence[str] = (),
    **limits: int,
) -> NoReturn:
    """Serve a model until SIGTERM or SIGINT, finish running requests, then exit with code 0.

    Port 0 takes a free port. ``ready`` gets the URL once connections are accepted. ``hosts`` and
    ``limits`` are those of :func:`make_app`. An OSError says that the address cannot be bound.
    """
    name = f"[{host}]" if ":" in host else host
    app = make_app(engine, hosts=(name, *hosts), **limits)
    # The socket names TCP, so that asyncio turns Nagle's algorithm off.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if os.name == "posix":  # on other systems the option lets two servers have one address
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        raise OSError(error.errno, f"{host} port {port}: {error.strerror}") from None
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises it after its last answer
        signal.signal(number, lambda *_: sys.exit(0))
    ready(f"http://{name}:{listener.getsockname()[1]}")
    options: Any = {"limit_concurrency": 512, "timeout_graceful_shutdown": 30}
    config = uvicorn.Config(app, log_level="warning", access_log=False, **options)
    uvicorn.Server(config).run(sockets=[listener])
    sys.exit(0)


class _Json(JSONResponse):
    """JSON with escaped control characters, also where JSON allows them unescaped."""

    def render(self, content: Any) -> bytes:
        return escaped(json.dumps(content, ensure_ascii=False, allow_nan=False)).encode()


def _error(status: int, message: str, field: str | None = None) -> Response:
    return _Json({"error": message} | ({} if field is None else {"field": field}), status)


def _not_served(_: Any, error: HTTPException) -> Response:
    where = "POST requests to /topk, /rank and /score are answered"
    return _error(error.status_code, f"{error.detail}; {where}")


def _first_wrong(errors: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Return the message for the first wrong field, and the field's name.

    pydantic reports an error for each type that a value may have. Of the type that fits best, the
    error is at the innermost place.
    """
    first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    if first["type"] == "json_invalid" or len(first["loc"]) < 2:
        return "must be a JSON object, of content-type application/json", "body"
    name = str(first["loc"][1])
    if first["type"] == "extra_forbidden":
        fields = TopkBody.model_fields | RankBody.model_fields
        return f"unknown field{did_you_mean(name, fields)}", shown(name)[1:-1]
    places = [
        ("".join(f"[{row}]" for row in error["loc"] if isinstance(row, int)), error)
        for error in errors
        if error["loc"][1] == name
    ]
    innermost = max((place for place, _ in places), key=lambda place: place.count("["))
    same = [error for place, error in places if place == innermost]
    kinds = [error["msg"].removeprefix("Input should be ") for error in same]
    message = " or ".join(dict.fromkeys(kinds))
    if first["type"] != "missing":
        message = f"must be {message}; got {shown(same[0]['input'])}"
    return message, name + innermost
