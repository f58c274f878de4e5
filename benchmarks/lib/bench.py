"""A race of kgfast against its peers: what eval_speed and topk_speed share, and other races use."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import kgfast
from kgfast import ops
from kgfast.kernels import cpu
from lib.benchmark import Option, Options, graph_of
from lib.measure import Stopwatch, Timing
from lib.peers import Missing
from lib.peers.ranks import Counts, Work
from lib.results import Row

BATCH = 128
TABLES = ["random", "planted"]
PEERS = ["compile", "eager", "keops", "pykeen", "bare"]
OPTIONS = {
    "dims": Option("features", [128, 512], [16]),
    "tables": Option("embeddings", TABLES, keywords={"choices": TABLES}),
    "peers": Option("contenders", PEERS, ["eager", "bare"], {"nargs": "*", "choices": PEERS}),
    "rounds": Option("turns of each contender", 5, 2),
}

Contender = Callable[..., Any]


class Race:
    """A race on the synthetic graph."""

    def __init__(self, options: Options) -> None:
        self.options, self.device = options, str(options.device)
        self.stopwatch = Stopwatch(self.device)

    @cached_property
    def graph(self) -> Any:
        """Return the graph."""
        return graph_of(self.options)

    def row(self, section: str, contender: str, **row: Any) -> dict[str, Any]:
        """Return a row."""
        where = {"section": section, "contender": contender, "entities": self.graph.num_entities}
        return {"extrapolated": False} | where | row

    def run(
        self,
        section: str,
        contenders: Mapping[str, Contender],
        makers: Mapping[str, Callable[[], Any]],
        work: Mapping[str, Any],
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return answers and rows of contenders in turns; a missing peer's row says why."""
        peers, missing = built({it: makers[it] for it in makers if it in self.options.peers})
        runs = {**contenders, **peers}
        answers, timings = self.stopwatch.race(runs, self.options.rounds)
        rows = {}
        for name, timing in timings.items():
            rows[name] = self.timed_row(section, name, timing, timings["kgfast"], work)
            if hasattr(runs[name], "chunk"):
                rows[name]["chunk"] = runs[name].chunk
        for name, note in missing.items():
            rows[name] = self.row(section, name, **work, seconds=None, note=note)
        return answers, rows

    def timed_row(
        self, section: str, name: str, timing: Timing, ours: Timing, work: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the row of a contender that took its turns."""
        row = self.row(section, name, **work, seconds=timing.as_dict())
        elements = row["batch"] * row["entities"] * row["dim"]
        row["elements_per_s"] = elements / timing.median
        row["times_kgfast"] = timing.median / ours.median
        return row

    def model(self, table: str, dim: int) -> kgfast.RotatE:
        """Return a model of some embeddings on the device."""
        model = kgfast.RotatE(*embeddings(self.graph, table, dim), relation_format="phase")
        return model.to(self.device)

    def rotate_work(self, table: str, dim: int, batch: int) -> Work:
        """Return distinct tail queries of random test triples: equal ones are swept only once."""
        model, test = self.model(table, dim), self.graph.test.hrt
        shuffled = test[torch.randperm(len(test), generator=torch.Generator().manual_seed(0))]
        _, group = shuffled[:, :2].unique(dim=0, return_inverse=True)
        first = torch.full((int(group.max()) + 1,), len(test)).scatter_reduce_(
            0, group, torch.arange(len(test)), "amin"
        )
        distinct = first.sort().values
        chosen = distinct[torch.arange(batch) % len(distinct)]  # a tiny graph has too few
        heads, relations, tails = shuffled[chosen].to(self.device).T.contiguous()
        with torch.no_grad():
            return Work(model.queries(heads, relations, "tail"), model.entity.detach(), tails)

    def dot_work(self, dim: int) -> Work:
        """Return queries and a table of normal numbers."""
        generator = torch.Generator().manual_seed(0)
        entities = self.graph.num_entities
        return Work(
            torch.randn(BATCH, dim, generator=generator).to(self.device),
            torch.randn(entities, dim, generator=generator).to(self.device),
            torch.randint(entities, (BATCH,), generator=generator).to(self.device),
        )

    def isas(self) -> list[str]:
        """Return the instruction sets of the CPU, best first; none where a GPU works."""
        return cpu.available_isas() if self.device == "cpu" else []


def built(makers: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    """Make peers; return those that can run here, and why others are missing."""
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except Missing as error:
            missing[name] = str(error)
    return found, missing


def embeddings(graph: Any, table: str, dim: int) -> tuple[Tensor, Tensor]:
    """Return entities (halves) and phases: planted, or as a fresh model has them."""
    if table == "planted":
        entity, phase = graph.planted(dim)
        return entity, phase
    fresh = kgfast.RotatE.init(graph.num_entities, graph.num_relations, dim, seed=0)
    return fresh.entity.detach(), fresh.relation.detach() * (torch.pi / fresh.embedding_range)


def kgfast_counts(work: Work, score: str = "rotate", isa: str | None = None) -> Counts:
    """Count by kgfast: raw counts, nothing excluded."""
    nothing = torch.zeros(len(work.targets) + 1, dtype=torch.int64, device=work.device)
    with patch.dict(os.environ, {"KGFAST_CPU_ISA": isa} if isa else {}):
        greater, equal, _, _ = ops.rank_counts(
            work.queries, work.table, work.targets, nothing, nothing[:0], score
        )
    return greater, equal


def equals_reference(call: Callable[[], Sequence[Any]], found: Sequence[Any]) -> bool:
    """Return whether the first of what was found is what a call of the specification gives."""
    with kgfast.use_backend("reference"):
        expected = call()
    pairs = zip(found, expected, strict=True)
    return all(torch.equal(ours[: len(theirs)], theirs) for ours, theirs in pairs)


def differs(row: Row) -> str:
    """Say how a contender's answers differ from kgfast's, or kgfast's from the specification."""
    if "equals_reference" in row:
        return "= reference" if row["equals_reference"] else "NOT the specification's"
    by = f", by {row['largest_difference']}" if row.get("largest_difference") else ""
    return f"{row['differing_queries']} queries{by}" if "differing_queries" in row else ""
