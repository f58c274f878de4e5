"""Losses over all entities: seconds of forward and backward, beside what torch can do.

    python benchmarks/loss_speed.py --device cuda            the whole table
    python benchmarks/loss_speed.py --json speed.json        the file is written when named
    python benchmarks/loss_speed.py --sections "bce dot"     some of the works
    python benchmarks/loss_speed.py --quick                  a smoke test

Contenders of a work take turns in one process: kgfast, dense torch, the same by torch.compile,
and, of cross entropy, torch.nn.functional.linear_cross_entropy where the installed torch has it.
1-vs-all steps are held against their three matrix products alone, which no loss can do without;
with products of bf16 numbers kgfast's are held against torch's autocast, as rows of their own.
RotatE's dense form is a [batch, entities, dim] tensor: one chunk of entities is measured and the
whole extrapolated. Rows say device, driver and versions; a contender that fails says why.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from lib import losses
from lib.benchmark import THREADS, Benchmark, Options
from lib.columns import LOSS_NAMES, LOSSES
from lib.measure import in_child
from lib.peers.losses import Work
from lib.results import Row, Rows

WORKS = {  # score, batch, entities, dim, label smoothing
    "bce dot": ("dot", 512, 40_943, 200, 0.0),
    "bce rotate": ("rotate", 512, 40_943, 200, 0.0),
    "cross entropy dot": ("dot", 512, 40_943, 200, 0.0),
    "smoothed cross entropy dot": ("dot", 4096, 50_257, 256, 0.1),
    "1-vs-all, FB15k-237, batch 100": ("dot", 100, 14_541, 200, 0.0),
    "1-vs-all, FB15k-237, batch 500": ("dot", 500, 14_541, 200, 0.0),
    "1-vs-all, WN18RR, batch 100": ("dot", 100, 40_943, 200, 0.0),
    "1-vs-all, WN18RR, batch 500": ("dot", 500, 40_943, 200, 0.0),
}
QUICK_WORKS = {
    "bce dot": ("dot", 8, 60, 8, 0.0),
    "bce rotate": ("rotate", 8, 60, 8, 0.0),
    "cross entropy dot": ("dot", 8, 60, 8, 0.0),
    "smoothed cross entropy dot": ("dot", 9, 70, 8, 0.1),
    "1-vs-all, batch 9": ("dot", 9, 70, 8, 0.0),
}


def race(section: str, sizes: tuple[Any, ...], options: Options) -> list[dict[str, Any]]:
    """Return the rows of one work; all its contenders take turns in this process."""
    *shape, smoothing = sizes
    work = replace(Work.random(*shape, options.device), smoothing=smoothing)
    if not options.no_compile:
        losses.let_compile()
    found = losses.contenders(section, work, compile=not options.no_compile)
    rows = losses.race(work, found, options.device, options.rounds)
    return [{"section": section} | row for row in rows]


def rows_of(section: str, options: Options) -> Iterator[Row]:
    """Yield the rows of a work, which has a process of its own."""
    works = QUICK_WORKS if options.quick else WORKS
    if section in works:
        yield from in_child(race, section, works[section], options)


def ratios(rows: Rows) -> Iterator[tuple[str, str, str]]:
    """Yield what, measured, goal: at least as fast as torch, near what no loss can beat."""
    timed = [row for row in rows if "times_kgfast" in row]
    times = {(row["section"], row["contender"]): row["times_kgfast"] for row in timed}
    for row in timed:
        section, contender, own = row["section"], row["contender"], row["times_kgfast"]
        if contender == "products":
            what = f"{section}: kgfast's time against its three matrix products"
            yield what, f"{1 / own:.2f}x", "<= 1.4x"
        elif contender == "kgfast_bf16":
            yield f"{section}: bf16 against float32", f"{1 / own:.2f}x", ">= 3x"
            other = times.get((section, "eager_bf16"))
            if other is not None:
                yield f"{section}: kgfast's bf16 against torch's", f"{other / own:.2f}x", ">= 1x"
        elif contender in ("eager", "compile", "linear"):
            shape = f"{row['batch']} x {row['entities']} x {row['dim']}"
            measured = f"{'~' if row['extrapolated'] else ''}{own:.2f}x"
            yield f"{section}, {shape}: kgfast against {LOSS_NAMES[contender]}", measured, ">= 1x"


BENCHMARK = Benchmark(
    "loss_speed",
    __doc__,
    {name: partial(rows_of, name) for name in WORKS | QUICK_WORKS},
    options=losses.OPTIONS | {"threads": THREADS},
    tables={name: (name, LOSSES) for name in WORKS | QUICK_WORKS},
    ratios=ratios,
    is_right=lambda row: row["contender"] != "kgfast" or bool(row["seconds"]),
    has_device=True,
    is_written=False,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
