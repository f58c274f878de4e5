"""A race of kgfast against its peers: options, rows and inputs of eval_speed and topk_speed."""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import kgfast
from kgfast import ops
from kgfast.kernels import cpu
from lib import options as known_options
from lib.machine import facts, machine_line
from lib.measure import Stopwatch, Timing
from lib.options import QUICK_SIZES, Parser
from lib.peers import Missing
from lib.peers.ranks import Counts, Work
from lib.results import Rows, draw, write_json
from lib.tables import console, print_ratios

BATCH = 128
PEERS = ("compile", "eager", "keops", "pykeen")

Contender = Callable[..., Any]


def new_parser(doc: str | None, name: str) -> Parser:
    """The options of a race, whose results are called ``name``."""
    parser = known_options.new_parser(doc, quick="a tiny graph, eager torch: seconds")
    parser.add_argument("--dims", type=int, nargs="+", metavar="D", help="128 512 unless given")
    parser.add_argument(
        "--tables", nargs="+", choices=("random", "planted"), default=["random", "planted"]
    )
    parser.add_argument("--peers", nargs="*", choices=PEERS, help="all of them unless given")
    parser.add_argument("--rounds", type=int, help="turns of each contender; 5 unless given")
    known_options.add_device(parser)
    known_options.add_outputs(parser, name)
    return parser


def checked(
    parser: Parser, name: str, arguments: list[str] | None, *positive: str
) -> argparse.Namespace:
    """The command line, checked; ``positive`` names options that are at least 1."""
    options = parser.parse_args(arguments)
    known_options.set_defaults(
        options,
        whole={"dims": [128, 512], "rounds": 5, "peers": list(PEERS)},
        quick={"dims": [16], "rounds": 2, "peers": ["eager"]},
    )
    known_options.check_positive(parser, options, "dims", "rounds", *positive)
    known_options.check_device(parser, options)
    known_options.set_outputs(options, name)
    return options


@dataclass
class Bench:
    """The options, and the rows so far."""

    name: str
    options: argparse.Namespace
    out: Console
    graph: Any
    stopwatch: Stopwatch
    rows: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, options: argparse.Namespace) -> "Bench":
        """A race on the synthetic graph."""
        graph = kgfast.datasets.synthetic(*(QUICK_SIZES if options.quick else ()))
        return cls(name, options, console(), graph, Stopwatch(options.device))

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda``."""
        return str(self.options.device)

    def add(self, section: str, contender: str, **row: Any) -> dict[str, Any]:
        """Keep a row."""
        where = {"section": section, "contender": contender, "entities": self.graph.num_entities}
        self.rows.append({"benchmark": self.name, "extrapolated": False} | where | row)
        return self.rows[-1]

    def add_missing(
        self, section: str, missing: Mapping[str, str], work: Mapping[str, Any]
    ) -> None:
        """Keep a row for each contender that cannot run here."""
        for name, reason in missing.items():
            self.add(section, name, **work, seconds=None, note=reason)

    def race(
        self, section: str, contenders: Mapping[str, Contender], work: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """What all contenders answer, and a row for each of them."""
        answers, timings = self.stopwatch.race(contenders, self.options.rounds)
        rows = {
            name: self.add_timed(section, name, timing, timings["kgfast"], work)
            for name, timing in timings.items()
        }
        for name, row in rows.items():
            chunk = getattr(contenders[name], "chunk", None)
            if chunk is not None:
                row["chunk"] = chunk
        return answers, rows

    def add_timed(
        self, section: str, name: str, timing: Timing, ours: Timing, work: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Keep the row of a contender that took its turns."""
        row = self.add(section, name, **work, seconds=timing.as_dict())
        elements = row["batch"] * row["entities"] * row["dim"]
        row["elements_per_s"] = elements / timing.median
        row["times_kgfast"] = timing.median / ours.median
        return row

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

    def run(
        self,
        sections: Sequence[Callable[["Bench"], None]],
        ratios: Callable[[Rows], list[dict[str, str]]],
        picture: str,
    ) -> int:
        """Measure, print, write; 1 if an answer of kgfast's differs from the specification."""
        options, about = self.options, facts(self.device)
        self.out.print(machine_line(about), style="dim")
        self.out.print(
            f"{self.graph.num_entities:,} entities; {options.rounds} rounds\n", style="dim"
        )
        for section in sections:
            section(self)
            rows = [row | about for row in self.rows]
            if options.json is not None:  # after each: a run that is stopped keeps what there is
                write_json(options.json, {"ratios": ratios(rows), "rows": rows})
        print_ratios(self.out, ratios(rows))
        draw(picture, rows, options.plot, self.out)
        if not all(row.get("equals_reference", True) for row in rows):
            self.out.print("[bold white on red] ANSWERS DIFFER FROM THE SPECIFICATION: a bug ")
            return 1
        return 0


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
