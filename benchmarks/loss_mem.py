"""Losses over all entities, and sampled scores: peak memory and time of forward and backward.

    python benchmarks/loss_mem.py                                    the whole table
    python benchmarks/loss_mem.py --json loss.json --plot loss.png   files are written when named
    python benchmarks/loss_mem.py --quick                            a smoke test

Binary cross entropy of every entity, with dense labels and scores in torch (eager and compiled)
beside kgfast; RotatE's dense form is a [batch, entities, dim] tensor, so torch takes it in chunks
of entities, of which one is measured and the whole extrapolated. An output head, smoothed cross
entropy and the best output. Scores of sampled candidates. In the races all contenders take turns;
memory, and all else, is measured in a fresh process per contender.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from lib import options as known_options
from lib.machine import available_memory, facts, machine_line
from lib.measure import SLOW_SECONDS, ChildDied, PeakMemory, Stopwatch, Timing, in_child
from lib.peers import losses as peers
from lib.peers.losses import Run, Work
from lib.results import draw, write_json
from lib.tables import (
    LABELS,
    billions,
    console,
    human_bytes,
    median,
    new_table,
    ratio_lines,
    spread,
    style_of,
)

BATCHES, ENTITIES, DIM = (256, 512, 1024), (10_000, 50_000), 200
HEAD = (40_000, 50_011, 64)  # rows, outputs, width
RACES = {  # batch, rows of the table, dim, candidates of each query
    "pairwise": ("rotate", 512, 1_024, 512, None),
    "indexed": ("rotate", 512, 40_943, 512, 256),
    "bce dot": ("dot", 512, 40_943, 200, None),
    "bce rotate": ("rotate", 512, 40_943, 200, None),
}
QUICK_RACES = {
    "pairwise": ("rotate", 8, 16, 8, None),
    "indexed": ("rotate", 8, 40, 8, 4),
    "bce dot": ("dot", 8, 60, 8, None),
    "bce rotate": ("rotate", 8, 60, 8, None),
}
GOALS = {
    ("pairwise", "eager"): ">= 20x",
    ("pairwise", "compile"): ">= 4x",
    ("indexed", "eager"): ">= 8x",
    ("bce dot", "eager"): ">= 1x",
    ("bce rotate", "eager"): ">= 10x",
}
ROUNDS = 7
NAMES = LABELS | {"eager": "torch, eager", "kgfast": "kgfast"}


@dataclass(frozen=True)
class Job:
    """One contender of one work, for a process of its own."""

    section: str  # bce, head or top
    score: str
    batch: int
    entities: int
    dim: int
    contender: str  # kgfast, eager or compile
    device: str
    rounds: int

    def work(self) -> Work:
        """The operands."""
        work = Work.random(self.score, self.batch, self.entities, self.dim, self.device)
        return replace(work, smoothing=0.1) if self.section == "head" else work

    def run(self, work: Work) -> tuple[Run, float]:
        """The contender, and how many times its work is the whole."""
        if self.contender == "kgfast":
            ours: dict[str, Callable[[Work], float]] = {
                "bce": peers.kgfast_bce,
                "head": peers.kgfast_cross_entropy,
                "top": peers.kgfast_top,
            }
            return partial(ours[self.section], work), 1.0
        if self.section != "bce":
            dense = peers.head_rows if self.section == "head" else peers.top_rows
            return dense(work), max(1.0, self.batch / peers.HEAD_ROWS)
        if self.score == "rotate":
            return peers.chunk_of_rotate_bce(work), self.entities / peers.rotate_chunk(work)
        return peers.dense_bce(work, self.contender == "compile"), 1.0


def measure(job: Job) -> dict[str, Any]:
    """Peak beyond operands and gradients, and seconds."""
    if job.contender == "compile":
        torch._dynamo.config.cache_size_limit = 64
    work = job.work()
    run, parts = job.run(work)
    if job.contender == "compile":
        run()  # compiling is not the work
    else:
        small = replace(job, batch=2, entities=min(64, job.entities), rounds=1)
        small.run(small.work())[0]()
    work.queries.grad, work.table.grad = None, None
    stopwatch = Stopwatch(job.device)
    losses: list[float] = []
    with PeakMemory(job.device) as peak:
        first = stopwatch.seconds(lambda: losses.append(run()))
    gradients = 0 if job.section == "top" else _bytes(work.queries) + _bytes(work.table)
    rounds = job.rounds if first < SLOW_SECONDS else 1
    timing = Timing.of([stopwatch.seconds(run) for _ in range(rounds)])
    return {
        "bytes": max(0, peak.bytes - gradients),
        "method": peak.method,
        "seconds": timing.scaled(parts).as_dict(),
        "extrapolated": parts > 1,
        "loss": losses[0] if parts == 1 else None,
    }


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def grid(options: argparse.Namespace) -> Iterator[Job]:
    """The works of the table; dense torch where its formula fits the memory."""
    batches, entities, dim = (BATCHES, ENTITIES, DIM) if not options.quick else ((8,), (50,), 6)
    rounds = options.rounds
    for score in ("dot", "rotate"):
        for count in entities:
            for batch in batches:
                job = Job("bce", score, batch, count, dim, "kgfast", options.device, rounds)
                yield job
                yield replace(job, contender="eager")
                if score == "dot" and options.compile:
                    yield replace(job, contender="compile")
    head = (30, 51, 8) if options.quick else HEAD
    for section in ("head", "top"):
        for contender in ("kgfast", "eager"):
            yield Job(section, "dot", *head, contender, options.device, min(2, rounds))


def formula_bytes(job: Job) -> dict[str, int]:
    """What the dense form holds: labels, scores, two temporaries; one [B, N, D] tensor."""
    pairs = job.batch * job.entities
    if job.section == "top":
        return {"dense": 4 * pairs}
    if job.section == "head":
        return {"dense": 3 * 4 * pairs}  # logits, their log softmax, its gradient
    dense = {"dense": 4 * 4 * pairs}
    return dense | {"tensor": 2 * 4 * pairs * job.dim} if job.score == "rotate" else dense


def measure_grid(out: Console, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for every job."""
    for job in grid(options):
        row: dict[str, Any] = {
            "benchmark": "loss_mem",
            "section": job.section,
            "score": job.score,
            "batch": job.batch,
            "entities": job.entities,
            "dim": job.dim,
            "contender": job.contender,
            "formula": formula_bytes(job),
        }
        with out.status(f"{job.section} {job.score} {job.batch} x {job.entities}: {job.contender}"):
            row |= _measured(job, row["formula"]["dense"])
        yield row


def _measured(job: Job, dense_bytes: int) -> dict[str, Any]:
    whole = job.section == "bce" and job.score == "dot" and job.contender != "kgfast"
    if whole and job.device == "cpu" and dense_bytes > available_memory():
        return {"seconds": None, "note": "does not fit in memory"}
    try:
        return dict(in_child(measure, job))
    except (ChildDied, RuntimeError) as error:
        return {"seconds": None, "note": str(error).splitlines()[0][:80]}


def race(section: str, sizes: tuple[Any, ...], options: argparse.Namespace) -> list[dict[str, Any]]:
    """All contenders of one work in turns, in one process."""
    if options.compile:
        torch._dynamo.config.cache_size_limit = 64
    score, batch, entities, dim, per_query = sizes
    work = Work.random(score, batch, entities, dim, options.device)
    parts = {}
    if section in ("pairwise", "indexed"):
        runs = peers.sampled_contenders(work, per_query, options.compile and section == "pairwise")
    elif score == "dot":
        runs = {"kgfast": partial(peers.kgfast_bce, work), "eager": peers.dense_bce(work)}
        if options.compile:
            runs["compile"] = peers.dense_bce(work, compiled=True)
    else:
        runs = {
            "kgfast": partial(peers.kgfast_bce, work),
            "eager": peers.chunk_of_rotate_bce(work),
        }
        parts["eager"] = entities / peers.rotate_chunk(work)
    _, timings = Stopwatch(options.device).race(runs, options.rounds)
    whole = {name: timing.scaled(parts.get(name, 1.0)) for name, timing in timings.items()}
    pairs = batch * (per_query or entities)
    return [
        {
            "benchmark": "loss_mem",
            "section": section,
            "score": score,
            "batch": batch,
            "entities": entities,
            "candidates": per_query or entities,
            "dim": dim,
            "contender": name,
            "seconds": timing.as_dict(),
            "extrapolated": parts.get(name, 1.0) > 1,
            "elements_per_s": pairs * dim / timing.median,
            "times_kgfast": timing.median / whole["kgfast"].median,
        }
        for name, timing in whole.items()
    ]


def memory_table(rows: list[dict[str, Any]]) -> Table:
    """Bytes and seconds of the grid."""
    table = new_table(
        "Forward and backward over all entities",
        *("", "batch x entities x dim", "dense, by formula", "peak beyond operands", "time"),
    )
    titles = {"bce": "bce, {}", "head": "smoothed cross entropy", "top": "best output"}
    previous = None
    for row in rows:
        if row["section"] not in titles:
            continue
        what = (row["section"], row["score"], row["batch"], row["entities"])
        if previous not in (None, what):
            table.add_section()
        previous = what
        name = titles[row["section"]].format(row["score"])
        shape = f"{row['batch']:,} x {row['entities']:,} x {row['dim']}"
        formula = row["formula"].get("tensor", row["formula"]["dense"])
        cells = (row["note"], "") if row["seconds"] is None else _measured_cells(row)
        contender = NAMES[row["contender"]]
        label = f"{name}: {contender}"
        table.add_row(label, shape, human_bytes(formula), *cells, style=style_of(row))
    return table


def _measured_cells(row: Mapping[str, Any]) -> tuple[str, str]:
    part = " (a part)" if row["extrapolated"] else ""
    return human_bytes(row["bytes"]) + part, median(row)


def race_table(rows: list[dict[str, Any]]) -> Table:
    """Medians of the races."""
    table = new_table(
        "Forward and backward, all contenders in turns",
        *("", "median", "min .. max", "elements/s", "x kgfast", "goal"),
    )
    for row in (row for row in rows if "times_kgfast" in row):
        table.add_row(
            f"{row['section']}: {NAMES[row['contender']]}",
            *(median(row), spread(row["seconds"]), billions(row), f"{row['times_kgfast']:.2f}"),
            GOALS.get((row["section"], row["contender"]), ""),
            style=style_of(row),
        )
    return table


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """What, measured, goal."""
    lines = [
        (
            f"{row['section']}, {row['score']}, {row['batch']} x {row['candidates']} x "
            f"{row['dim']}: kgfast against {NAMES[row['contender']]}",
            f"{'~' if row['extrapolated'] else ''}{row['times_kgfast']:.1f}x",
            GOALS.get((row["section"], row["contender"]), ""),
        )
        for row in rows
        if "times_kgfast" in row and row["contender"] != "kgfast"
    ]
    return ratio_lines(lines)


NOTES = (
    "Peak beyond operands and their gradients. Dense, by formula: for dot labels, scores and two "
    "temporaries; for rotate one \\[batch, entities, dim] complex tensor.",
    "~ extrapolated: rotate in torch is one chunk of entities, an output head in torch "
    f"{peers.HEAD_ROWS:,} rows, measured and multiplied; the memory is that of the part.",
)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = known_options.new_parser(__doc__, quick="tiny shapes: a smoke test")
    known_options.add_device(parser)
    known_options.add_outputs(parser)
    parser.add_argument("--rounds", type=int, help=f"turns of a contender; {ROUNDS}, 2 if --quick")
    parser.add_argument("--no-compile", dest="compile", action="store_false", default=None)
    options = parser.parse_args(arguments)
    known_options.set_defaults(
        options,
        whole={"rounds": ROUNDS, "compile": True},
        quick={"rounds": 2, "compile": False},
    )
    known_options.check_positive(parser, options, "rounds")
    known_options.check_device(parser, options)
    known_options.check_plot(parser, options.plot)
    return options


def _write(path: Path | None, rows: list[dict[str, Any]]) -> None:
    """Write what there is so far: a run that is stopped keeps it."""
    if path is not None:
        write_json(path, {"ratios": ratios(rows), "rows": rows})


def main() -> int:
    """Measure, print, write."""
    options = parse()
    out, about = console(), facts(options.device)
    out.print(machine_line(about) + "\n", style="dim")
    rows = []
    for section, sizes in (QUICK_RACES if options.quick else RACES).items():
        with out.status(f"{section}: all contenders in turns"):
            rows += [row | about for row in in_child(race, section, sizes, options)]
        _write(options.json, rows)
    out.print(race_table(rows), "")
    for row in measure_grid(out, options):
        rows.append(row | about)
        _write(options.json, rows)
    out.print(memory_table(rows), "")
    for note in NOTES:
        out.print(f"- {note}", style="dim")
    draw("draw_losses", rows, options.plot, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
