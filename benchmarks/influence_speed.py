"""TracIn of whole training sets by kgfast, and beside captum's fast variant.

    python benchmarks/influence_speed.py --data DIR DIR     writes results/cpu-influence-speed.json
    python benchmarks/influence_speed.py --quick            a smoke test: a synthetic graph

`whole`: ConvE at d = 200, fresh, the entity table, one checkpoint, the first test triples as tail
queries on every training triple of either side, 1-vs-all, with the peak of memory beyond tables.
What naive gradients of each example would hold is a formula: examples x entities x dim.

`part`: the first 1,000 training triples, contenders in turns, captum with each of some batch sizes;
the same model without biases, which its TracInCPFast leaves out. `captum`: the whole training set,
once each, captum with the batch size that was its best; of `--captum N` triples its time for all is
extrapolated, as it takes as long for each. Seconds are those of cores, which a shared machine
disturbs less. Exit code 1 if values differ by more than 1e-4 of the largest.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kgfast
from kgfast.datasets import load, synthetic
from kgfast.extras.influence import tracin
from lib import options as known_options
from lib.machine import facts, machine_line
from lib.measure import PeakMemory, Timing, in_child
from lib.results import write_json
from lib.tables import console

TOLERANCE = 1e-4
BATCHES = (64, 128, 256, 512, 1024)  # of captum's
SOME = 1000  # training triples of a part


class WithoutBias:
    """ConvE whose scores are dot products and nothing else."""

    score = "dot"

    def __init__(self, model: kgfast.ConvE) -> None:
        self.model, self.dim = model, model.dim
        self.num_entities, self.num_relations = model.num_entities, model.num_relations

    def queries(self, anchors: Tensor, relations: Tensor, side: Any) -> Tensor:
        """Those of the model."""
        return self.model.queries(anchors, relations, side)

    def candidates(self, side: Any) -> kgfast.Candidates:
        """The entity table."""
        return kgfast.Candidates(self.model.entity)


class AsNetwork(nn.Module):
    """The same as captum wants it: a network whose last layer is linear."""

    def __init__(self, model: kgfast.ConvE) -> None:
        super().__init__()
        self.model = model
        self.last = nn.Linear(model.dim, model.num_entities, bias=False)
        self.last.weight = nn.Parameter(model.entity.detach().clone())

    def forward(self, anchors: Tensor, relations: Tensor) -> Tensor:
        """Scores of tails, ``[B, N]``."""
        scores: Tensor = self.last(self.model.queries(anchors, relations, "tail"))
        return scores


class SummedBce:
    """The loss that kgfast takes, as captum wants it: a sum, which says that it is one."""

    reduction = "sum"

    def __call__(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Of scores ``[B, N]`` whose positives ``[B]`` are named."""
        labels = torch.zeros_like(scores).scatter_(1, targets[:, None], 1.0)
        total = nn.functional.binary_cross_entropy_with_logits(scores, labels, reduction="sum")
        return total / scores.shape[1]


def conve(entities: int, relations: int, dim: int) -> kgfast.ConvE:
    """A fresh model in eval mode."""
    height = 20 if dim % 20 == 0 else 4
    options = {"embedding_height": height, "initial_bias": -10.0}
    model = kgfast.ConvE.init(entities, relations, dim, seed=0, **options)
    return model.eval().requires_grad_(False)


def of_captum(model: kgfast.ConvE, train: Tensor, test: Tensor, batch: int) -> Tensor:
    """Influences ``[M, 2T]`` by captum: head queries are tail queries of inverse relations."""
    from captum.influence import TracInCPFast

    heads, relations, tails = train.T
    both = (
        torch.cat([heads, tails]),
        torch.cat([relations, relations + model.num_relations]),
        torch.cat([tails, heads]),
    )
    network = AsNetwork(model)
    found: Tensor = TracInCPFast(
        network,
        network.last,
        torch.utils.data.TensorDataset(*both),
        ["the only one"],
        lambda model, path: 1.0,
        SummedBce(),
        batch_size=batch,
    ).influence((test[:, 0], test[:, 1], test[:, 2]))
    return found.detach()


def of_kgfast(model: kgfast.ConvE, train: Tensor, test: Tensor, matrix: Path) -> Tensor:
    """The same by kgfast, in a file."""
    options: dict[str, Any] = {"loss": "bce", "rates": [1.0], "out": matrix}
    found = tracin(WithoutBias(model), train, test, **options).matrix
    assert found is not None
    return found


def timed(work: Callable[[], Tensor]) -> tuple[Tensor, float, float]:
    """What comes of it, seconds, and seconds of cores."""
    start, began = time.perf_counter(), time.process_time()
    found = work()
    return found, time.perf_counter() - start, time.process_time() - began


def race(data: Path | None, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Kgfast and captum: in turns on a part of a training set, then on all of it."""
    graph = graph_of(data)
    model, test = conve(graph.num_entities, graph.num_relations, options.dim), graph.test.hrt
    test, matrix = test[: options.tests], Path(options.scratch) / "influences.npy"
    about = {"dataset": name_of(data, graph), "entities": graph.num_entities}
    about |= {"tests": len(test), "dim": options.dim}

    def by(train: Tensor, batch: int | None) -> Callable[[], Tensor]:
        if batch is None:
            return partial(of_kgfast, model, train, test, matrix)
        return partial(of_captum, model, train, test, batch)

    rows, train = [], graph.train.hrt[:SOME]
    contenders: tuple[int | None, ...] = (None, *BATCHES)
    for batch in contenders:
        by(train[:64], batch)()  # libraries make their buffers
    turns = [[timed(by(train, batch)) for batch in contenders] for _ in range(options.rounds)]
    for place, batch in enumerate(contenders):
        own = [turn[place] for turn in turns]
        wall, cores = (Timing.of([it[at] for it in own]) for at in (1, 2))
        rows.append(row_of("part", batch, (2 * len(train), wall.median, cores.median), about))
    best = min(rows[1:], key=lambda row: row["cpu_seconds"])["batch"]
    train = graph.train.hrt
    found, *seconds = timed(by(train, None))
    rows.append(row_of("captum", None, (2 * len(train), *seconds), about))
    count = min(options.captum or len(train), len(train))
    expected, *seconds = timed(by(train[:count], best))
    share = count / len(train)
    rows.append(row_of("captum", best, (2 * len(train), *(it / share for it in seconds)), about))
    rows[-1]["extrapolated_from"] = None if share == 1 else 2 * count
    same = torch.cat([found[:, :count], found[:, len(train) :][:, :count]], 1)
    rows[-1]["relative_difference"] = float((same - expected).abs().max() / expected.abs().max())
    matrix.unlink()
    for row in rows:
        ours = next(it for it in rows if it["section"] == row["section"])
        for name in ("seconds", "cpu_seconds"):
            row[f"{name}_ratio"] = row[name] / ours[name]
    return rows


def row_of(
    section: str, batch: int | None, measured: tuple[int, float, float], about: dict[str, Any]
) -> dict[str, Any]:
    """A row of a contender, of whom captum has batches."""
    examples, seconds, cores = measured
    contender = "kgfast" if batch is None else "captum"
    row = {"section": section, "contender": contender, "batch": batch, "examples": examples}
    return row | {"seconds": seconds, "cpu_seconds": cores} | about


def name_of(data: Path | None, graph: Any) -> str:
    """What a graph is called."""
    return "synthetic" if data is None else str(graph.name)


def graph_of(data: Path | None) -> Any:
    """The graph of a folder; without one a tiny one."""
    return synthetic(*known_options.QUICK_SIZES) if data is None else load(data)


def whole(data: Path | None, dim: int, tests: int) -> dict[str, Any]:
    """All training examples of a graph, timed once, with the peak beyond tables."""
    graph = graph_of(data)
    model = conve(graph.num_entities, graph.num_relations, dim)
    train, test = graph.train.hrt, graph.test.hrt[:tests]
    tracin(model, train[:64], test, loss="bce", rates=[1.0])  # libraries make their buffers
    with PeakMemory("cpu") as peak:
        start, began = time.perf_counter(), time.process_time()
        found = tracin(model, train, test, loss="bce", rates=[1.0])
        seconds, of_cores = time.perf_counter() - start, time.process_time() - began
    examples, entities = len(found.examples), graph.num_entities
    return {
        "section": "whole",
        "contender": "kgfast",
        "dataset": name_of(data, graph),
        "entities": entities,
        "examples": examples,
        "tests": len(test),
        "dim": dim,
        "seconds": seconds,
        "cpu_seconds": of_cores,
        "peak_bytes": peak.bytes,
        "memory_method": peak.method,
        "naive_bytes": 4 * examples * entities * dim,
        "naive_is": "a formula: a gradient of the table, float32, for each example",
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = known_options.new_parser(__doc__)
    parser.add_argument("--data", type=Path, nargs="+", metavar="DIR", help="the graphs")
    parser.add_argument("--scratch", default="/tmp", metavar="DIR", help="for a file of influences")
    for name, what in (
        ("dim", "of the model"),
        ("tests", "test triples"),
        ("rounds", "turns of each contender"),
        ("captum", "training triples of captum's; all unless given"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=what)
    known_options.add_outputs(parser, "influence-speed", plot=False)
    options = parser.parse_args(arguments)
    sizes = {"dim": 200, "tests": 100, "rounds": 3}, {"dim": 16, "tests": 5, "rounds": 1}
    known_options.set_defaults(options, *sizes)
    known_options.check_positive(parser, options, "dim", "tests", "rounds", "captum")
    if not options.quick and options.data is None:
        parser.error("--data is needed without --quick")
    known_options.set_outputs(options, "influence-speed")
    return options


def main() -> int:
    """Measure, print, write; 1 if captum's values are others."""
    options, out, about = parse(), console(), facts("cpu")
    out.print(machine_line(about), style="dim")
    rows: list[dict[str, Any]] = []
    for data in [None] if options.quick else options.data:
        rows += of_graph(data, options, out)
        if options.json is not None:
            named = [{"benchmark": "influence_speed"} | row | about for row in rows]
            write_json(options.json, {"goal": {"captum": 5}, "rows": named})
    differences = [row["relative_difference"] for row in rows if "relative_difference" in row]
    return 0 if max(differences) <= TOLERANCE else 1


def of_graph(data: Path | None, options: argparse.Namespace, out: Any) -> list[dict[str, Any]]:
    """All rows of a graph, printed."""
    first = in_child(whole, data, options.dim, options.tests)
    out.print(
        f"{first['dataset']}: {first['tests']} tests x {first['examples']:,} examples in "
        f"{first['seconds']:.1f} s ({first['cpu_seconds']:.1f} s of cores), "
        f"{first['peak_bytes'] / 2**20:.1f} MiB "
        f"(naive, by formula: {first['naive_bytes'] / 1e12:.2f} TB)"
    )
    raced = race(data, options)
    for row in raced:
        batch = "" if row["batch"] is None else f", batch {row['batch']}"
        batch += "" if row.get("extrapolated_from") is None else " ~"
        out.print(
            f"{row['examples']:9,} examples  {row['contender'] + batch:<22} "
            f"{row['seconds']:8.2f} s  {row['cpu_seconds']:8.2f} s of cores "
            f"{row['cpu_seconds_ratio']:6.1f}x"
        )
    out.print(f"values differ by {raced[-1]['relative_difference']:.1e} of the largest")
    return [first, *raced]


if __name__ == "__main__":
    sys.exit(main())
