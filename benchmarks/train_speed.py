"""Compare training steps by kgfast with other ways to make them, in turns.

    python benchmarks/train_speed.py            everything; results/cpu-train-speed.json

`negatives`: RotatE with sampled negatives, against PyKEEN's sLCWA loop and a plain torch loop, as
it is and tuned. `epochs`: ComplEx with cross entropy over all entities, against dense torch,
LibKGE's product and PyKEEN's LCWA loop, an epoch from the median of its steps. `loops`:
the trainer against a user's loop: a public loss, `backward()`, a step of `RowAdam`.

Slow contenders make fewer steps, but whole ones. Memory is the peak of two steps beyond the model,
in a fresh process. Exit code 1 if kgfast's first loss is not the plain loop's.
"""

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from lib.benchmark import QUICK_SIZES, THREADS, Benchmark, Option, Options
from lib.columns import RACE
from lib.measure import PeakMemory, Stopwatch, Timing, in_child
from lib.peers import Missing, epochs
from lib.peers.steps import CONTENDERS, Loop, Work, loss_difference, rows_at_once
from lib.results import Row
from lib.tables import Columns

SIZES = (40_943, 11, 86_835, 0, 0)  # WN18RR's training set
TOLERANCE = 1e-4  # allowed for losses in float32
STEPS = {"kgfast": 10}  # steps a turn; peers make one
SLOW_SECONDS = 10.0
FB15K237_SIZES = (14_541, 237, 272_115, 0, 0)
EPOCH_STEPS = 10  # steps a turn
KVSALL = ("kgfast, KvsAll", "pykeen")  # contenders whose queries have all their answers
LOOP_STEPS = {False: 5, True: 1}  # steps a turn, by whether each triple has negatives of its own
# Times kgfast's; of negatives and of epochs.
GOALS = {"plain torch": ">= 30", "pykeen": ">= 10"}
EPOCH_GOALS = {"pykeen": ">= 3"}
LOOP_GOAL = ">= 0.95"  # times the trainer's steps


def negative_rows(options: Options) -> Iterator[Row]:
    """Yield a row for each contender of sampled negatives, and how far the losses are apart."""
    sizes = QUICK_SIZES if options.quick else SIZES
    work = Work(sizes, options.dim, options.batch, options.negatives)
    difference = loss_difference(work)
    for row in measure(options, work):
        yield row | {"loss_difference": difference}


def measure(options: Options, work: Work) -> list[dict[str, Any]]:
    """Return a row for each contender: time and memory, or why there is none."""
    rows, contenders = [], {}
    for name in ("kgfast", *options.peers):
        row = {
            "contender": name,
            "entities": work.sizes[0],
            "dim": work.dim,
            "batch": work.batch,
            "negatives": work.negatives,
        }
        rows.append(row)
        try:
            row["rows_at_once"] = rows_at_once(name, work)
            if not name.endswith("compiled"):  # a compiler has memory of its own
                row["memory"] = in_child(peak_of, name, work, row["rows_at_once"])
            contenders[name] = CONTENDERS[name](work, row["rows_at_once"])
        except (Missing, RuntimeError) as error:
            row |= {"seconds": None, "note": str(error)}
    timings = take_turns(contenders, options.rounds)
    for row in rows:
        if row["contender"] in timings:
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
    """Return seconds of a step of each contender; slow ones make one after a first step."""
    stopwatch, counts = Stopwatch("cpu"), {name: STEPS.get(name, 1) for name in contenders}
    first = {name: stopwatch.seconds(partial(it.steps, 1)) for name, it in contenders.items()}
    few = {name: 1 for name, seconds in first.items() if seconds > SLOW_SECONDS}
    turns = {name: partial(it.steps, counts[name]) for name, it in contenders.items()}
    timings = stopwatch.interleave(turns, rounds, few)
    return {name: timing.scaled(1 / counts[name]) for name, timing in timings.items()}


def peak_of(name: str, work: Work, part: int) -> dict[str, Any]:
    """Measure the peak memory of two steps beyond the model and the graph."""
    # imports modules that torch loads at first use
    CONTENDERS[name](Work(QUICK_SIZES, 2, 8, 4), 8).steps(1)
    contender = CONTENDERS[name](work, part)
    with PeakMemory("cpu") as peak:
        contender.steps(2)
    table = 4 * work.sizes[0] * 2 * work.dim
    return {"bytes": peak.bytes, "method": peak.method, "table_bytes": table}


def loop_rows(options: Options) -> Iterator[Row]:
    """Yield a row for the trainer and for a user's loop, with a pool and with negatives per row."""
    for per_row in (False, True):
        sizes = QUICK_SIZES if options.quick else SIZES
        work = Work(sizes, options.dim, options.batch, options.negatives, per_row)
        contenders = {"trainer": CONTENDERS["kgfast"](work, work.batch), "loop": Loop(work)}
        for contender in contenders.values():
            contender.steps(2)
        count = 1 if options.quick else LOOP_STEPS[per_row]
        turns = {name: partial(it.steps, count) for name, it in contenders.items()}
        timings = Stopwatch("cpu").interleave(turns, options.rounds)
        for name in contenders:
            step = timings[name].scaled(1 / count)
            yield {
                "benchmark": "loop_speed",
                "contender": name,
                "negatives": work.negatives,
                "shared": not per_row,
                "entities": work.sizes[0],
                "dim": work.dim,
                "batch": work.batch,
                "seconds": step.as_dict(),
                "steps_per_s": 1 / step.median,
                "of_trainers": timings["trainer"].median / timings[name].median,
            }


def epoch_rows(options: Options) -> Iterator[Row]:
    """Yield a row for each rank and contender of 1-vs-all, likewise."""
    sizes = QUICK_SIZES if options.quick else FB15K237_SIZES
    for rank in options.ranks:
        work = epochs.Work(sizes, rank, options.queries)
        rows = measure_epochs(work, options.rounds, 2 if options.quick else EPOCH_STEPS)
        difference = epochs.loss_difference(work)
        yield from (row | {"loss_difference": difference} for row in rows)


def measure_epochs(work: epochs.Work, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Return a row for each contender; turns include the work of a loop before its first step."""
    shape = {"entities": work.sizes[0], "triples": work.sizes[2], "rank": work.rank}
    about = {"benchmark": "epoch_speed", **shape, "batch": work.batch}
    rows, contenders = [], {}
    for name, make in epochs.CONTENDERS.items():
        rows.append(row := {**about, "contender": name})
        try:
            contenders[name] = make(work)
        except Missing as error:
            row |= {"seconds": None, "note": str(error)}
    for contender in contenders.values():
        contender.steps(1)
    turns = {name: partial(it.steps, steps) for name, it in contenders.items()}
    timings = Stopwatch("cpu").interleave(turns, rounds)
    for row in rows:
        if row["contender"] in timings:
            queries = contenders[row["contender"]].queries
            step = timings[row["contender"]].scaled(1 / steps)
            ours = timings["kgfast, KvsAll" if row["contender"] in KVSALL else "kgfast"]
            row |= {
                "seconds": step.as_dict(),
                "queries": queries,
                "queries_per_s": work.batch / step.median,
                "epoch_seconds": step.median * queries / work.batch,
                "times_kgfast": step.median * steps / ours.median,
            }
    return rows


SECTIONS = {"train_speed": "negatives", "epoch_speed": "epochs", "loop_speed": "loops"}
PEERS = [name for name in CONTENDERS if name != "kgfast"]
NEGATIVES: Columns = (
    *RACE[:1],
    ("rows:", "{rows_at_once}"),
    *RACE[1:3],
    ("steps/s:", "{steps_per_s:.3g}"),
    ("triples/s:", "{triples_per_s:,.0f}"),
    *RACE[3:],
    ("goal:", lambda row: GOALS.get(row["contender"], "")),
    ("memory:", "{memory[bytes]:bytes}"),
)
EPOCHS: Columns = (
    *RACE[:1],
    ("rank:", "{rank}"),
    *RACE[1:3],
    ("queries/s:", "{queries_per_s:,.0f}"),
    *RACE[3:],
    ("goal:", lambda row: EPOCH_GOALS.get(row["contender"], "")),
    ("an epoch of queries:", "{queries:,}"),
    ("takes:", "{epoch_seconds:time}"),
)
LOOPS: Columns = (
    *RACE[:1],
    ("negatives:", lambda row: "a pool" if row["shared"] else "per row"),
    ("a step:", "{seconds[median]:time}"),
    ("steps/s:", "{steps_per_s:.3g}"),
    ("of the trainer's:", "{of_trainers:.3f}"),
    ("goal:", lambda row: LOOP_GOAL if row["contender"] == "loop" else ""),
)
BENCHMARK = Benchmark(
    "train_speed",
    __doc__,
    {"negatives": negative_rows, "epochs": epoch_rows, "loops": loop_rows},
    options={
        "dim": Option("of RotatE", 500, 16),
        "batch": Option("triples of a step", 512, 64),
        "negatives": Option("of each triple", 1024, 32),
        "peers": Option("contenders", PEERS, keywords={"nargs": "*", "choices": PEERS}),
        "ranks": Option("of epochs", [100, 512], [8]),
        "queries": Option("of a step of an epoch", 500, 64),
        "rounds": Option("turns of each contender", 3, 2),
        "threads": THREADS,
    },
    tables={
        "negatives": (
            "RotatE training steps, dim {dim}, {batch} triples x {negatives} negatives",
            NEGATIVES,
        ),
        "epochs": ("loss over all {entities:,} entities, ComplEx, batch {batch}", EPOCHS),
        "loops": ("the trainer and a user's loop, RotatE, dim {dim}, batch {batch}", LOOPS),
    },
    section_of=lambda row: SECTIONS[row["benchmark"]],
    is_right=lambda row: row.get("loss_difference", 0) < TOLERANCE,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
