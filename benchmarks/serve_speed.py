"""`kgfast serve` under load, and its searches beside faiss, usearch and torch.

    python benchmarks/serve_speed.py            everything; writes results/cpu-serve-speed.json
    python benchmarks/serve_speed.py --quick    a smoke test: tiny tables, a few requests
    python benchmarks/serve_speed.py --sections delay       these rows anew, beside the others

`load`: a server in a process of its own, 1 to 64 clients on the loopback, each asking for the 10
best tails of a RotatE query, one request after the other; latencies are the clients', who share the
cores. `delay`: what requests of one query wait beside clients that ask 1,000 at once, and after 256
of these hung up; for batches of 64, which is the default, and as large as a request. `memory`: many
requests to a small model, and a client that asks ahead; what the server holds meanwhile.
`search`: the 10 best rows for 1 and for 64 queries, contenders in turns; faiss (IndexFlat) and
usearch have dot products and L2 only. kgfast has an index, as faiss and the server do; `table` is
kgfast without one. Ids are compared with kgfast's. Exit code 1 if a request failed or an answer is
not that of `kgfast.topk`.
"""

import argparse
import json
import sys
from functools import partial
from typing import Any

import torch

import kgfast
from kgfast import ops
from lib import options as known_options
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
from lib.indexed import Indexed
from lib.machine import facts, machine_line
from lib.measure import Stopwatch
from lib.peers import Missing, nearest
from lib.peers.topk import Search, eager
from lib.results import read_rows, write_json
from lib.tables import console, human_bytes, human_seconds

K = 10
CLIENTS = (1, 2, 4, 8, 16, 32, 64)
BATCHES = (1, 64)
RELATIONS = 11
LARGE = 1000  # queries of a large request
PACKAGES = "starlette", "h11", "faiss-cpu", "usearch"
LABELS = {
    "table": "kgfast, no index",
    "brute": "torch, all at once",
    "faiss": "faiss IndexFlat",
    "usearch": "usearch, exact",
}


def model_of(entities: int, dim: int) -> kgfast.RotatE:
    """A fresh RotatE."""
    return kgfast.RotatE.init(entities, RELATIONS, dim, seed=0).eval().requires_grad_(False)


def query(number: int, entities: int) -> dict[str, Any]:
    """A body of /topk; all differ until heads and relations are used up."""
    return {"heads": number % entities, "relations": number % RELATIONS, "k": K}


def requests_of(count: int, entities: int) -> list[bytes]:
    """So many requests."""
    return [post("/topk", json.dumps(query(it, entities)).encode()) for it in range(count)]


def search_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Each score and batch: all contenders in turns."""
    rows, threads = [], torch.get_num_threads()
    torch.set_num_threads(options.threads)
    for score, entities, dim in (
        ("dot", options.rows, 128),
        ("l2", options.rows, 128),
        ("rotate", options.entities, options.dim),
    ):
        generator = torch.Generator().manual_seed(0)
        width = 2 * dim if score == "rotate" else dim
        table = torch.randn(entities, width, generator=generator)
        for batch in BATCHES:
            queries = torch.randn(batch, width, generator=generator)
            found = race(Search(queries, table, K), score, options.rounds)
            where = {"score": score, "entities": entities, "dim": dim, "batch": batch}
            where["threads"] = options.threads
            rows += [{"section": "search"} | where | row for row in found]
    torch.set_num_threads(threads)
    return rows


def race(search: Search, score: str, rounds: int) -> list[dict[str, Any]]:
    """A row for each contender."""
    ours = partial(ops.topk, search.queries, search.table, search.k, score=score)
    contenders: dict[str, Any] = {"kgfast": Indexed(search, score), "table": lambda: ours()[1]}
    missing = []
    if score == "rotate":
        peer = eager(search)
        contenders["brute"] = lambda: peer()[1]
    else:
        for name, make in (
            ("brute", nearest.brute_force),
            ("faiss", nearest.faiss_flat),
            ("usearch", nearest.usearch_exact),
        ):
            try:
                contenders[name] = make(search, score)
            except Missing as error:
                missing.append({"contender": name, "seconds": None, "note": str(error)})
    answers, timings = Stopwatch("cpu").race(contenders, rounds)
    return missing + [
        {
            "contender": name,
            "seconds": timing.as_dict(),
            "times_kgfast": timing.median / timings["kgfast"].median,
            "differing_queries": int((answers[name] != answers["kgfast"]).any(1).sum()),
        }
        for name, timing in timings.items()
    ]


def load_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Latencies by the number of clients."""
    rows = []
    entities, dim = options.entities, options.dim
    with served(model_of, entities, dim) as server:
        wrong = wrong_answers(server, entities, dim)
        load(server.port, requests_of(max(CLIENTS), entities), max(CLIENTS))  # warms up
        for clients in CLIENTS:
            calls, queries = (server.counted(name) for name in ("batches_total", "queries_total"))
            row = load(server.port, requests_of(options.requests, entities), clients).as_row()
            calls = server.counted("batches_total") - calls
            queries = server.counted("queries_total") - queries
            where = {"section": "load", "clients": clients, "entities": entities, "dim": dim}
            rows.append(where | row | {"queries_per_call": queries / calls, "wrong": wrong})
    return rows


def wrong_answers(server: Served, entities: int, dim: int) -> int:
    """How many of a few answers are not those of a call in this process."""
    model, wrong = model_of(entities, dim), 0
    for number in range(4):
        asked = query(number, entities)
        content = json.loads(ask(server.port, post("/topk", json.dumps(asked).encode()))[1])
        top = kgfast.topk(model, heads=asked["heads"], relations=asked["relations"], k=K)
        wrong += [it["id"] for it in content["answers"][0]] != top.ids[0].tolist()
    return wrong


def delay_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Latencies of small requests beside large ones, by the queries of a batch."""
    entities, dim, rows = options.entities, options.dim, []
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
                rows.append(where | {"asked": what, "beside": 0} | alone.as_row())
            for clients in (1, 4):
                found, others = load_beside(server.port, small, large, clients)
                rows.append(where | {"asked": "small", "beside": clients} | found.as_row())
                rows.append(where | {"asked": "large", "beside": clients} | others.as_row())
            after = [seconds_after_hanging_up(server.port, large, 256, small[0]) for _ in range(3)]
            rows.append(where | {"asked": "small", "after": 256, "seconds": after})
    return rows


def memory_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What the server holds, after a tenth of many requests and after all."""
    entities, dim = 1000, 16
    with served(model_of, entities, dim) as server:
        part = requests_of(max(1, options.memory_requests // 10), entities)
        held, errors, answered = [], 0, 0
        for _ in range(10):
            found = load(server.port, part, 64)
            errors, answered = errors + found.errors, answered + len(found.latencies)
            held.append(server.resident_bytes())
        ahead, seconds = [server.resident_bytes()], options.memory_requests / 5000
        answers = 0
        for _ in range(2):
            answers += ask_ahead(server.port, part[0], seconds / 2)
            ahead.append(server.resident_bytes())
    return [
        {
            "section": "memory",
            "entities": entities,
            "dim": dim,
            "clients": 64,
            "requests": answered,
            "errors": errors,
            "resident_bytes": held,
            "growth_bytes": held[-1] - held[0],
        },
        {
            "section": "ahead",
            "entities": entities,
            "dim": dim,
            "clients": 1,
            "requests": answers,
            "errors": 0,
            "seconds": seconds,
            "resident_bytes": ahead,
            "growth_bytes": ahead[-1] - ahead[0],
        },
    ]


SECTIONS = {
    "load": load_rows,
    "delay": delay_rows,
    "memory": memory_rows,
    "search": search_rows,
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = known_options.new_parser(__doc__)
    for name, what in (
        ("rows", "of the tables of dot and l2"),
        ("entities", "of RotatE"),
        ("dim", "of RotatE"),
        ("rounds", "turns of each contender"),
        ("threads", "of the searches"),
        ("requests", "for each number of clients"),
        ("memory-requests", "of the memory test"),
        ("small-requests", "of the test of delays"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=what)
    parser.add_argument(
        "--sections", nargs="+", choices=SECTIONS, help="only these; other rows of the file stay"
    )
    known_options.add_outputs(parser, "serve-speed", plot=False)
    options = parser.parse_args(arguments)
    names = "rows", "entities", "dim", "rounds", "threads", "requests", "memory_requests"
    names += ("small_requests",)
    threads = torch.get_num_threads()
    whole = dict(zip(names, (1_000_000, 40_943, 256, 5, threads, 2_000, 100_000, 30), strict=True))
    quick = dict(zip(names, (2_000, 500, 16, 2, threads, 64, 640, 4), strict=True))
    known_options.set_defaults(options, whole, quick)
    known_options.check_positive(parser, options, *names)
    known_options.set_outputs(options, "serve-speed")
    return options


def describe(row: dict[str, Any]) -> str:
    """A row in a line."""
    if row["section"] == "search":
        what = (
            f"{row['score']:<7} B = {row['batch']:<3}{LABELS.get(row['contender'], 'kgfast'):<20}"
        )
        if row["seconds"] is None:
            return f"{what}{row['note']}"
        time = human_seconds(row["seconds"]["median"])
        return f"{what}{time:>10} {row['times_kgfast']:6.2f}x"
    if row["section"] == "load":
        p50, p90, p99 = (human_seconds(it) for it in row["latency_seconds"].values())
        return (
            f"{row['clients']:>3} clients  p50 {p50}  p90 {p90}  p99 {p99}  "
            f"{row['requests_per_s']:.0f} requests/s  {row['queries_per_call']:.1f} a call  "
            f"{row['errors']} errors"
        )
    if row["section"] == "delay":
        if "after" in row:
            worst = human_seconds(max(row["seconds"]))
            return f"batch {row['batch']:>4}  {row['after']} hung up: {worst} until an answer"
        p50, p90, p99 = (human_seconds(it) for it in row["latency_seconds"].values())
        return (
            f"batch {row['batch']:>4}  {row['asked']:<5} beside {row['beside']} large  "
            f"p50 {p50}  p90 {p90}  p99 {p99}"
        )
    held = human_bytes(row["resident_bytes"][-1])
    growth = row["growth_bytes"] / 2**20
    return f"{row['requests']:,} requests: {held}, {growth:+.1f} MiB since a tenth of them"


def main() -> int:
    """Measure, print, write; 1 if a request failed or an answer is wrong."""
    options, out, about = parse(), console(), facts("cpu", *PACKAGES)
    out.print(machine_line(about), style="dim")
    rows: list[dict[str, Any]] = []
    if options.sections and options.json is not None and options.json.exists():
        anew = {*options.sections, *(["ahead"] if "memory" in options.sections else [])}
        rows = [row for row in read_rows(options.json) if row["section"] not in anew]
    for name, section in SECTIONS.items():
        if options.sections and name not in options.sections:
            continue
        for row in section(options):
            out.print(describe(row))
            rows.append({"benchmark": "serve_speed"} | row | about)
        if options.json is not None:  # after each: a run that is stopped keeps what there is
            write_json(options.json, {"rows": rows})
    return int(any(row.get("errors") or row.get("wrong") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
