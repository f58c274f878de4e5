"""Compare the best 10 by kgfast with those of other libraries at their best, in turns.

    python benchmarks/peers_speed.py             random tables; writes results/cpu-peers-speed.json
    python benchmarks/peers_speed.py --run DIR   tables of trained runs as well (may be repeated)

Every peer of lib/peers/nearest.py first tries its options on the same queries; peers that take more
than three times as long as the fastest one then take no turns (`slow`: their seconds). A turn
answers some queries, in calls of so many; the row has the seconds of a call. kgfast answers
`kgfast.topk` of ids, with a `kgfast.Index` and without: a call makes its queries, which peers are
given. With one thread, seconds are of the process's CPU time; with more, of the clock. `bare loop`
counts rows that are as good as the tenth best (lib/bare_loop.cpp). Exit code 1 if the index changes
an answer, or a peer finds other scores.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kgfast
from lib.benchmark import THREADS, Benchmark, Option, Options
from lib.columns import PEERS
from lib.indexed import RowsModel, normal_like
from lib.measure import Stopwatch, Timing, take_turns
from lib.peers import Missing, bare, nearest
from lib.peers.nearest import Search
from lib.peers.ranks import Work
from lib.results import Row, engine_of

CALLS = {1: 8, 16: 2, 64: 1}  # calls of a turn, by the queries of a call
RANDOM = {"dot": (1_000_000, 128), "l2": (200_000, 128), "rotate": (40_943, 256)}
SLOW = 3.0  # times the fastest peer: slower ones take no turns
QUICK = (600, 16)
LOOP = "bare loop"


@dataclass(frozen=True)
class Asked:
    """A model, and ids whose queries peers are given."""

    model: Any
    ids: dict[str, Tensor]  # heads and relations, [Q]
    search: Search

    def first(self, count: int) -> "Asked":
        """Return the first queries."""
        search = Search(self.search.queries[:count], self.search.table, self.search.k)
        return Asked(self.model, {name: it[:count] for name, it in self.ids.items()}, search)


def works(options: Options) -> Iterator[tuple[dict[str, Any], Asked]]:
    """Yield tables and queries."""
    count = max(batch * calls for batch, calls in CALLS.items())
    generator = torch.Generator().manual_seed(0)
    for score, sizes in RANDOM.items():
        if score in options.scores:
            rows, dim = QUICK if options.quick else sizes
            width = dim * (2 if score == "rotate" else 1)
            queries, table = (torch.randn(n, width, generator=generator) for n in (count, rows))
            yield {"table": "normal"}, asked_rows(Search(queries, table, options.k), score)
    for run in options.run or ():
        loaded = kgfast.load_run(run)
        if loaded.dataset is None:
            raise SystemExit(f"--run {run}: its dataset is not at hand")
        model, hrt = loaded.model, loaded.dataset.test.hrt
        chosen = torch.randperm(len(hrt), generator=generator)[:count]
        heads, relations, _ = hrt[chosen].T.contiguous()
        with torch.no_grad():
            queries = model.queries(heads, relations, "tail").float().contiguous()
            table = model.candidates("tail").table.float().contiguous()
        told = {"table": f"trained on {loaded.dataset.name}", "run": run.name}
        ids = {"heads": heads, "relations": relations}
        yield told, Asked(model, ids, Search(queries, table, options.k))
        if options.entities and model.score == "dot":
            told = told | {"table": f"normal, covariance of {loaded.dataset.name}"}
            alike = normal_like(table.double().numpy(), options.entities)
            table = torch.from_numpy(alike.astype("float32"))
            yield told, asked_rows(Search(queries, table, options.k), "dot")


def asked_rows(search: Search, score: str) -> Asked:
    """Return rows whose queries are given, one for each id."""
    count = len(search.queries)
    ids = {"heads": torch.arange(count), "relations": torch.zeros(count, dtype=torch.int64)}
    return Asked(RowsModel(search, score), ids, search)


def rows_of(options: Options) -> Iterator[Row]:
    """Yield a row for each table, number of threads and number of queries of a call."""
    both = list(dict.fromkeys((1, torch.get_num_threads())))
    before = torch.get_num_threads()
    for told, asked in works(options):
        entities, width = asked.search.table.shape
        told |= {"score": asked.model.score, "entities": entities, "k": options.k}
        told |= {"dim": width // (2 if asked.model.score == "rotate" else 1)}
        index = kgfast.Index(asked.model)
        try:
            for threads in both:
                torch.set_num_threads(threads)
                for batch in options.batches:
                    some = asked.first(batch * CALLS[batch])
                    row = row_of(some, index, batch, options)
                    yield told | {"threads": threads, "batch": batch} | row
        finally:
            torch.set_num_threads(before)


def row_of(asked: Asked, index: kgfast.Index, batch: int, options: Options) -> dict[str, Any]:
    """Choose the options of each peer, and let all take turns."""
    score, search, calls = asked.model.score, asked.search, CALLS[batch]
    is_alone = torch.get_num_threads() == 1
    clock = Stopwatch("cpu", time.process_time if is_alone else time.perf_counter).seconds

    def own(index: kgfast.Index | None) -> Tensor:
        found = []
        for at in range(0, batch * calls, batch):
            ids = {name: it[at : at + batch] for name, it in asked.ids.items()}
            found.append(kgfast.topk(asked.model, **ids, k=search.k, index=index).ids)
        return torch.cat(found)

    def by(way: nearest.Way) -> Tensor:
        return torch.cat([way(it) for it in search.queries.split(batch)])

    works: dict[str, Callable[[], Any]] = {
        "index": partial(own, index),
        "table": partial(own, None),
    }
    found: dict[str, tuple[float, nearest.Way]] = {}
    missing = {}
    for name in options.peers:
        limit = min((it for it, _ in found.values()), default=math.inf)
        try:
            found[name] = nearest.best_way(name, search, score, batch, clock, limit)
        except Missing as error:
            missing[name] = str(error)
    fastest = min(seconds for seconds, _ in found.values())
    slow = {name: it for name, (it, _) in found.items() if it > SLOW * fastest}
    chosen = {name: way.options for name, (_, way) in found.items() if name not in slow}
    works |= {name: partial(by, found[name][1]) for name in chosen}
    answers = {name: work() for name, work in works.items()}
    try:
        works[LOOP] = loops(search, answers["index"][:, -1], score, batch)
    except Missing as error:
        missing[LOOP] = str(error)
    turns = take_turns(works, options.rounds + 1, clock)
    seconds = {
        name: Timing.of([it / calls for it in values[1:]]).as_dict()  # the first warms up
        for name, values in turns.items()
    }
    ours = seconds["index"]["median"]
    best = min(chosen, key=lambda name: float(seconds[name]["median"]))
    return {
        "seconds": seconds,
        "options": chosen,
        "missing": missing,
        "slow": slow,
        "best_peer": best,
        "times_index": {name: it["median"] / ours for name, it in seconds.items()},
        "equal": torch.equal(answers["index"], answers["table"]),
        "wrong": sum(
            nearest.different_scores(search, score, answers["index"], answers[name])
            for name in chosen
        ),
    }


def loops(search: Search, last: Tensor, score: str, batch: int) -> Callable[[], None]:
    """Return a bare loop for each call: it counts the rows better than the k-th best."""
    panels = bare.panels_of(search.table, score)
    calls = [
        bare.Loop(Work(queries, search.table, targets), score, panels)
        for queries, targets in zip(search.queries.split(batch), last.split(batch), strict=True)
    ]

    def run() -> None:
        for call in calls:
            call()

    return run


def stays(row: Row, rows: list[Row], options: Options) -> bool:
    """Return whether a row of the old file is of another machine or table."""
    return _work(row) not in map(_work, rows)


def _work(row: Row) -> tuple[Any, ...]:
    return engine_of(row), row["table"], row["score"], row.get("run"), row["threads"]


BENCHMARK = Benchmark(
    "peers_speed",
    __doc__,
    {"best": rows_of},
    options={
        "scores": Option("of random tables", list(RANDOM), keywords={"nargs": "*"}),
        "run": Option("the folder of a run", keywords={"type": Path, "action": "append"}),
        "entities": Option("rows of normal numbers like each trained table of dot; 0: none", 0),
        "peers": Option("peers", list(nearest.PEERS), ["torch", "faiss Flat", "faiss Panorama"]),
        "batches": Option("queries of a call", list(CALLS), keywords={"choices": list(CALLS)}),
        "k": Option("answers to a query", 10, 3),
        "rounds": Option("turns of each contender", 7, 2),
        "threads": THREADS,
    },
    tables=PEERS,
    stays=stays,
    packages=("faiss-cpu", "numkong"),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
