"""Training steps by kgfast and what a user could run instead, in turns.

    python benchmarks/train_speed.py            everything; results/cpu-train-speed.json and .png
    python benchmarks/train_speed.py --quick    a smoke test: a tiny graph, seconds

`negatives`: RotatE with sampled negatives, against PyKEEN's sLCWA loop and a plain torch loop.
`epochs`: ComplEx with cross entropy over all entities, against dense torch, LibKGE's product and
PyKEEN's LCWA loop; an epoch's time is that of its steps, by the median of those that were made.

All contenders have the same batch, number of negatives, dimension and threads; they take turns in
one process, and medians are compared. The plain loop comes as it is, and tuned. Slow contenders
make fewer steps, but always whole ones: nothing is extrapolated.
Memory is measured in a process of its own for each: the peak of two steps beyond the model,
optimizer state included. The loss of kgfast's first batch is held against the plain loop's (exit
code 1 if they differ).
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from rich.console import Console

from lib import options as known_options
from lib.epochs import measure_epochs, show_epochs
from lib.machine import facts, machine_line
from lib.measure import ChildDied, PeakMemory, Stopwatch, Timing, in_child
from lib.options import QUICK_SIZES
from lib.peers import Missing, epochs
from lib.peers.steps import CONTENDERS, Work, loss_difference, rows_at_once
from lib.results import draw, read_rows, write_json
from lib.tables import console, human_bytes, human_seconds, new_table, spread, style_of

SIZES = (40_943, 11, 86_835, 0, 0)  # of WN18RR's training set
TOLERANCE = 1e-4  # of losses in float32
STEPS = {"kgfast": 10}  # of a turn; peers make one
SLOW_SECONDS = 10.0
GOALS = {"plain torch": 30, "pykeen": 10}
FB15K237_SIZES = (14_541, 237, 272_115, 0, 0)
RANKS = (100, 512)
EPOCH_STEPS = 20  # of a turn
WORKS = ("negatives", "epochs")


def measure(options: argparse.Namespace, work: Work) -> list[dict[str, Any]]:
    """A row for each contender: time and memory, or why there is none."""
    rows, contenders = [], {}
    for name in ("kgfast", *options.peers):
        row = {
            "benchmark": "train_speed",
            "contender": name,
            "entities": work.sizes[0],
            "dim": work.dim,
            "batch": work.batch,
            "negatives": work.negatives,
        }
        rows.append(row)
        try:
            row["rows_at_once"] = rows_at_once(name, work)
            row["memory"] = in_child(peak_of, name, work, row["rows_at_once"])
            contenders[name] = CONTENDERS[name](work, row["rows_at_once"])
        except (Missing, ChildDied, RuntimeError) as error:
            row |= {"seconds": None, "note": str(error)}
    timings = take_turns(contenders, options.rounds)
    for row in rows:
        if row["contender"] not in timings:
            continue
        timing = timings[row["contender"]]
        row |= {
            "seconds": timing.as_dict(),
            "steps_per_s": 1 / timing.median,
            "triples_per_s": work.batch / timing.median,
            "scores_per_s": work.scores / timing.median,
            "times_kgfast": timing.median / timings["kgfast"].median,
        }
    return rows


def take_turns(contenders: Mapping[str, Any], rounds: int) -> dict[str, Timing]:
    """Seconds of a step of each contender; for slow ones the first step is all."""
    stopwatch = Stopwatch("cpu")
    first = {
        name: stopwatch.seconds(partial(contender.steps, 1))
        for name, contender in contenders.items()
    }
    seconds = {name: [it] if it > SLOW_SECONDS else [] for name, it in first.items()}
    for _ in range(rounds):
        for name, contender in contenders.items():
            if first[name] <= SLOW_SECONDS:
                count = STEPS.get(name, 1)
                seconds[name].append(stopwatch.seconds(partial(contender.steps, count)) / count)
    return {name: Timing.of(values) for name, values in seconds.items()}


def peak_of(name: str, work: Work, part: int) -> dict[str, Any]:
    """Peak memory of two steps beyond the model and the graph."""
    CONTENDERS[name](Work(QUICK_SIZES, 2, 8, 4), 8).steps(1)  # what torch imports at first use
    contender = CONTENDERS[name](work, part)
    with PeakMemory("cpu") as peak:
        contender.steps(2)
    table = 4 * work.sizes[0] * 2 * work.dim
    return {"bytes": peak.bytes, "method": peak.method, "table_bytes": table}


def show(out: Console, rows: Sequence[Mapping[str, Any]], work: Work) -> None:
    """The rows as a table."""
    title = (
        f"RotatE training steps, dim {work.dim}, {work.batch} triples x {work.negatives} negatives"
    )
    table = new_table(
        title,
        *("", "rows", "step", "min .. max", "steps/s", "triples/s", "x kgfast", "goal", "memory"),
    )
    for row in rows:
        if row["seconds"] is None:
            table.add_row(row["contender"], row["note"], style=style_of(row))
            continue
        goal = GOALS.get(row["contender"])
        table.add_row(
            row["contender"],
            str(row["rows_at_once"]),
            human_seconds(row["seconds"]["median"]),
            spread(row["seconds"]),
            f"{row['steps_per_s']:.3g}",
            f"{row['triples_per_s']:,.0f}",
            f"{row['times_kgfast']:.1f}",
            "" if goal is None else f">= {goal}",
            human_bytes(row["memory"]["bytes"]),
            style=style_of(row),
        )
    out.print(table)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = known_options.new_parser(__doc__)
    parser.add_argument(
        "--works", nargs="+", choices=WORKS, default=WORKS, help="both unless given"
    )
    parser.add_argument("--dim", type=int, help="500 unless given")
    parser.add_argument("--batch", type=int, help="triples of a step; 512 unless given")
    parser.add_argument("--negatives", type=int, help="of each triple; 1024 unless given")
    peers = [name for name in CONTENDERS if name != "kgfast"]
    parser.add_argument(
        "--peers", nargs="*", choices=peers, default=peers, help="all of them unless given"
    )
    parser.add_argument("--ranks", type=int, nargs="+", help="of epochs; 100 and 512 unless given")
    parser.add_argument("--queries", type=int, help="of a step of an epoch; 500 unless given")
    parser.add_argument("--rounds", type=int, help="turns of each contender; 3 unless given")
    parser.add_argument("--threads", type=int, help="torch's unless given")
    known_options.add_outputs(parser, "train-speed")
    options = parser.parse_args(arguments)
    whole = {"dim": 500, "batch": 512, "negatives": 1024, "rounds": 3, "queries": 500}
    quick = {"dim": 16, "batch": 64, "negatives": 32, "rounds": 2, "queries": 64}
    ranks = {"ranks": RANKS}, {"ranks": (8,)}
    known_options.set_defaults(options, whole | ranks[0], quick | ranks[1])
    known_options.check_positive(parser, options, *whole)
    if min(options.ranks) < 1:
        parser.error("--ranks must be at least 1")
    known_options.set_outputs(options, "train-speed")
    return options


def main() -> int:
    """Measure, print, write; 1 if the losses differ."""
    options = parse()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    out, about = console(), facts("cpu")
    out.print(machine_line(about), style="dim")
    works = {"negatives": _negatives, "epochs": _epochs}
    found = [works[name](options, out) for name in options.works]
    rows = [row | about for part, _ in found for row in part]
    if options.json is not None:
        write_json(options.json, {"rows": [*_others(options), *rows]})
    if "negatives" in options.works:
        draw("draw_training", _of(rows, "train_speed"), options.plot, out)
    difference = max(it for _, it in found)
    if not (math.isfinite(difference) and difference < TOLERANCE):
        out.print(f"[bold white on red] THE LOSS DIFFERS BY {difference:.1e}: this is a bug ")
        return 1
    return 0


def _negatives(options: argparse.Namespace, out: Console) -> tuple[list[dict[str, Any]], float]:
    """The rows of sampled negatives, which are shown, and how far the losses are apart."""
    sizes = QUICK_SIZES if options.quick else SIZES
    work = Work(sizes, options.dim, options.batch, options.negatives)
    difference = loss_difference(work)
    rows = measure(options, work)
    show(out, rows, work)
    return [row | {"loss_difference": difference} for row in rows], difference


def _epochs(options: argparse.Namespace, out: Console) -> tuple[list[dict[str, Any]], float]:
    """The rows of 1-vs-all, likewise."""
    sizes, found = QUICK_SIZES if options.quick else FB15K237_SIZES, []
    for rank in options.ranks:
        work = epochs.Work(sizes, rank, options.queries)
        rows = measure_epochs(work, options.rounds, 2 if options.quick else EPOCH_STEPS)
        show_epochs(out, rows, work)
        difference = epochs.loss_difference(work)
        found += [row | {"loss_difference": difference} for row in rows]
    return found, max(row["loss_difference"] for row in found)


def _others(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the file whose work is not done now, and stay."""
    kept = {"negatives": "train_speed", "epochs": "epoch_speed"}
    names = [name for work, name in kept.items() if work not in options.works]
    old = read_rows(options.json) if options.json.exists() else []
    return [row for row in old if row["benchmark"] in names]


def _of(rows: list[dict[str, Any]], benchmark: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["benchmark"] == benchmark]


if __name__ == "__main__":
    sys.exit(main())
