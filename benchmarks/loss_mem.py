"""Losses over all entities, and sampled scores: time and peak memory of forward and backward.

    python benchmarks/loss_mem.py                           the whole table
    python benchmarks/loss_mem.py --sections "bce dot"      some of the works
    python benchmarks/loss_mem.py --json loss.json          a file is written when it is named

Contenders of a work take turns in one process: kgfast, dense torch, the same by torch.compile, and
of cross entropy torch's own linear_cross_entropy where it is there. 1-vs-all steps are held against
their three matrix products alone and torch's autocast to bf16; GPUs multiply bf16 too. RotatE's
dense form, a [batch, entities, dim] tensor, goes in chunks of the size that takes the least time
here; of a loss over all entities, a part is measured and the whole extrapolated. With one thread
(`--threads 1`) times are of the CPU, and other work on the machine changes them little. `memory`: a
fresh process for each contender of binary cross entropy, one after the other. A contender that
fails says why.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from lib.benchmark import THREADS, Benchmark, Option, Options
from lib.columns import LOSSES
from lib.machine import available_memory
from lib.measure import SLOW_SECONDS, PeakMemory, Stopwatch, Timing, in_child, in_child_or_note
from lib.peers import losses as peers
from lib.peers.losses import Run, Work
from lib.results import Row, Rows

BATCHES, ENTITIES, DIM = (256, 512, 1024), (10_000, 50_000), 200
SMOOTHING = 0.1  # smoothing of works that are called smoothed
# calls, and how many times the work of each makes the whole
Parts = Mapping[str, tuple[Run, float]]
RACES = {  # score, batch, rows of the table, dim, candidates of each query
    "pairwise": ("rotate", 512, 1_024, 512, None),
    "indexed": ("rotate", 512, 40_943, 512, 256),
    "bce dot": ("dot", 512, 40_943, 200, None),
    "bce rotate": ("rotate", 512, 40_943, 200, None),
    "cross entropy dot": ("dot", 512, 40_943, 200, None),
    "smoothed cross entropy dot": ("dot", 4096, 50_257, 256, None),
    "1-vs-all, FB15k-237, batch 100": ("dot", 100, 14_541, 200, None),
    "1-vs-all, FB15k-237, batch 500": ("dot", 500, 14_541, 200, None),
    "1-vs-all, WN18RR, batch 100": ("dot", 100, 40_943, 200, None),
    "1-vs-all, WN18RR, batch 500": ("dot", 500, 40_943, 200, None),
    "1-vs-all, FB15k-237, rank 512": ("dot", 500, 14_541, 512, None),
}


@dataclass(frozen=True)
class Job:
    """Binary cross entropy of dot products by one contender, for a process of its own."""

    batch: int
    entities: int
    dim: int
    contender: str  # kgfast, eager or compile
    device: str
    rounds: int

    def work(self) -> Work:
        """Return the operands."""
        return Work.random("dot", self.batch, self.entities, self.dim, self.device)

    def run(self, work: Work) -> Run:
        """Return the contender."""
        if self.contender == "kgfast":
            return peers.kgfast_bce(work)
        return peers.dense_bce(work, self.contender == "compile")


def measure(job: Job) -> dict[str, Any]:
    """Measure the peak beyond operands and gradients, and seconds."""
    torch._dynamo.config.cache_size_limit = 64  # torch.compile compiles for many shapes
    work = job.work()
    run = job.run(work)
    if job.contender == "compile":
        run()  # compiling is not the work
    else:
        small = replace(job, batch=2, entities=min(64, job.entities))
        small.run(small.work())()
    work.queries.grad, work.table.grad = None, None
    stopwatch = Stopwatch(job.device)
    with PeakMemory(job.device) as peak:
        loss, first = stopwatch.timed(run)
    gradients = sum(it.grad.nbytes for it in (work.queries, work.table) if it.grad is not None)
    rounds = job.rounds if first < SLOW_SECONDS else 1
    return {
        "bytes": max(0, peak.bytes - gradients),
        "method": peak.method,
        "seconds": Timing.of([stopwatch.seconds(run) for _ in range(rounds)]).as_dict(),
        "extrapolated": False,
        "loss": loss,
    }


def grid(options: Options) -> Iterator[Job]:
    """Yield the works of the table, kgfast first."""
    batches, entities, dim = (BATCHES, ENTITIES, DIM) if not options.quick else ((8,), (50,), 6)
    for count in entities:
        for batch in batches:
            for contender in ("kgfast", "eager", "compile")[: 3 - options.no_compile]:
                yield Job(batch, count, dim, contender, options.device, options.rounds)


def memory_rows(options: Options) -> Iterator[Row]:
    """Yield a row for every job; dense torch runs where its formula fits the memory."""
    ours: float | None = None
    for job in grid(options):
        ours = None if job.contender == "kgfast" else ours
        dense = 4 * 4 * job.batch * job.entities  # labels, scores, two temporaries
        if job.contender != "kgfast" and job.device == "cpu" and dense > available_memory():
            found: dict[str, Any] = {"note": "does not fit in memory"}
        else:
            found = in_child_or_note(measure, job)
        row: dict[str, Any] = {"section": "bce", "score": "dot", "candidates": job.entities}
        row |= {name: getattr(job, name) for name in ("batch", "entities", "dim", "contender")}
        row |= {"formula": {"dense": dense}, "seconds": None} | found
        if row["seconds"] is not None:
            median = row["seconds"]["median"]
            ours = median if job.contender == "kgfast" else ours
            row |= {"times_kgfast": median / ours} if ours else {}
        yield row


def race_rows(section: str, options: Options) -> Iterator[Row]:
    """Yield the rows of a work, which has a process of its own."""
    score, *sizes, per_query = RACES[section]
    if options.quick:
        sizes, per_query = [8, 60, 8], per_query and 4
    yield from in_child(race, section, (score, *sizes, per_query), options)


def race(section: str, sizes: tuple[Any, ...], options: Options) -> list[dict[str, Any]]:
    """Return the rows of all contenders of one work, which take turns in this process."""
    torch._dynamo.config.cache_size_limit = 64  # torch.compile compiles for many shapes
    *shape, per_query = sizes
    smoothing = SMOOTHING * section.startswith("smoothed")
    work = replace(Work.random(*shape, options.device), smoothing=smoothing)
    compile = not options.no_compile
    if section in ("pairwise", "indexed"):
        runs = peers.sampled_contenders(work, per_query, compile)
        rows = in_turns(work, {name: (run, 1.0) for name, run in runs.items()}, options)
    else:
        rows = in_turns(work, contenders(section, work, compile=compile), options)
    candidates = per_query or len(work.table)
    elements = len(work.queries) * candidates * work.dim
    for row in rows:
        row |= {"section": section, "candidates": candidates}
        if row["seconds"] is not None:
            row["elements_per_s"] = elements / row["seconds"]["median"]
    return rows


def contenders(section: str, work: Work, *, compile: bool) -> Parts:
    """Return what runs of a loss over all candidates, by the name of the work."""
    parts, more = 1.0, {}
    if section.startswith("bce"):
        ours, make = peers.kgfast_bce, peers.dense_bce
        if work.score == "rotate":
            make, parts = peers.part_of_rotate_bce, len(work.table) / peers.rotate_rows(work)
    else:
        ours, make = peers.kgfast_cross_entropy, peers.dense_cross_entropy
        if section.startswith("1-vs-all"):
            compile = False
            more["products"] = peers.three_products(work)
            if work.table.is_cuda:
                more["kgfast_bf16"] = ours(work, precision="bf16")
            more["eager_bf16"] = peers.dense_cross_entropy_bf16(work)
        elif hasattr(torch.nn.functional, "linear_cross_entropy"):
            more["linear"] = peers.linear_cross_entropy(work)
    runs = {"kgfast": ours(work)} | more
    peer = {"eager": make(work)} | ({"compile": make(work, compile=True)} if compile else {})
    return {name: (run, parts if name in peer else 1.0) for name, run in (runs | peer).items()}


def in_turns(work: Work, contenders: Parts, options: Options) -> list[dict[str, Any]]:
    """Let all contenders take turns; return a row for each, also of those that fail."""
    rows, runs = [], {}
    for name, (run, parts) in contenders.items():
        row: dict[str, Any] = {
            "score": work.score,
            "batch": len(work.queries),
            "entities": len(work.table),
            "dim": work.dim,
            "contender": name,
            "seconds": None,
            "extrapolated": parts > 1,
        }
        rows.append(row)
        try:
            row["loss"] = run()
            runs[name] = run
        except Exception as error:
            row["note"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
    clock = time.process_time if options.threads == 1 else time.perf_counter
    _, timings = Stopwatch(options.device, clock).race(runs, options.rounds)
    scaled = {name: timing.scaled(contenders[name][1]) for name, timing in timings.items()}
    for row in rows:
        timing = scaled.get(row["contender"])
        if timing is not None:
            row["seconds"] = timing.as_dict()
            if "kgfast" in scaled:
                row["times_kgfast"] = timing.median / scaled["kgfast"].median
    return rows


def notes(rows: Rows) -> Iterator[str]:
    """Yield what a reader must know of the tables."""
    yield "Peak memory is beyond operands and their gradients."
    yield "~ extrapolated: rotate in torch is a part of the entities, measured and multiplied."


BENCHMARK = Benchmark(
    "loss_mem",
    __doc__,
    {**{name: partial(race_rows, name) for name in RACES}, "memory": memory_rows},
    options={
        "rounds": Option("turns of a contender", 7, 2),
        "no_compile": Option("leave torch.compile out", False, True),
        "threads": THREADS,
    },
    tables={
        **{name: (f"{name}, all contenders in turns", LOSSES) for name in RACES},
        "memory": ("Forward and backward over all entities", LOSSES),
    },
    section_of=lambda row: row["section"] if row["section"] in RACES else "memory",
    notes=notes,
    is_right=lambda row: row["contender"] != "kgfast" or bool(row["seconds"]),
    has_device=True,
    is_written=False,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
