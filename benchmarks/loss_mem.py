"""Losses over all entities, and sampled scores: peak memory and time of forward and backward.

    python benchmarks/loss_mem.py                     the whole table
    python benchmarks/loss_mem.py --json loss.json    a file is written when it is named
    python benchmarks/loss_mem.py --quick             a smoke test

Binary cross entropy of every entity, with dense labels and scores in torch (eager and compiled)
beside kgfast; RotatE's dense form is a [batch, entities, dim] tensor, so torch takes it in chunks
of entities, of which one is measured and the whole extrapolated. An output head, smoothed cross
entropy and the best output. Scores of sampled candidates. In the races all contenders take turns;
memory, and all else, is measured in a fresh process per contender.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from lib import losses
from lib.benchmark import Benchmark, Option, Options
from lib.columns import LOSS_NAMES, LOSSES
from lib.machine import available_memory
from lib.measure import SLOW_SECONDS, PeakMemory, Stopwatch, Timing, in_child, in_child_or_note
from lib.peers import losses as peers
from lib.peers.losses import Run, Work
from lib.results import Row, Rows
from lib.tables import cell_of

BATCHES, ENTITIES, DIM = (256, 512, 1024), (10_000, 50_000), 200
HEAD = (40_000, 50_011, 64)  # rows, outputs, width
RACES = {  # score, batch, rows of the table, dim, candidates of each query
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
        """Return the operands."""
        work = Work.random(self.score, self.batch, self.entities, self.dim, self.device)
        return replace(work, smoothing=0.1) if self.section == "head" else work

    def run(self, work: Work) -> tuple[Run, float]:
        """Return the contender, and how many times its work is the whole."""
        if self.contender == "kgfast":
            ours = {
                "bce": peers.kgfast_bce,
                "head": peers.kgfast_cross_entropy,
                "top": peers.kgfast_top,
            }
            return ours[self.section](work), 1.0
        if self.section != "bce":
            dense = peers.head_rows if self.section == "head" else peers.top_rows
            return dense(work), max(1.0, self.batch / peers.HEAD_ROWS)
        if self.score == "rotate":
            return peers.chunk_of_rotate_bce(work), self.entities / peers.rotate_chunk(work)
        return peers.dense_bce(work, self.contender == "compile"), 1.0


def measure(job: Job) -> dict[str, Any]:
    """Measure the peak beyond operands and gradients, and seconds."""
    losses.let_compile()
    work = job.work()
    run, parts = job.run(work)
    if job.contender == "compile":
        run()  # compiling is not the work
    else:
        small = replace(job, batch=2, entities=min(64, job.entities), rounds=1)
        small.run(small.work())[0]()
    work.queries.grad, work.table.grad = None, None
    stopwatch = Stopwatch(job.device)
    values: list[float] = []
    with PeakMemory(job.device) as peak:
        first = stopwatch.seconds(lambda: values.append(run()))
    gradients = 0 if job.section == "top" else work.queries.nbytes + work.table.nbytes
    rounds = job.rounds if first < SLOW_SECONDS else 1
    timing = Timing.of([stopwatch.seconds(run) for _ in range(rounds)])
    return {
        "bytes": max(0, peak.bytes - gradients),
        "method": peak.method,
        "seconds": timing.scaled(parts).as_dict(),
        "extrapolated": parts > 1,
        "loss": values[0] if parts == 1 else None,
    }


def grid(options: Options) -> Iterator[Job]:
    """Yield the works of the table; dense torch where its formula fits the memory."""
    batches, entities, dim = (BATCHES, ENTITIES, DIM) if not options.quick else ((8,), (50,), 6)
    rounds = options.rounds
    for score in ("dot", "rotate"):
        for count in entities:
            for batch in batches:
                job = Job("bce", score, batch, count, dim, "kgfast", options.device, rounds)
                yield job
                yield replace(job, contender="eager")
                if score == "dot" and not options.no_compile:
                    yield replace(job, contender="compile")
    head = (30, 51, 8) if options.quick else HEAD
    for section in ("head", "top"):
        for contender in ("kgfast", "eager"):
            yield Job(section, "dot", *head, contender, options.device, min(2, rounds))


def formula_bytes(job: Job) -> dict[str, int]:
    """Count what the dense form holds: labels, scores, two temporaries; one [B, N, D] tensor."""
    pairs = job.batch * job.entities
    if job.section == "top":
        return {"dense": 4 * pairs}
    if job.section == "head":
        return {"dense": 3 * 4 * pairs}  # logits, their log softmax, its gradient
    dense = {"dense": 4 * 4 * pairs}
    return dense | {"tensor": 2 * 4 * pairs * job.dim} if job.score == "rotate" else dense


def memory_rows(options: Options) -> Iterator[Row]:
    """Yield a row for every job."""
    for job in grid(options):
        names = ("section", "score", "batch", "entities", "dim", "contender")
        formula = formula_bytes(job)
        whole = job.section == "bce" and job.score == "dot" and job.contender != "kgfast"
        if whole and job.device == "cpu" and formula["dense"] > available_memory():
            found: dict[str, Any] = {"note": "does not fit in memory"}
        else:
            found = in_child_or_note(measure, job)
        row = {name: getattr(job, name) for name in names}
        yield row | {"formula": formula, "seconds": None} | found


def race_rows(options: Options) -> Iterator[Row]:
    """Yield the rows of all works whose contenders take turns, each in a process."""
    for section, sizes in (QUICK_RACES if options.quick else RACES).items():
        yield from in_child(race, section, sizes, options)


def race(section: str, sizes: tuple[Any, ...], options: Options) -> list[dict[str, Any]]:
    """Return the rows of all contenders of one work in turns, in one process."""
    losses.let_compile()
    *shape, per_query = sizes
    work = Work.random(*shape, options.device)
    compile = not options.no_compile and section != "bce rotate"
    if section in ("pairwise", "indexed"):
        runs = peers.sampled_contenders(work, per_query, compile and section == "pairwise")
        contenders: losses.Parts = {name: (run, 1.0) for name, run in runs.items()}
    else:
        contenders = losses.contenders(section, work, compile=compile)
    rows = losses.race(work, contenders, options.device, options.rounds)
    candidates = per_query or len(work.table)
    elements = len(work.queries) * candidates * work.dim
    for row in rows:
        row |= {"section": section, "candidates": candidates}
        del row["loss"]
        row["elements_per_s"] = elements / row["seconds"]["median"]
    return rows


def ratios(rows: Rows) -> Iterator[tuple[str, str, str]]:
    """Yield what, measured, goal."""
    for row in rows:
        if "times_kgfast" in row and row["contender"] != "kgfast":
            what = cell_of(row, "{section}, {score}, {batch} x {candidates} x {dim}")
            yield (
                f"{what}: kgfast against {LOSS_NAMES[row['contender']]}",
                f"{'~' if row['extrapolated'] else ''}{row['times_kgfast']:.1f}x",
                GOALS.get((row["section"], row["contender"]), ""),
            )


def notes(rows: Rows) -> Iterator[str]:
    """Yield what a reader must know of the tables."""
    yield "Peak memory is beyond operands and their gradients."
    yield (
        "~ extrapolated: rotate in torch is one chunk of entities, an output head in torch "
        f"{peers.HEAD_ROWS:,} rows, measured and multiplied; memory in brackets is of the part."
    )


BENCHMARK = Benchmark(
    "loss_mem",
    __doc__,
    {"races": race_rows, "memory": memory_rows},
    options=losses.OPTIONS | {"rounds": Option("turns of a contender", 7, 2)},
    tables={
        "races": ("Forward and backward, all contenders in turns", LOSSES),
        "memory": ("Forward and backward over all entities", LOSSES),
    },
    section_of=lambda row: "races" if row["section"] in RACES else "memory",
    ratios=ratios,
    notes=notes,
    has_device=True,
    is_written=False,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
