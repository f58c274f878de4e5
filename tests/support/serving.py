"""A served model: in this process without sockets, or on a port of the loopback."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import kgfast


def graph() -> Any:
    """Return the graph of docs/how-to/serve.md."""
    return kgfast.datasets.synthetic(300, 6, 1200, 60, 60)


def engine_of(**options: Any) -> Any:
    """Return the model of docs/how-to/serve.md."""
    from kgfast.extras.serve.engine import Engine

    data = graph()
    model = kgfast.RotatE(*data.planted(16), relation_format="phase")
    values = {"names": (data.entities, data.relations), "known": data.known()} | options
    return Engine(model, **values)


class Slow:
    """An engine whose calls wait to be let through."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.calls = engine, list[int]()
        self.model, self.names, self.known = engine.model, engine.names, engine.known
        self.types = engine.types
        self.through = threading.Semaphore(0)

    def answers(self, questions: Any) -> Any:
        self.calls.append(sum(map(len, questions)))
        self.through.acquire()
        return self.engine.answers(questions)


@contextmanager
def serving(engine: Any, limits: Any, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve in a thread; yield the port."""
    from kgfast.extras.serve.app import make_app
    from kgfast.extras.serve.running import answer, bound

    listener = bound(host, 0)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    app = make_app(engine, limits)
    thread = threading.Thread(
        target=loop.run_until_complete, args=(answer(app, limits, listener, stop),)
    )
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def head(path: str, length: int, *lines: str) -> bytes:
    first = f"POST {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {length}", *lines
    return ("\r\n".join(first) + "\r\n\r\n").encode()


def answer(connection: socket.socket, ahead: Any = None) -> tuple[int, dict[str, Any]]:
    """Read status and content of the next answer; ``ahead`` is a file of several."""
    with nullcontext(ahead) if ahead else connection.makefile("rb") as file:
        status = int(file.readline().split()[1])
        headers = {}
        while (line := file.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        return status, json.loads(file.read(int(headers[b"content-length"])))


def ask(port: int, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    content = json.dumps(body).encode()
    with connect(port) as connection:
        connection.sendall(head(path, len(content)) + content)
        return answer(connection)


def wait_for(condition: Any) -> None:
    """Wait until something is so; pytest ends a test that waits too long."""
    while not condition():
        time.sleep(0.01)
