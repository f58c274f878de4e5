"""Ranks among candidates that each query names, by kgfast and by gathering in torch, in turns.

    python benchmarks/lists_speed.py            writes results/cpu-lists-speed.json
    python benchmarks/lists_speed.py --quick    a smoke test: a small table

The setting of ogbl-wikikg2: RotatE, each query beside 500 candidates of 2.5 million. The peers
gather ``[32, 501, 2 d]`` as OGB's baseline does, 32 queries a batch: `official` takes the norm of
stacked parts, `lean` squares, adds and takes the root in place. Counts are compared: a sample of
kgfast's with the float64 specification (exit code 1 if they differ), the peers' with kgfast's.
"""

import argparse
import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor

import kgfast
from kgfast import ops
from lib import options as known_options
from lib.machine import facts, machine_line
from lib.measure import PeakMemory, Stopwatch
from lib.results import write_json
from lib.tables import console

BATCH = 32  # queries that a peer gathers for at a time
REFERENCE_QUERIES = 4  # checked against the specification
_ROWS = 1 << 16  # of the table, made at a time


class Work:
    """Queries, a table, and the candidates of each query."""

    def __init__(self, options: argparse.Namespace) -> None:
        generator = torch.Generator().manual_seed(0)
        rows, dim, count = options.rows, options.dim, options.queries
        self.table = torch.empty(rows, 2 * dim)
        for part in self.table.split(_ROWS):
            part.normal_(generator=generator)
        self.queries = torch.randn(count, 2 * dim, generator=generator)
        self.targets = torch.randint(rows, (count,), generator=generator)
        self.ids = torch.stack([self._distinct(options, generator) for _ in range(count)])

    @staticmethod
    def _distinct(options: argparse.Namespace, generator: torch.Generator) -> Tensor:
        """Distinct candidates in any order."""
        drawn = torch.randint(options.rows, (2 * options.candidates,), generator=generator)
        distinct = drawn.unique()
        order = torch.randperm(len(distinct), generator=generator)
        return distinct[order[: options.candidates]]

    def some(self, count: int) -> "Work":
        """The first queries."""
        few = object.__new__(Work)
        few.table = self.table
        few.queries, few.targets = self.queries[:count], self.targets[:count]
        few.ids = self.ids[:count]
        return few


def by_kgfast(work: Work) -> tuple[Tensor, Tensor]:
    """How many score above the target, and how many the same."""
    none = torch.zeros(len(work.queries) + 1, dtype=torch.int64), work.targets[:0]
    greater, equal, *_ = ops.rank_counts(
        work.queries, work.table, work.targets, *none, "rotate", candidate_ids=work.ids
    )
    return greater, equal


def by_gathering(work: Work, *, lean: bool) -> tuple[Tensor, Tensor]:
    """The same of gathered rows; a candidate that is the target is not counted."""
    dim = work.queries.shape[1] // 2
    counts = []
    for first in range(0, len(work.queries), BATCH):
        rows = slice(first, first + BATCH)
        ids = torch.cat([work.targets[rows, None], work.ids[rows]], 1)
        candidates = work.table[ids]  # [b, 501, 2 d]
        queries = work.queries[rows, None]
        re = queries[..., :dim] - candidates[..., :dim]
        im = queries[..., dim:] - candidates[..., dim:]
        if lean:
            scores = -re.mul_(re).addcmul_(im, im).sqrt_().sum(2)
        else:
            scores = -torch.stack([re, im]).norm(dim=0).sum(2)
        other = ids[:, 1:] != ids[:, :1]
        above = ((scores[:, 1:] > scores[:, :1]) & other).sum(1)
        counts.append((above, ((scores[:, 1:] == scores[:, :1]) & other).sum(1)))
    greater, equal = (torch.cat(column) for column in zip(*counts, strict=True))
    return greater, equal


def equals_reference(work: Work, found: tuple[Tensor, Tensor]) -> bool:
    """Whether the first queries' counts are the specification's."""
    with kgfast.use_backend("reference"):
        expected = by_kgfast(work.some(REFERENCE_QUERIES))
    return all(
        torch.equal(ours[:REFERENCE_QUERIES], theirs)
        for ours, theirs in zip(found, expected, strict=True)
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = known_options.new_parser(__doc__, quick="a small table: seconds")
    for name, what in (
        ("rows", "of the table"),
        ("dim", "complex features"),
        ("queries", "ranked at once"),
        ("candidates", "of each query"),
        ("rounds", "turns of each contender"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=what)
    known_options.add_outputs(parser, "lists-speed", plot=False)
    options = parser.parse_args(arguments)
    whole = {"rows": 2_500_000, "dim": 250, "queries": 512, "candidates": 500, "rounds": 5}
    quick = {"rows": 3000, "dim": 16, "queries": 40, "candidates": 50, "rounds": 2}
    known_options.set_defaults(options, whole, quick)
    known_options.check_positive(parser, options, *whole)
    if options.rows < 4 * options.candidates:
        parser.error("--rows must be at least 4 times --candidates")
    known_options.set_outputs(options, "lists-speed")
    return options


def rows_of(options: argparse.Namespace, work: Work) -> list[dict[str, Any]]:
    """A row for each contender."""
    contenders = {
        "kgfast": partial(by_kgfast, work),
        "official": partial(by_gathering, work, lean=False),
        "lean": partial(by_gathering, work, lean=True),
    }
    answers, timings = Stopwatch("cpu").race(contenders, options.rounds)
    rows = []
    for name, timing in timings.items():
        with PeakMemory("cpu") as peak:
            contenders[name]()
        row: dict[str, Any] = {
            "benchmark": "lists_speed",
            "section": "rotate",
            "contender": name,
            "entities": options.rows,
            "dim": options.dim,
            "batch": options.queries,
            "candidates": options.candidates,
            "extrapolated": False,
            "seconds": timing.as_dict(),
            "times_kgfast": timing.median / timings["kgfast"].median,
            "peak_bytes": peak.bytes,
        }
        if name == "kgfast":
            row["equals_reference"] = equals_reference(work, answers[name])
        else:
            same = torch.stack(answers[name]) == torch.stack(answers["kgfast"])
            row["differing_queries"] = int((~same.all(0)).sum())
        rows.append(row)
    return rows


def main() -> int:
    """Measure, print, write; 1 if an answer of kgfast's differs from the specification."""
    options, out, about = parse(), console(), facts("cpu")
    out.print(machine_line(about), style="dim")
    rows = [row | about for row in rows_of(options, Work(options))]
    for row in rows:
        seconds, times = row["seconds"], row["times_kgfast"]
        out.print(
            f"{row['contender']:<10}{seconds['median'] * 1e3:10.1f} ms "
            f"({seconds['min'] * 1e3:.1f} .. {seconds['max'] * 1e3:.1f})  {times:6.1f}x  "
            f"{row['peak_bytes'] / 2**20:8.1f} MiB"
        )
    if options.json is not None:
        write_json(options.json, {"rows": rows})
    return 0 if rows[0]["equals_reference"] else 1


if __name__ == "__main__":
    sys.exit(main())
