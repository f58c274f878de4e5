"""Compare messages of third-order paths with holding all paths: time and peak memory.

    python benchmarks/paths_speed.py            10^6 paths, and what a batch of graphs has

One round of SGMP's message (examples/sgmp), hidden width 64 and 20 radial functions, forward and
backward; the naive way gives the module all paths at once, as its authors do. Memory is that of a
fresh process beyond model, gradients and graph; times are taken in turns.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "sgmp"))

from graphs import batch_of, grow
from sgmp import SGMP

from kgfast.extras.paths import Paths
from lib.benchmark import Benchmark, Option, Options
from lib.columns import PATHS
from lib.machine import available_memory
from lib.measure import PeakMemory, Timing, in_child_or_note, timed

BATCH, NODES, WIDTH, CENTRES = 16, 100, 64, 20
# Edges of each of 16 graphs: the report's fewest, about 10^6 paths, and its most.
EDGES = (200, 900, 2000)
MOST_BYTES = 128 << 20  # goal of a million paths


@dataclass(frozen=True)
class Job:
    """One contender of one work."""

    edges: int
    contender: str  # kgfast or held
    nodes: int = NODES
    batch: int = BATCH

    def graph(self) -> Any:
        """Return the graphs, side by side."""
        generator = torch.Generator().manual_seed(0)
        return batch_of([grow(self.nodes, self.edges, generator) for _ in range(self.batch)])

    def run(self) -> Callable[[], float]:
        """Return a round of messages, forward and backward; gradients are there already."""
        torch.manual_seed(0)
        graph, model = self.graph(), SGMP(2, WIDTH, 1, CENTRES, 4.0)
        interaction = model.interactions[0]
        states = torch.randn(len(graph.positions), WIDTH, requires_grad=True)
        for it in (states, *interaction.parameters()):
            it.grad = torch.zeros_like(it)
        total = model.streamed if self.contender == "kgfast" else model.held

        def run() -> float:
            value = total(interaction, states, graph.positions, graph.edge_index)
            loss = value.square().mean()
            loss.backward()
            return float(loss.detach())

        return run


def warm_up(job: Job) -> None:
    """Load what the first call of all loads."""
    Job(job.nodes + 3, job.contender, job.nodes, 1).run()()


def peak(job: Job) -> dict[str, Any]:
    """Measure peak memory, in a process of its own."""
    warm_up(job)
    run = job.run()
    with PeakMemory("cpu") as memory:
        loss = run()
    return {"bytes": memory.bytes, "method": memory.method, "loss": loss}


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of edges and contender."""
    for edges in options.edges:
        work = Job(edges, "kgfast", 12, 2) if options.quick else Job(edges, "kgfast")
        yield from of_work(work, options.rounds)


def of_work(work: Job, rounds: int) -> Iterable[dict[str, Any]]:
    """Measure both contenders of one work: memory, and where both fit their turns."""
    graph = work.graph()
    paths = len(Paths(graph.edge_index, len(graph.positions)))
    formula = 4 * 7 * WIDTH * paths
    jobs = {it: replace(work, contender=it) for it in ("kgfast", "held")}
    rows = {}
    for name, job in jobs.items():
        row = {"section": "sgmp", "contender": name, "edges": work.edges, "paths": paths}
        row |= {"batch": work.batch, "nodes": work.nodes, "seconds": None, "bytes": None}
        rows[name] = row | {"formula": {"paths x 7 hidden": formula}}
        if name == "held" and 5 * formula > available_memory():
            rows[name]["note"] = "does not fit in memory"
        else:
            rows[name] |= in_child_or_note(peak, job)
    if rows["held"]["bytes"] is None:
        return rows.values()
    runs = {}
    for name, job in jobs.items():
        warm_up(job)
        runs[name] = partial(timed, job.run())
    turns = [[(name, run()[1]) for name, run in runs.items()] for _ in range(rounds)]
    for kind in ("seconds", "cpu_seconds"):
        for name, row in rows.items():
            taken = [found[kind] for turn in turns for whose, found in turn if whose == name]
            row[kind] = Timing.of(taken).as_dict()
        ours, theirs = (rows[it][kind]["median"] for it in ("kgfast", "held"))
        rows["kgfast"][f"{kind}_ratio"] = ours / theirs
    return rows.values()


BENCHMARK = Benchmark(
    "paths_speed",
    __doc__,
    {"sgmp": rows_of},
    options={
        "edges": Option("of each of 16 graphs", list(EDGES), [30]),
        "rounds": Option("turns of each contender", 3, 1),
    },
    tables=(("edges:", "{batch} x {edges:,}"), *PATHS),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
