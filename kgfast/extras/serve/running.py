"""Server that runs until it is told to stop, and then finishes open requests."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from kgfast.extras.serve.app import make_app
from kgfast.extras.serve.engine import Engine
from kgfast.extras.serve.http import BACKLOG, Connections
from kgfast.extras.serve.limits import Limits


def serve(
    engine: Engine,
    host: str,
    port: int,
    limits: Limits,
    ready: Callable[[str], None],
    hosts: Sequence[str] = (),
) -> NoReturn:
    """Serve a model until SIGTERM or SIGINT, then exit with code 0.

    The server binds only ``host``; port 0 takes a free port. ``ready`` gets the URL once
    connections are accepted. ``hosts`` are more names of the server, as in
    :func:`~kgfast.extras.serve.app.make_app`. An OSError says that the address cannot be bound.
    """
    app = make_app(engine, limits, hosts=(host, *hosts))
    listener = bound(host, port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    shown = f"[{host}]" if ":" in host else host
    ready(f"http://{shown}:{listener.getsockname()[1]}")
    asyncio.run(_until_told(app, limits, listener))
    raise SystemExit(0)


async def _until_told(app: Any, limits: Limits, listener: socket.socket) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def told(*_: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave)  # a second signal ends at once
        loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told)
    await answer(app, limits, listener, stop)


async def answer(app: Any, limits: Limits, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve an application of :func:`make_app` on a socket until ``stop`` is set."""
    async with app.router.lifespan_context(app):
        await Connections(app, limits).serve(listener, stop)


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that accepts connections to one address, IPv4 or IPv6.

    The socket names TCP, unlike `socket.create_server`. Without the name asyncio leaves Nagle's
    algorithm on. An answer, whose head and body are two writes, then waits 40 ms for the client to
    confirm.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # on other systems the option lets two servers have one address
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"{host} port {port}: {error.strerror}") from None
    return listener


def _leave(*_: Any) -> NoReturn:
    raise SystemExit(0)
