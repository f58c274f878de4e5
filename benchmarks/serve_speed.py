"""Measure `kgfast serve` under load.

    python benchmarks/serve_speed.py            writes results/cpu-serve-speed.json

A server in a process of its own, and 1 to 64 clients that each ask for the 10 best tails of one
query after the other; clients share the cores and measure latencies. They speak just enough
HTTP/1.1, since a library of clients takes as long for a request as the server does.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

import kgfast
from lib.benchmark import THREADS, Benchmark, Option, Options
from lib.columns import SERVE

K = 10
CLIENTS = (1, 2, 4, 8, 16, 32, 64)
RELATIONS = 11


def rows(options: Options) -> Iterator[dict[str, Any]]:
    """Yield latencies by the number of clients."""
    entities, dim = options.entities, options.dim
    queries = [
        {"heads": it % entities, "relations": it % RELATIONS, "k": K}
        for it in range(options.requests)
    ]
    requests = [request("POST /topk", json.dumps(query).encode()) for query in queries]
    with served(entities, dim) as port:
        model = model_of(entities, dim)
        wrong = sum(is_wrong(port, queries[at], requests[at], model) for at in range(4))
        asyncio.run(load(port, requests[:64], max(CLIENTS)))  # warms up
        for clients in CLIENTS:
            before = counts(port)
            row = asyncio.run(load(port, requests, clients))
            calls, asked = (now - then for now, then in zip(counts(port), before, strict=True))
            where = {"section": "load", "clients": clients, "entities": entities, "dim": dim}
            yield where | row | {"queries_per_call": asked / calls, "wrong": wrong}


def is_wrong(port: int, query: dict[str, Any], asked: bytes, model: kgfast.RotatE) -> bool:
    """Return whether an answer is not that of a call in this process."""
    found = asyncio.run(answer_to(port, asked))["answers"][0]
    top = kgfast.topk(model, **query)
    return [it["id"] for it in found] != top.ids[0].tolist()


def model_of(entities: int, dim: int) -> kgfast.RotatE:
    """Return a fresh RotatE."""
    return kgfast.RotatE.init(entities, RELATIONS, dim, seed=0).eval().requires_grad_(False)


def request(line: str, body: bytes = b"") -> bytes:
    """Return the bytes of a request."""
    head = f"{line} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def counts(port: int) -> tuple[int, int]:
    """Return the server's calls of its engine, and their queries."""
    found = asyncio.run(answer_to(port, request("GET /health")))
    return found["calls"], found["queries"]


async def answer_to(port: int, asked: bytes) -> Any:
    """Return the content of the answer to one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(asked)
    content = (await read_answer(reader))[1]
    writer.close()
    return json.loads(content)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return status and body of the next answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.split(b"content-length: ")[1].split(b"\r\n")[0]
    return int(head[9:12]), await reader.readexactly(int(length))


async def load(port: int, requests: Sequence[bytes], clients: int) -> dict[str, Any]:
    """Ask all requests, each client the next that nobody has asked; return a row of latencies."""
    latencies: list[float] = []
    errors, todo = 0, iter(requests)

    async def client() -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for asked in todo:
            start = time.perf_counter()
            writer.write(asked)
            status, _ = await read_answer(reader)
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


@contextmanager
def served(entities: int, dim: int) -> Iterator[int]:
    """Serve a model in a process of its own; yield the port. The server has to end with code 0."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    options = sender, torch.get_num_threads(), entities, dim
    process = context.Process(target=serve, args=options)
    process.start()
    try:
        sender.close()
        yield int(receiver.recv().rsplit(":", 1)[1])
        process.terminate()
        process.join(60)
        if process.exitcode != 0:
            raise RuntimeError(f"the server ended with exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def serve(sender: Connection, threads: int, entities: int, dim: int) -> None:
    """Serve a model, and send the address."""
    from kgfast.extras.serve import app
    from kgfast.extras.serve.engine import Engine

    torch.set_num_threads(threads)
    app.serve(Engine(model_of(entities, dim)), "127.0.0.1", 0, sender.send)


BENCHMARK = Benchmark(
    "serve_speed",
    __doc__,
    {"load": rows},
    options={
        "entities": Option("of RotatE", 40_943, 500),
        "dim": Option("of RotatE", 256, 16),
        "threads": THREADS,
        "requests": Option("for each number of clients", 2_000, 64),
    },
    tables={"load": ("Requests for the best 10", SERVE)},
    packages=("fastapi", "uvicorn"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
