"""A server that runs until it is told to stop, and then finishes what it began."""

import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import uvicorn

from kgfast.serve.app import make_app
from kgfast.serve.engine import Engine
from kgfast.serve.limits import Limits
from kgfast.serve.protocol import ImpatientProtocol


def serve(
    engine: Engine,
    host: str,
    port: int,
    limits: Limits,
    ready: Callable[[str], None],
) -> NoReturn:
    """Serve a model until SIGTERM or SIGINT, then exit with code 0.

    Parameters
    ----------
    engine : Engine
    host : str
        The address to bind; nothing is bound besides.
    port : int
        0 for a free one.
    limits : Limits
    ready : callable
        Called with the URL once connections are accepted.

    Raises
    ------
    OSError
        If the address cannot be bound.
    SystemExit
        At the end.
    """
    listener = bound(host, port, limits.connections)
    # uvicorn raises the signal that stopped it once more, when all is done.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    shown = f"[{host}]" if ":" in host else host
    ready(f"http://{shown}:{listener.getsockname()[1]}")
    uvicorn.Server(config_of(engine, limits)).run(sockets=[listener])
    raise SystemExit(0)


def bound(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that accepts connections to one address, of IPv4 or IPv6.

    It names TCP, which `socket.create_server` does not: else asyncio leaves Nagle's algorithm on,
    and an answer, whose head and body are written apart, waits 40 ms for the client to confirm.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # elsewhere it lets two servers have one address
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"{host} port {port}: {error.strerror}") from None
    return listener


def config_of(engine: Engine, limits: Limits) -> uvicorn.Config:
    """Uvicorn's settings: plain HTTP/1.1, no log of requests, and the limits."""
    protocol: Any = partial(ImpatientProtocol, limits)
    return uvicorn.Config(
        make_app(engine, limits),
        http=protocol,
        ws="none",
        loop="asyncio",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=limits.connections,
        timeout_graceful_shutdown=limits.finish_seconds,
    )


def _leave(*_: Any) -> NoReturn:
    raise SystemExit(0)
