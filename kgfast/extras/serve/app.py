"""The endpoints: POST /topk, /rank, /score; GET /, /health, /metrics, /openapi.json.

No endpoint writes. Errors are JSON: ``{"error": ..., "field": ...}``.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from kgfast import __version__
from kgfast.extras.serve.batching import Batcher
from kgfast.extras.serve.engine import Answer, Engine
from kgfast.extras.serve.hosts import OwnHosts, names_of
from kgfast.extras.serve.latency import Metrics
from kgfast.extras.serve.limits import Limits
from kgfast.extras.serve.openapi import openapi
from kgfast.extras.serve.questions import Question, Reader
from kgfast.extras.serve.refusals import Refused, UnknownName
from kgfast.extras.serve.start_page import page
from kgfast.text import escaped

logger = logging.getLogger("kgfast.extras.serve")


def make_app(
    engine: Engine, limits: Limits | None = None, *, hosts: Sequence[str] = ()
) -> Starlette:
    """Return the ASGI application that serves a model.

    Parameters
    ----------
    engine : Engine
        The model, with names and known triples.
    limits : Limits, optional
        The limits of requests. The server of ``kgfast serve`` applies the limits of heads, stalls
        and connections; another server has limits of its own.
    hosts : sequence of str
        Names of the server besides ``localhost`` and the address that a request came to; ``"*"``
        allows any name. A request with another name gets status 421.

    Returns
    -------
    Starlette
        An application with a lifespan.

    Raises
    ------
    ValueError
        If an entry of ``hosts`` is no name of a host.
    """
    return _Service(engine, limits or Limits(), hosts).app


class _Service:
    """The shared state of the endpoints."""

    def __init__(self, engine: Engine, limits: Limits, hosts: Sequence[str]) -> None:
        self.engine, self.limits = engine, limits
        self.metrics, self.running = Metrics(), 0
        self.batcher = Batcher(engine.answers, limits.batch, self.metrics)
        model = engine.model
        reader = Reader(
            (model.num_entities, model.num_relations),
            engine.names,
            limits,
            engine.types is not None,
        )
        questions = {"topk": reader.topk, "rank": reader.rank, "score": reader.score}
        routes = [
            Route(f"/{name}", self._endpoint(name, read), methods=["POST"])
            for name, read in questions.items()
        ]
        routes += [
            Route("/", page),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/openapi.json", self._openapi),
        ]
        self.app = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _http_error},
            middleware=[Middleware(OwnHosts, names=names_of(hosts))],
        )

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        with ThreadPoolExecutor(1, "kgfast-suggestions") as self.suggesting:
            async with self.batcher:
                yield

    def _endpoint(
        self, name: str, read: Callable[[bytes], Question]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler of questions: every outcome is an answer, and is counted."""

        async def answer(request: Request) -> Response:
            start = time.perf_counter()
            response = await self._response(request, read)
            self.metrics.add(name, response.status_code, time.perf_counter() - start)
            return response

        return answer

    async def _response(self, request: Request, read: Callable[[bytes], Question]) -> Response:
        try:
            body = await self._body(request)
            return _Json(await _unless_gone(request, self._answer(body, read)))
        except Refused as error:
            return _Json(error.content(), error.status, error.headers)
        except ClientDisconnect:
            # no client reads this; nginx counts such requests under this code
            return Response(status_code=499)
        except Exception as error:
            logger.exception("a request failed")
            # ValueErrors of kgfast describe the model, such as the row of a NaN in a table.
            why = str(error) if isinstance(error, ValueError) else "internal error"
            return _Json({"error": why}, 500)

    async def _body(self, request: Request) -> bytes:
        """Read a body within the limits; refuse a larger body by its header."""
        most = self.limits.body
        too_large = Refused(413, f"must hold at most {most:,} bytes", "body")
        said = request.headers.get("content-length", "0")
        if not said.isdecimal() or len(said) > 18 or int(said) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            seconds = self.limits.body_seconds
            raise Refused(
                408, f"did not come within {seconds:g} s", "body", {"connection": "close"}
            ) from None
        return bytes(body)

    async def _answer(self, body: bytes, read: Callable[[bytes], Question]) -> Answer:
        """Answer, or refuse while too many other requests run."""
        if self.running >= self.limits.requests:
            raise Refused(
                503,
                f"{self.running:,} requests are being answered: try again",
                headers={"retry-after": "1"},
            )
        self.running += 1
        try:
            return await self.batcher.ask(await self._question(body, read))
        except NotImplementedError as error:  # relations, for a model that cannot score them
            raise Refused(422, str(error), "relations") from None
        finally:
            self.running -= 1

    async def _question(self, body: bytes, read: Callable[[bytes], Question]) -> Question:
        try:
            return read(body)
        except UnknownName as error:
            loop = asyncio.get_running_loop()
            raise await loop.run_in_executor(self.suggesting, error.refused) from None

    async def _health(self, _: Request) -> Response:
        model, known, names = self.engine.model, self.engine.known, self.engine.names
        content: dict[str, Any] = {
            "status": "ok",
            "version": __version__,
            "model": type(model).__name__,
            "entities": model.num_entities,
            "relations": model.num_relations,
            "known_triples": None if known is None else len(known),
            "names": None not in names,
            "labels": any(it is not None and bool(it.labels) for it in names),
            "types": self.engine.types is not None,
            "requests_now": self.running,
            "latency": self.metrics.summary(),
        }
        return _Json(content)

    async def _metrics(self, _: Request) -> Response:
        return PlainTextResponse(self.metrics.text(self.running))

    async def _openapi(self, _: Request) -> Response:
        return _Json(openapi(self.limits))


class _Json(JSONResponse):
    """JSON with escaped control characters, even those that JSON allows."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return escaped(text).encode()


async def _unless_gone(request: Request, answering: Coroutine[Any, Any, Answer]) -> Answer:
    """Return an answer; raise ClientDisconnect and end the work when the client hangs up."""
    answer = asyncio.create_task(answering)
    gone = asyncio.ensure_future(request.receive())  # the body is read, so only a hang-up can come
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


async def _http_error(_: Request, error: Exception) -> Response:
    """Answer a request with an unknown path or method."""
    assert isinstance(error, HTTPException)
    return _Json({"error": error.detail}, error.status_code, error.headers)
