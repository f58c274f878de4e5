"""Losses over all entities: seconds of forward and backward, beside what torch can do.

    python benchmarks/loss_speed.py --device cuda        the whole table
    python benchmarks/loss_speed.py --json speed.json    the file is written when named
    python benchmarks/loss_speed.py --works "bce dot"    some of the works
    python benchmarks/loss_speed.py --quick              a smoke test

Contenders of a work take turns in one process: kgfast, dense torch, the same by torch.compile,
and, of cross entropy, torch.nn.functional.linear_cross_entropy where the installed torch has it.
1-vs-all steps are held against their three matrix products alone, which no loss can do without;
with products of bf16 numbers kgfast's are held against torch's autocast, as rows of their own.
RotatE's dense form is a [batch, entities, dim] tensor: one chunk of entities is measured and the
whole extrapolated. Rows say device, driver and versions; a contender that fails says why.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from rich.table import Table

from lib import options as known_options
from lib.machine import facts, machine_line
from lib.measure import ChildDied, Stopwatch, in_child
from lib.peers import losses as peers
from lib.peers.losses import Run, Work
from lib.results import write_json
from lib.tables import LABELS, console, median, new_table, ratio_lines, spread, style_of

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
NAMES = LABELS | {
    "eager": "torch, eager",
    "compile": "torch.compile",
    "linear": "linear_cross_entropy",
    "products": "the three matrix products",
    "kgfast": "kgfast",
    "kgfast_bf16": "kgfast, bf16",
    "eager_bf16": "torch, bf16",
}
ROUNDS = 9


def contenders(section: str, work: Work, *, compiled: bool) -> dict[str, tuple[Run, float]]:
    """What runs, and how many times its work is the whole."""
    runs: dict[str, tuple[Run, float]]
    if section.startswith("bce"):
        runs = {"kgfast": (partial(peers.kgfast_bce, work), 1.0)}
        is_rotate = work.score == "rotate"
        make = peers.chunk_of_rotate_bce if is_rotate else peers.dense_bce
        parts = len(work.table) / peers.rotate_chunk(work) if is_rotate else 1.0
    else:
        runs = {"kgfast": (partial(peers.kgfast_cross_entropy, work), 1.0)}
        make, parts = peers.dense_cross_entropy, 1.0
        if section.startswith("1-vs-all"):
            runs["products"], compiled = (peers.three_products(work), 1.0), False
            rounded = partial(peers.kgfast_cross_entropy, work, precision="bf16")
            runs["kgfast_bf16"] = rounded, 1.0
            runs["eager_bf16"] = peers.dense_cross_entropy_bf16(work), 1.0
        elif peers.has_linear_cross_entropy():
            runs["linear"] = peers.linear_cross_entropy(work), 1.0
    runs["eager"] = make(work), parts
    if compiled:
        runs["compile"] = make(work, compiled=True), parts
    return runs


def race(section: str, sizes: tuple[Any, ...], options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one work; all its contenders take turns in this process."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.compile:
        torch._dynamo.config.cache_size_limit = 64
    score, batch, entities, dim, smoothing = sizes
    work = Work.random(score, batch, entities, dim, options.device)
    work = replace(work, smoothing=smoothing)
    rows, runs = [], {}
    for name, (run, parts) in contenders(section, work, compiled=options.compile).items():
        row = {
            "benchmark": "loss_speed",
            "section": section,
            "score": score,
            "batch": batch,
            "entities": entities,
            "dim": dim,
            "contender": name,
            "seconds": None,
            "extrapolated": parts > 1,
        }
        rows.append(row)
        try:
            row["loss"] = run()
        except Exception as error:
            row["note"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        runs[name] = run, parts
    _, timings = Stopwatch(options.device).race(
        {name: run for name, (run, _) in runs.items()}, options.rounds
    )
    scaled = {name: timing.scaled(runs[name][1]) for name, timing in timings.items()}
    for row in rows:
        name = row["contender"]
        if name in scaled:
            row["seconds"] = scaled[name].as_dict()
            if "kgfast" in scaled:
                row["times_kgfast"] = scaled[name].median / scaled["kgfast"].median
    return rows


def table_of(rows: list[dict[str, Any]]) -> Table:
    """Medians."""
    table = new_table(
        "Forward and backward, all contenders in turns",
        *("", "batch x entities x dim", "median", "min .. max", "x kgfast"),
    )
    for row in rows:
        cells = (row.get("note", ""), "", "")
        if row["seconds"]:
            cells = (median(row), spread(row["seconds"]), f"{row.get('times_kgfast', 0):.2f}")
        shape = f"{row['batch']:,} x {row['entities']:,} x {row['dim']}"
        label = f"{row['section']}: {NAMES[row['contender']]}"
        table.add_row(label, shape, *cells, style=style_of(row))
    return table


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """What, measured, goal: at least as fast as whatever torch has, near what no loss can beat."""
    lines = [
        (
            f"{row['section']}: kgfast's time against its three matrix products",
            f"{1 / row['times_kgfast']:.2f}x",
            "<= 1.4x",
        )
        for row in rows
        if "times_kgfast" in row and row["contender"] == "products"
    ]
    lines += [
        (
            f"{row['section']}, {row['batch']} x {row['entities']} x {row['dim']}: kgfast against "
            f"{NAMES[row['contender']]}",
            f"{'~' if row['extrapolated'] else ''}{row['times_kgfast']:.2f}x",
            ">= 1x",
        )
        for row in rows
        if "times_kgfast" in row
        and row["contender"] not in ("kgfast", "products", "kgfast_bf16", "eager_bf16")
    ]
    times = {
        (row["section"], row["contender"]): row["times_kgfast"]
        for row in rows
        if "times_kgfast" in row
    }
    for (section, contender), own in times.items():
        if contender == "kgfast_bf16":
            lines.append((f"{section}: bf16 against float32", f"{1 / own:.2f}x", ">= 3x"))
            other = times.get((section, "eager_bf16"))
            if other is not None:
                what = f"{section}: kgfast's bf16 against torch's"
                lines.append((what, f"{other / own:.2f}x", ">= 1x"))
    return ratio_lines(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = known_options.new_parser(__doc__, quick="tiny shapes: a smoke test")
    known_options.add_device(parser)
    known_options.add_outputs(parser, plot=False)
    parser.add_argument("--rounds", type=int, help=f"turns of a contender; {ROUNDS}, 2 if --quick")
    parser.add_argument("--works", nargs="*", choices=WORKS, help="all of them unless given")
    parser.add_argument("--threads", type=int, help="torch's unless given")
    parser.add_argument("--no-compile", dest="compile", action="store_false", default=None)
    options = parser.parse_args(arguments)
    known_options.set_defaults(
        options,
        whole={"rounds": ROUNDS, "compile": True},
        quick={"rounds": 2, "compile": False},
    )
    known_options.check_positive(parser, options, "rounds")
    known_options.check_device(parser, options)
    return options


def main() -> int:
    """Measure, print, write after every work: a run that is stopped keeps what there is."""
    options = parse()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    out, about = console(), facts(options.device)
    out.print(machine_line(about) + "\n", style="dim")
    rows: list[dict[str, Any]] = []
    failed = 0
    for section, sizes in (QUICK_WORKS if options.quick else WORKS).items():
        if options.works and section not in options.works:
            continue
        try:
            with out.status(f"{section}: all contenders in turns"):
                rows += [row | about for row in in_child(race, section, sizes, options)]
        except (ChildDied, RuntimeError) as error:
            out.print(f"{section}: {str(error).splitlines()[0]}", style="red")
            failed = 1
        if options.json is not None:
            write_json(options.json, {"ratios": ratios(rows), "rows": rows})
    out.print(table_of(rows), "")
    failed |= any(row["contender"] == "kgfast" and not row["seconds"] for row in rows)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
