"""Ranks among candidates that each query names, by kgfast and by gathering in torch, in turns.

    python benchmarks/lists_speed.py            writes results/cpu-lists-speed.json

The setting of ogbl-wikikg2: RotatE, each query beside 500 candidates of 2.5 million. The peers
gather ``[32, 501, 2 d]`` as OGB's baseline does, 32 queries a batch: `official` takes the norm of
stacked parts, `lean` squares, adds and takes the root in place. Counts are compared: a sample of
kgfast's with the float64 specification (exit code 1 if they differ), the peers' with kgfast's.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kgfast import ops
from lib.bench import equals_reference
from lib.benchmark import Benchmark, Option, Options, Parser
from lib.columns import LISTS
from lib.measure import PeakMemory, Stopwatch

BATCH = 32  # queries that a peer gathers for at a time
REFERENCE_QUERIES = 4  # checked against the specification
_ROWS = 1 << 16  # rows of the table, made at a time


@dataclass(frozen=True)
class Work:
    """Queries, a table, and the candidates of each query."""

    queries: Tensor
    table: Tensor
    targets: Tensor
    ids: Tensor

    @classmethod
    def random(cls, options: Options) -> "Work":
        """Draw normal numbers, and distinct candidates in any order."""
        generator = torch.Generator().manual_seed(0)
        rows, dim, count = options.rows, options.dim, options.queries
        table = torch.empty(rows, 2 * dim)
        for part in table.split(_ROWS):
            part.normal_(generator=generator)
        queries = torch.randn(count, 2 * dim, generator=generator)
        targets = torch.randint(rows, (count,), generator=generator)
        ids = []
        for _ in range(count):
            distinct = torch.randint(rows, (2 * options.candidates,), generator=generator).unique()
            order = torch.randperm(len(distinct), generator=generator)
            ids.append(distinct[order[: options.candidates]])
        return cls(queries, table, targets, torch.stack(ids))

    def some(self, count: int) -> "Work":
        """Return the first queries."""
        return Work(self.queries[:count], self.table, self.targets[:count], self.ids[:count])


def by_kgfast(work: Work) -> tuple[Tensor, Tensor]:
    """Count the candidates above the target, and candidates equal to the target."""
    none = torch.zeros(len(work.queries) + 1, dtype=torch.int64), work.targets[:0]
    greater, equal, *_ = ops.rank_counts(
        work.queries, work.table, work.targets, *none, "rotate", candidate_ids=work.ids
    )
    return greater, equal


def by_gathering(work: Work, *, lean: bool) -> tuple[Tensor, Tensor]:
    """Count by gathered rows, without candidates that are the target."""
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


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each contender."""
    work = Work.random(options)
    contenders = {
        "kgfast": partial(by_kgfast, work),
        "official": partial(by_gathering, work, lean=False),
        "lean": partial(by_gathering, work, lean=True),
    }
    answers, timings = Stopwatch("cpu").race(contenders, options.rounds)
    for name, timing in timings.items():
        with PeakMemory("cpu") as peak:
            contenders[name]()
        row: dict[str, Any] = {
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
            few = work.some(REFERENCE_QUERIES)
            row["equals_reference"] = equals_reference(partial(by_kgfast, few), answers[name])
        else:
            same = torch.stack(answers[name]) == torch.stack(answers["kgfast"])
            row["differing_queries"] = int((~same.all(0)).sum())
        yield row


def check(parser: Parser, options: Options) -> None:
    """Check that lists of distinct candidates can be drawn."""
    if options.rows < 4 * options.candidates:
        parser.error("--rows must be at least 4 times --candidates")


BENCHMARK = Benchmark(
    "lists_speed",
    __doc__,
    {"rotate": rows_of},
    options={
        "rows": Option("rows of the table", 2_500_000, 3000),
        "dim": Option("complex features", 250, 16),
        "queries": Option("queries ranked at once", 512, 40),
        "candidates": Option("candidates of each query", 500, 50),
        "rounds": Option("turns of each contender", 5, 2),
    },
    tables=LISTS,
    check=check,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
