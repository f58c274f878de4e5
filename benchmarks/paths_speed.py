"""Messages of third-order paths: time and peak memory beside holding all paths.

    python benchmarks/paths_speed.py            10^6 paths, and what a batch of graphs has
    python benchmarks/paths_speed.py --quick    a smoke test

One round of SGMP's message (examples/sgmp), hidden width 64 and 20 radial functions, forward and
backward. The naive one is the same module called with all paths at once, as its authors do: the
[paths, 7 hidden] tensor and what follows are held until the backward. Memory is that of a fresh
process each, beyond the model, its gradients and the graph; times are of one process, in turns.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "sgmp"))

from graphs import batch_of, grow
from sgmp import SGMP

from kgfast.extras.paths import Paths
from lib import options as known_options
from lib.machine import available_memory, facts, machine_line
from lib.measure import ChildDied, PeakMemory, Stopwatch, Timing, in_child
from lib.results import write_json
from lib.tables import console, human_bytes, new_table

BATCH, NODES, WIDTH, CENTRES = 16, 100, 64, 20
# Edges of each of 16 graphs: the report's fewest, about 10^6 paths, and its most.
EDGES = (200, 900, 2000)
GOALS = {"bytes": 128 << 20, "ratio": 1.2}


@dataclass(frozen=True)
class Job:
    """One contender of one work."""

    edges: int
    contender: str  # kgfast or held
    nodes: int = NODES
    batch: int = BATCH

    def graph(self) -> Any:
        """The graphs, side by side."""
        generator = torch.Generator().manual_seed(0)
        return batch_of([grow(self.nodes, self.edges, generator) for _ in range(self.batch)])

    def run(self) -> Callable[[], float]:
        """A round of messages, forward and backward; gradients are there already."""
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
    """What the first call of all loads."""
    Job(job.nodes + 3, job.contender, job.nodes, 1).run()()


def peak(job: Job) -> dict[str, Any]:
    """Peak memory, of a process of its own."""
    warm_up(job)
    run = job.run()
    with PeakMemory("cpu") as memory:
        loss = run()
    return {"bytes": memory.bytes, "method": memory.method, "loss": loss}


def race(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, dict[str, Any]]:
    """Seconds of turns: by the clock, and of the process's threads, which others disturb less."""
    wall: dict[str, list[float]] = {name: [] for name in runs}
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.process_time()
            wall[name].append(Stopwatch("cpu").seconds(run))
            cpu[name].append(time.process_time() - start)
    return {
        name: {
            "seconds": Timing.of(wall[name]).as_dict(),
            "cpu_seconds": Timing.of(cpu[name]).as_dict(),
        }
        for name in runs
    }


def rows_of(work: Job, rounds: int) -> list[dict[str, Any]]:
    """Both contenders of one work."""
    graph = work.graph()
    paths = len(Paths(graph.edge_index, len(graph.positions)))
    formula = 4 * 7 * WIDTH * paths
    jobs = {it: Job(work.edges, it, work.nodes, work.batch) for it in ("kgfast", "held")}
    rows = {}
    for name, job in jobs.items():
        row = {"section": "sgmp", "contender": name, "edges": work.edges, "paths": paths}
        row |= {"batch": work.batch, "nodes": work.nodes, "seconds": None, "bytes": None}
        rows[name] = row | {"formula": {"paths x 7 hidden": formula}}
        if name == "held" and 5 * formula > available_memory():
            rows[name]["note"] = "does not fit in memory"
            continue
        try:
            rows[name] |= in_child(peak, job)
        except (ChildDied, RuntimeError) as error:
            rows[name]["note"] = str(error).splitlines()[0][:80]
    if rows["held"]["bytes"] is not None:  # a race of two, else nothing
        for job in jobs.values():
            warm_up(job)
        runs = {name: job.run() for name, job in jobs.items()}
        for name, found in race(runs, rounds).items():
            rows[name] |= found
        for kind in ("seconds", "cpu_seconds"):
            ours, theirs = (rows[it][kind]["median"] for it in ("kgfast", "held"))
            rows["kgfast"][f"{kind}_ratio"] = ours / theirs
    return list(rows.values())


def table_of(rows: list[dict[str, Any]]) -> Table:
    """What the rows say."""
    title = "a round of SGMP, forward and backward"
    names = ("edges", "paths", "peak", "seconds", "CPU seconds", "ratio of these")
    table = new_table(title, "contender", *names)
    for row in rows:
        timed = row["seconds"] is not None
        table.add_row(
            row["contender"],
            f"{row['batch']} x {row['edges']:,}",
            f"{row['paths']:,}",
            row.get("note") or human_bytes(row["bytes"]),
            f"{row['seconds']['median']:.1f}" if timed else "",
            f"{row['cpu_seconds']['median']:.1f}" if timed else "",
            f"{row['cpu_seconds_ratio']:.2f}x" if "cpu_seconds_ratio" in row else "",
        )
    return table


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = known_options.new_parser(__doc__, quick="one tiny graph: seconds")
    parser.add_argument("--edges", type=int, nargs="+", metavar="E", help="of each of 16 graphs")
    parser.add_argument("--rounds", type=int, help="turns of each contender; 3 unless given")
    known_options.add_outputs(parser, "paths-speed", plot=False)
    options = parser.parse_args(arguments)
    known_options.set_defaults(
        options,
        whole={"edges": list(EDGES), "rounds": 3},
        quick={"edges": [30], "rounds": 1},
    )
    known_options.check_positive(parser, options, "edges", "rounds")
    known_options.set_outputs(options, "paths-speed")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write."""
    options, out = parsed(arguments), console()
    about = facts("cpu")
    out.print(machine_line(about))
    rows = []
    for edges in options.edges:
        work = Job(edges, "kgfast", 12, 2) if options.quick else Job(edges, "kgfast")
        rows += [{"benchmark": "paths_speed", **it} for it in rows_of(work, options.rounds)]
    out.print(table_of(rows))
    if options.json:
        write_json(options.json, {"goals": GOALS, "rows": [row | about for row in rows]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
