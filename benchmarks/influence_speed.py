"""TracIn of a whole training set by kgfast, and beside captum's fast variant where that fits.

    python benchmarks/influence_speed.py --data DIR     writes results/cpu-influence-speed.json
    python benchmarks/influence_speed.py --quick        a smoke test: synthetic graphs

`whole`: ConvE at d = 200, fresh, the entity table, one checkpoint, the first test triples as tail
queries on every training triple of either side, 1-vs-all. What naive gradients of each example
would hold is a formula: examples x entities x dim. `captum`: the same model without biases (which
its TracInCPFast leaves out) and the first 1,000 training triples, its batches of 128, contenders in
turns, the values compared; exit code 1 if they differ by more than 1e-4 of the largest.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kgfast
from kgfast.datasets import load, synthetic
from kgfast.influence import tracin
from lib import options as known_options
from lib.machine import facts, machine_line
from lib.measure import PeakMemory, Stopwatch, in_child
from lib.results import write_json
from lib.tables import console

TOLERANCE = 1e-4
BATCH = 128  # of captum's: larger ones take it longer
SOME = 1000  # training triples of the race


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


def conve(entities: int, relations: int, dim: int) -> kgfast.ConvE:
    """A fresh model in eval mode."""
    height = 20 if dim % 20 == 0 else 4
    options = {"embedding_height": height, "initial_bias": -10.0}
    model = kgfast.ConvE.init(entities, relations, dim, seed=0, **options)
    return model.eval().requires_grad_(False)


def of_captum(model: kgfast.ConvE, train: Tensor, test: Tensor) -> Tensor:
    """Influences ``[M, 2T]`` by captum: head queries are tail queries of inverse relations."""
    from captum.influence import TracInCPFast

    heads, relations, tails = train.T
    both = (
        torch.cat([heads, tails]),
        torch.cat([relations, relations + model.num_relations]),
        torch.cat([tails, heads]),
    )
    loss = nn.BCEWithLogitsLoss(reduction="sum")

    def of_labels(scores: Tensor, targets: Tensor) -> Tensor:
        labels = torch.zeros_like(scores).scatter_(1, targets[:, None], 1.0)
        total: Tensor = loss(scores, labels) / scores.shape[1]
        return total

    of_labels.reduction = "sum"  # type: ignore[attr-defined]
    network = AsNetwork(model)
    found: Tensor = TracInCPFast(
        network,
        network.last,
        torch.utils.data.TensorDataset(*both),
        ["the only one"],
        lambda model, path: 1.0,
        of_labels,
        batch_size=BATCH,
    ).influence((test[:, 0], test[:, 1], test[:, 2]))
    return found


def race(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Kgfast and captum in turns, on a graph where captum fits."""
    graph = graph_of(None if options.quick else options.data)
    train, test = graph.train.hrt[:SOME], graph.test.hrt[: options.tests]
    model = conve(graph.num_entities, graph.num_relations, options.dim)
    matrix = Path(options.scratch) / "influences.npy"
    ours = partial(tracin, WithoutBias(model), train, test, loss="bce", rates=[1.0], out=matrix)
    contenders = {"kgfast": ours, "captum": partial(of_captum, model, train, test)}
    answers, timings = Stopwatch("cpu").race(contenders, options.rounds)
    found, expected = answers["kgfast"].matrix, answers["captum"].detach()
    difference = float((found - expected).abs().max() / expected.abs().max())
    matrix.unlink()
    return [
        {
            "section": "captum",
            "contender": name,
            "batch": BATCH if name == "captum" else None,
            "entities": graph.num_entities,
            "examples": 2 * len(train),
            "tests": len(test),
            "dim": options.dim,
            "seconds": timing.as_dict(),
            "times_kgfast": timing.median / timings["kgfast"].median,
            "relative_difference": difference,
        }
        for name, timing in timings.items()
    ]


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
        "dataset": "synthetic" if data is None else graph.name,
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
    parser.add_argument("--data", type=Path, metavar="DIR", help="the graph of `whole`")
    parser.add_argument("--scratch", default="/tmp", metavar="DIR", help="for a file of influences")
    for name, what in (
        ("dim", "of the model"),
        ("tests", "test triples"),
        ("rounds", "turns of each contender"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="N", help=what)
    known_options.add_outputs(parser, "influence-speed", plot=False)
    options = parser.parse_args(arguments)
    sizes = {"dim": 200, "tests": 100, "rounds": 3}, {"dim": 16, "tests": 5, "rounds": 1}
    known_options.set_defaults(options, *sizes)
    known_options.check_positive(parser, options, "dim", "tests", "rounds")
    if not options.quick and options.data is None:
        parser.error("--data is needed without --quick")
    known_options.set_outputs(options, "influence-speed")
    return options


def main() -> int:
    """Measure, print, write; 1 if captum's values are others."""
    options, out, about = parse(), console(), facts("cpu")
    out.print(machine_line(about), style="dim")
    data = None if options.quick else options.data
    rows = [in_child(whole, data, options.dim, options.tests)]
    first = rows[0]
    out.print(
        f"{first['dataset']}: {first['tests']} tests x {first['examples']:,} examples in "
        f"{first['seconds']:.1f} s ({first['cpu_seconds']:.1f} s of cores), "
        f"{first['peak_bytes'] / 2**20:.1f} MiB "
        f"(naive, by formula: {first['naive_bytes'] / 1e12:.2f} TB)"
    )
    rows += race(options)
    for row in rows[1:]:
        out.print(
            f"{row['contender']:<8} {row['seconds']['median']:8.3f} s {row['times_kgfast']:6.1f}x"
        )
    difference = rows[1]["relative_difference"]
    out.print(f"values differ by {difference:.1e} of the largest")
    if options.json is not None:
        named = [{"benchmark": "influence_speed"} | row | about for row in rows]
        write_json(options.json, {"rows": named})
    return 0 if difference <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
