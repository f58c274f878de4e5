"""A run of eval_speed.py: its options and rows, and the inputs that all contenders get."""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from common import Stopwatch
from peers import Counts, Missing, Work
from rich.console import Console
from torch import Tensor

import kgfast
from kgfast import ops
from kgfast.kernels import cpu

BATCH = 128


@dataclass
class Bench:
    """The options, and the rows so far."""

    options: argparse.Namespace
    out: Console
    graph: Any
    stopwatch: Stopwatch
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda``."""
        return str(self.options.device)

    def add(self, section: str, contender: str, **row: Any) -> dict[str, Any]:
        """Keep a row."""
        where = {"section": section, "contender": contender, "entities": self.graph.num_entities}
        self.rows.append({"benchmark": "eval_speed"} | where | row)
        return self.rows[-1]

    def add_missing(self, section: str, missing: Mapping[str, str], **work: Any) -> None:
        """Keep a row for each contender that cannot run here."""
        for name, reason in missing.items():
            self.add(section, name, **work, seconds=None, note=reason)

    def build(
        self, makers: Mapping[str, Callable[[], Any]]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The peers that were asked for, and why others of them are missing."""
        built: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for name, make in makers.items():
            if name not in self.options.peers:
                continue
            try:
                built[name] = make()
            except Missing as error:
                missing[name] = str(error)
        return built, missing


def embeddings(graph: Any, table: str, dim: int) -> tuple[Tensor, Tensor]:
    """Entities (halves) and phases: planted, or as a fresh model has them."""
    if table == "planted":
        entity, phase = graph.planted(dim)
        return entity, phase
    fresh = kgfast.RotatE.init(graph.num_entities, graph.num_relations, dim, seed=0)
    return fresh.entity.detach(), fresh.relation.detach() * (torch.pi / fresh.embedding_range)


def rotate_model(bench: Bench, table: str, dim: int) -> kgfast.RotatE:
    """A model of these embeddings on the device."""
    model = kgfast.RotatE(*embeddings(bench.graph, table, dim), relation_format="phase")
    return model.to(bench.device)


def rotate_work(bench: Bench, table: str, dim: int, batch: int) -> Work:
    """Distinct tail queries of random test triples: kgfast sweeps equal ones only once."""
    model, test = rotate_model(bench, table, dim), bench.graph.test.hrt
    shuffled = test[torch.randperm(len(test), generator=torch.Generator().manual_seed(0))]
    _, group = shuffled[:, :2].unique(dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(test)).scatter_reduce_(
        0, group, torch.arange(len(test)), "amin"
    )
    distinct = first.sort().values
    chosen = distinct[torch.arange(batch) % len(distinct)]  # a tiny graph has too few
    heads, relations, tails = shuffled[chosen].to(bench.device).T.contiguous()
    with torch.no_grad():
        return Work(model.queries(heads, relations, "tail"), model.entity.detach(), tails)


def dot_work(bench: Bench, dim: int) -> Work:
    """Normal numbers."""
    generator = torch.Generator().manual_seed(0)
    entities = bench.graph.num_entities
    return Work(
        torch.randn(BATCH, dim, generator=generator).to(bench.device),
        torch.randn(entities, dim, generator=generator).to(bench.device),
        torch.randint(entities, (BATCH,), generator=generator).to(bench.device),
    )


def kgfast_counts(work: Work, score: str = "rotate", isa: str | None = None) -> Counts:
    """The unit of work by kgfast: raw counts, nothing excluded."""
    nothing = torch.zeros(len(work.targets) + 1, dtype=torch.int64, device=work.device)
    with forced_isa(isa):
        greater, equal, _, _ = ops.rank_counts(
            work.queries, work.table, work.targets, nothing, nothing[:0], score
        )
    return greater, equal


@contextmanager
def forced_isa(name: str | None) -> Iterator[None]:
    """An instruction set of the CPU, whatever the environment says; None: as it says."""
    before = os.environ.get("KGFAST_CPU_ISA")
    if name is not None:
        os.environ["KGFAST_CPU_ISA"] = name
    try:
        yield
    finally:
        if name is not None:
            os.environ.pop("KGFAST_CPU_ISA")
            if before is not None:
                os.environ["KGFAST_CPU_ISA"] = before


def isas(bench: Bench) -> list[str]:
    """The instruction sets of the CPU, best first; none where a GPU works."""
    return cpu.available_isas() if bench.device == "cpu" else []
