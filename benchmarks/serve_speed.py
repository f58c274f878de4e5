"""Measure `kgfast serve` under load.

    python benchmarks/serve_speed.py            everything; writes results/cpu-serve-speed.json
    python benchmarks/serve_speed.py --sections delay       these rows anew, beside the others

`load`: a server in a process of its own, and 1 to 64 clients that each ask for the 10 best tails of
one query after the other; clients share the cores and measure latencies. `delay`: latencies of one
query beside clients that ask 1,000 at once, and after 256 of these hung up. `memory`: memory of the
server over many requests, and with a client that sends ahead. Searches beside other libraries:
peers_speed.py.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import kgfast
from lib.benchmark import THREADS, Benchmark, Option, Options
from lib.columns import SERVE_DELAY, SERVE_LOAD
from lib.http_load import (
    Served,
    ask,
    ask_ahead,
    load,
    load_beside,
    post,
    seconds_after_hanging_up,
    served,
)
from lib.tables import human_bytes

K = 10
CLIENTS = (1, 2, 4, 8, 16, 32, 64)
RELATIONS = 11
LARGE = 1000  # queries of a large request


def model_of(entities: int, dim: int) -> kgfast.RotatE:
    """Return a fresh RotatE."""
    return kgfast.RotatE.init(entities, RELATIONS, dim, seed=0).eval().requires_grad_(False)


def query(number: int, entities: int) -> dict[str, Any]:
    """Return a body of /topk; all differ until heads and relations are used up."""
    return {"heads": number % entities, "relations": number % RELATIONS, "k": K}


def requests_of(count: int, entities: int) -> list[bytes]:
    """Return so many requests."""
    return [post("/topk", json.dumps(query(it, entities)).encode()) for it in range(count)]


def load_rows(options: Options) -> Iterator[dict[str, Any]]:
    """Yield latencies by the number of clients."""
    entities, dim = options.entities, options.dim
    with served(model_of, entities, dim) as server:
        wrong = wrong_answers(server, entities, dim)
        load(server.port, requests_of(max(CLIENTS), entities), max(CLIENTS))  # warms up
        for clients in CLIENTS:
            calls, queries = (server.counted(name) for name in ("batches_total", "queries_total"))
            row = load(server.port, requests_of(options.requests, entities), clients)
            calls = server.counted("batches_total") - calls
            queries = server.counted("queries_total") - queries
            where = {"section": "load", "clients": clients, "entities": entities, "dim": dim}
            yield where | row | {"queries_per_call": queries / calls, "wrong": wrong}


def wrong_answers(server: Served, entities: int, dim: int) -> int:
    """Count how many of a few answers are not those of a call in this process."""
    model, wrong = model_of(entities, dim), 0
    for number in range(4):
        asked = query(number, entities)
        content = json.loads(ask(server.port, post("/topk", json.dumps(asked).encode())))
        top = kgfast.topk(model, heads=asked["heads"], relations=asked["relations"], k=K)
        wrong += [it["id"] for it in content["answers"][0]] != top.ids[0].tolist()
    return wrong


def delay_rows(options: Options) -> Iterator[dict[str, Any]]:
    """Yield latencies of small requests beside large ones, by the queries of a batch."""
    entities, dim = options.entities, options.dim
    large_query = {"heads": [it % entities for it in range(LARGE)], "relations": 0, "k": K}
    large = post("/topk", json.dumps(large_query).encode())
    part = post("/topk", json.dumps(large_query | {"heads": list(range(64))}).encode())
    small = requests_of(options.small_requests, entities)
    for batch in (64, 1024):
        with served(model_of, entities, dim, batch=batch) as server:
            where = {"section": "delay", "entities": entities, "dim": dim, "batch": batch}
            load(server.port, [*small[:8], large], 1)  # warms up
            for what, requests in (("small", small), ("64", [part] * 9), ("large", [large] * 3)):
                alone = load(server.port, requests, 1)
                yield where | {"asked": what, "beside": 0} | alone
            for clients in (1, 4):
                found, others = load_beside(server.port, small, large, clients)
                yield where | {"asked": "small", "beside": clients} | found
                yield where | {"asked": "large", "beside": clients} | others
            after = [seconds_after_hanging_up(server.port, large, 256, small[0]) for _ in range(3)]
            yield where | {"asked": "small", "after": 256, "seconds": after}


def memory_rows(options: Options) -> Iterator[dict[str, Any]]:
    """Yield what the server holds, after a tenth of many requests and after all."""
    where = {"entities": 1000, "dim": 16}
    with served(model_of, *where.values()) as server:
        part = requests_of(max(1, options.memory_requests // 10), where["entities"])
        held, errors, answered = [], 0, 0
        for _ in range(10):
            found = load(server.port, part, 64)
            errors, answered = errors + found["errors"], answered + found["requests"]
            held.append(server.resident_bytes())
        counts = {"clients": 64, "requests": answered, "errors": errors}
        yield {"section": "memory"} | where | counts | growth(held)
        held, seconds, answered = [server.resident_bytes()], options.memory_requests / 5000, 0
        for _ in range(2):
            answered += ask_ahead(server.port, part[0], seconds / 2)
            held.append(server.resident_bytes())
        counts = {"clients": 1, "requests": answered, "errors": 0, "seconds": seconds}
        yield {"section": "ahead"} | where | counts | growth(held)


def growth(held: list[int]) -> dict[str, Any]:
    """Return what was held, and how much more at the end."""
    return {"resident_bytes": held, "growth_bytes": held[-1] - held[0]}


BENCHMARK = Benchmark(
    "serve_speed",
    __doc__,
    {"load": load_rows, "delay": delay_rows, "memory": memory_rows},
    options={
        "entities": Option("of RotatE", 40_943, 500),
        "dim": Option("of RotatE", 256, 16),
        "threads": THREADS,
        "requests": Option("for each number of clients", 2_000, 64),
        "memory_requests": Option("of the memory test", 100_000, 640),
        "small_requests": Option("of the test of delays", 30, 4),
    },
    tables={
        "load": (
            "Requests for the best 10",
            SERVE_LOAD,
        ),
        "delay": (
            "Small requests beside large ones",
            SERVE_DELAY,
        ),
        "memory": (
            "Memory of the server",
            (
                ("clients:", "{clients}"),
                ("requests:", "{requests:,}"),
                ("held:", lambda row: human_bytes(row["resident_bytes"][-1])),
                ("more than after a tenth:", "{growth_bytes:,} B"),
            ),
        ),
    },
    section_of=lambda row: "memory" if row["section"] == "ahead" else row["section"],
    packages=("starlette", "h11"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
