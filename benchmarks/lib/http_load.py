"""Clients that ask one request after the other over connections of their own.

They speak just enough HTTP/1.1 for `kgfast serve`, since a library of clients takes as long for a
request as the server does.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]


def post(path: str, body: bytes) -> bytes:
    """Return the bytes of a request."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def ask(port: int, request: bytes) -> bytes:
    """Return the body of the answer to one request."""

    async def once() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        _, found = await _answer(reader)
        writer.close()
        return found

    return asyncio.run(once())


def load(port: int, requests: Sequence[bytes], clients: int) -> Row:
    """Ask all requests, each client the next that nobody has asked; return a row of latencies."""
    return asyncio.run(_load(port, requests, clients))


def load_beside(
    port: int, requests: Sequence[bytes], other: bytes, clients: int
) -> tuple[Row, Row]:
    """Return rows of one client's requests and of other clients, who ask ``other`` all the time."""

    async def both() -> tuple[Row, Row]:
        goes_on = True

        def again() -> Iterator[bytes]:
            while goes_on:
                yield other

        beside = asyncio.create_task(_load(port, again(), clients))
        await asyncio.sleep(0.5)
        found = await _load(port, requests, 1)
        goes_on = False
        return found, await beside

    return asyncio.run(both())


def seconds_after_hanging_up(port: int, left: bytes, clients: int, request: bytes) -> float:
    """Return the seconds until an answer after clients asked ``left`` and hung up."""

    async def run() -> float:
        writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(clients)]
        for writer in writers:
            writer.write(left)
            await writer.drain()
        await asyncio.sleep(0.5)
        start = time.perf_counter()
        for writer in writers:
            writer.close()
        while (await _load(port, [request], 1))["errors"]:
            await asyncio.sleep(0.001)
        return time.perf_counter() - start

    return asyncio.run(run())


def ask_ahead(port: int, request: bytes, seconds: float) -> int:
    """Send a request over and over on one connection, reading answers; return their number."""

    async def run() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send() -> None:
            while True:
                writer.write(request * (1 + (1 << 16) // len(request)))
                await writer.drain()

        sending, end, answered = asyncio.create_task(send()), time.monotonic() + seconds, 0
        while time.monotonic() < end:
            answered += (await _answer(reader))[0] == 200
        sending.cancel()
        writer.transport.abort()
        return answered

    return asyncio.run(run())


async def _load(port: int, requests: Iterable[bytes], clients: int) -> Row:
    latencies: list[float] = []
    errors = 0
    todo = iter(requests)

    async def client() -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in todo:
            start = time.perf_counter()
            writer.write(request)
            status, _ = await _answer(reader)
            latencies.append(time.perf_counter() - start)
            errors += status != 200
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - start
    at = torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64)
    values = torch.tensor(latencies, dtype=torch.float64).quantile(at).tolist()
    return {
        "requests": len(latencies),
        "errors": errors,
        "latency_seconds": dict(zip(("p50", "p90", "p99"), values, strict=True)),
        "requests_per_s": len(latencies) / seconds,
    }


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.split(b"content-length: ")[1].split(b"\r\n")[0]
    return int(head[9:12]), await reader.readexactly(int(length))


@dataclass(frozen=True)
class Served:
    """A server in a process of its own."""

    port: int
    pid: int

    def resident_bytes(self) -> int:
        """Return the bytes that the server holds in memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def counted(self, name: str) -> int:
        """Return a counter of the server's metrics."""
        text = ask(self.port, b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").decode()
        return int(text.split(f"\nkgfast_{name} ")[1].split()[0])


@contextmanager
def served(make_model: Any, *arguments: Any, **limits: Any) -> Iterator[Served]:
    """Serve ``make_model(*arguments)`` on a free port; the server has to end with exit code 0."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    threads = torch.get_num_threads()
    process = context.Process(target=_serve, args=(sender, threads, make_model, arguments, limits))
    process.start()
    try:
        sender.close()
        port = int(receiver.recv().rsplit(":", 1)[1])
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
        assert process.pid is not None
        yield Served(port, process.pid)
        os.kill(process.pid, signal.SIGTERM)
        process.join(60)
        if process.exitcode != 0:
            raise RuntimeError(f"the server ended with exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _serve(
    sender: Connection, threads: int, make_model: Any, arguments: Any, limits: dict[str, Any]
) -> None:
    from kgfast.extras.serve.engine import Engine
    from kgfast.extras.serve.limits import Limits
    from kgfast.extras.serve.running import serve

    torch.set_num_threads(threads)
    serve(Engine(make_model(*arguments)), "127.0.0.1", 0, Limits(**limits), sender.send)
