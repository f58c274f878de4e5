"""A served model: in this process without sockets, or on a port of the loopback."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kgfast


def graph() -> Any:
    """Return the graph of docs/reference/http.md."""
    return kgfast.datasets.synthetic(300, 6, 1200, 60, 60)


def engine_of(**options: Any) -> Any:
    """Return the model of docs/reference/http.md."""
    from kgfast.extras.serve.engine import Engine

    data = graph()
    model = kgfast.RotatE(*data.planted(16), relation_format="phase")
    values = {"names": (data.entities, data.relations), "known": data.known()} | options
    return Engine(model, **values)


def client_of(engine: Any, **options: Any) -> Any:
    """Return a client of the application, to enter as a context."""
    from starlette.testclient import TestClient

    from kgfast.extras.serve.app import make_app

    app = make_app(engine, **options)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


@contextmanager
def serving(engine: Any, **options: Any) -> Iterator[int]:
    """Serve in a thread; yield the port."""
    import uvicorn

    from kgfast.extras.serve.app import make_app

    config = uvicorn.Config(make_app(engine, **options), port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def connect(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=60)


def answer(connection: http.client.HTTPConnection) -> tuple[int, Any]:
    """Read status and content of the next answer."""
    response = connection.getresponse()
    return response.status, json.load(response)


def send(connection: http.client.HTTPConnection, path: str, **body: Any) -> None:
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})


def ask(port: int, path: str, **body: Any) -> tuple[int, Any]:
    connection = connect(port)
    send(connection, path, **body)
    status, content = answer(connection)
    connection.close()
    return status, content


def wait_for(condition: Any) -> None:
    """Wait until something is so; pytest ends a test that waits too long."""
    while not condition():
        time.sleep(0.01)
