"""Epochs of 1-vs-all training, for train_speed.py: measured, and shown."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console

from lib.measure import Stopwatch
from lib.peers import Missing
from lib.peers.epochs import CONTENDERS, Work
from lib.tables import human_seconds, new_table, spread, style_of

GOALS = {"pykeen": 3}  # times kgfast's


def measure_epochs(work: Work, rounds: int, steps: int) -> list[dict[str, Any]]:
    """A row for each contender: seconds of a step, and of as many as an epoch has.

    A turn is so many steps; what a loop does before its first one is in them, too.
    """
    rows, contenders = [], {}
    for name, make in CONTENDERS.items():
        row = {
            "benchmark": "epoch_speed",
            "contender": name,
            "entities": work.sizes[0],
            "triples": work.sizes[2],
            "rank": work.rank,
            "batch": work.batch,
        }
        rows.append(row)
        try:
            contenders[name] = make(work)
        except Missing as error:
            row |= {"seconds": None, "note": str(error)}
    for contender in contenders.values():
        contender.steps(1)
    work_of = {name: partial(it.steps, steps) for name, it in contenders.items()}
    timings = Stopwatch("cpu").interleave(work_of, rounds=rounds)
    for row in rows:
        if row["contender"] not in timings:
            continue
        queries = contenders[row["contender"]].queries
        step = timings[row["contender"]].scaled(1 / steps)
        row |= {
            "seconds": step.as_dict(),
            "queries": queries,
            "queries_per_s": work.batch / step.median,
            "epoch_seconds": step.median * queries / work.batch,
            "times_kgfast": step.median * steps / timings["kgfast"].median,
        }
    return rows


def show_epochs(out: Console, rows: Sequence[Mapping[str, Any]], work: Work) -> None:
    """The rows as a table."""
    table = new_table(
        f"1-vs-all, ComplEx rank {work.rank}, batch {work.batch}, {work.sizes[0]:,} entities",
        *("", "step", "min .. max", "queries/s", "x kgfast", "goal", "an epoch of", "takes"),
    )
    for row in rows:
        if row["seconds"] is None:
            table.add_row(row["contender"], row["note"], style=style_of(row))
            continue
        goal = GOALS.get(row["contender"])
        table.add_row(
            row["contender"],
            human_seconds(row["seconds"]["median"]),
            spread(row["seconds"]),
            f"{row['queries_per_s']:,.0f}",
            f"{row['times_kgfast']:.1f}",
            "" if goal is None else f">= {goal}",
            f"{row['queries']:,} queries",
            human_seconds(row["epoch_seconds"]),
            style=style_of(row),
        )
    out.print(table)
