"""``kgfast serve`` on a socket: clients that ask ahead, stop, send what is no HTTP, and hang up.

One server for each process, whose limits are small. Its answers are compared with those of its
engine, which is called in this thread.
"""

import json
import socket
import struct
import threading
import time
from functools import cache
from typing import Any

from fuzz.case import Case, expect
from support.serving import answer, ask, connect, engine_of, head, serving

_SECONDS = 0.3
_LIMITS = {"queries": 20, "body": 4000, "connections": 12, "batch": 3}
_LIMITS |= dict.fromkeys(("body_seconds", "head_seconds", "stall_seconds"), _SECONDS)


def lacks() -> str:
    from importlib.util import find_spec

    missing = [name for name in ("starlette", "h11") if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed" if missing else ""


def clients(case: Case) -> None:
    """Start some clients at once; then the server still answers, and no request is left."""
    found: list[BaseException] = []

    def one(part: Case) -> None:
        try:
            _client(part)
        except BaseException as error:
            found.append(error)

    parts = [Case(f"{case.kind}/{it}", case.seed, case.number) for it in range(case.choice((1, 4)))]
    threads = [threading.Thread(target=one, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    case.notes += [note for part in parts for note in part.notes]
    for error in found:
        raise error
    port = _served()[0]
    end = time.monotonic() + 20
    while _health(port)["requests_now"] and time.monotonic() < end:
        time.sleep(0.01)
    expect(_health(port)["requests_now"] == 0, "requests of clients that are gone are answered")
    expect(ask(port, "/score", heads=1, relations=1, tails=1)[0] == 200, "no answer any more")


@cache
def _served() -> tuple[int, Any, Any]:
    """Return the port, the engine, and the reader of its questions."""
    from kgfast.extras.serve.limits import Limits
    from kgfast.extras.serve.questions import Reader

    engine, limits = engine_of(), Limits(**_LIMITS)
    ready: list[int] = []

    def run() -> None:
        with serving(engine, limits) as port:
            ready.append(port)
            threading.Event().wait()

    threading.Thread(target=run, daemon=True).start()
    while not ready:
        time.sleep(0.01)
    return ready[0], engine, Reader((300, 6), engine.names, limits)


def _client(case: Case) -> None:
    """Send requests in pieces; read all answers, or hang up."""
    port, engine, reader = _served()
    bodies = [_body(case) for _ in range(case.choice((1, 2, 5)))]
    sent = b"".join(head(path, len(body)) + body for path, body in bodies)
    spoilt = case.chance(0.4)
    if spoilt:
        place = case.pick.randrange(len(sent))
        noise = case.pick.randbytes(case.choice((1, 3, 300)))
        sent = sent[:place] + noise + sent[place + case.choice((0, len(noise))) :]
    ends = case.choice(("reads", "reads", "closes", "resets"))
    most = case.pick.randrange(len(sent)) if ends != "reads" else len(sent)
    case.note(bodies=bodies, ends=ends, sent=most, spoilt=spoilt)

    with connect(port) as connection, connection.makefile("rb") as file:
        try:
            place = 0
            while place < most:
                step = case.choice((1, 7, 100, 100_000)) if case.chance(0.3) else most
                place += connection.send(sent[place : min(most, place + step)])
            if ends == "resets":
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            if ends != "reads":
                return
            for path, body in bodies:
                status, content = answer(connection, file)
                expect(status != 500, f"an internal error: {content}")
                if not spoilt:
                    asked = getattr(reader, path[1:])(body)
                    expected = json.loads(json.dumps(engine.answers([asked])[0]))
                    expect((status, content) == (200, expected), f"{path} {body!r}: {content}")
        except (ConnectionError, IndexError):  # IndexError: nothing more comes
            expect(spoilt, "a connection was closed that did nothing wrong")


def _body(case: Case) -> tuple[str, bytes]:
    count = case.choice((1, 1, 2, 20))
    columns = {name: case.ids(300, count).tolist() for name in ("heads", "tails")}
    columns["relations"] = case.ids(6, count).tolist()
    path = case.choice(("/topk", "/rank", "/score"))
    asked: dict[str, Any] = dict(columns)
    if path == "/topk":
        asked.pop(case.choice(("heads", "tails", "relations")))
        asked["k"] = case.choice((1, 5))
    if path != "/score" and case.chance(0.3):
        asked["include_known"] = True
    return path, json.dumps(asked).encode()


def _health(port: int) -> Any:
    with connect(port) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        return answer(connection)[1]
