"""Compare TracIn of whole training sets by kgfast with captum's fast variant.

    python benchmarks/influence_speed.py --data DIR DIR     writes results/cpu-influence-speed.json

`whole`: a fresh ConvE at d = 200, the entity table, one checkpoint, 1-vs-all: the first test
triples as tail queries on every training triple of either side. `part`: the first 1,000 training
triples in turns, captum with several batch sizes, without biases, which its TracInCPFast leaves
out. `captum`: all triples, captum with its best batch size, after `--captum N` extrapolated. Times
are seconds of cores. Exit code 1 if values differ by more than 1e-4 of the largest.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import kgfast
from kgfast.datasets import load, synthetic
from kgfast.extras.influence import tracin
from lib.benchmark import QUICK_SIZES, Benchmark, Option, Options, needs_data, positive
from lib.columns import INFLUENCES
from lib.measure import in_child, timed

TOLERANCE = 1e-4
BATCHES = (64, 128, 256, 512, 1024)  # batches of captum
SOME = 1000  # training triples of a part


class WithoutBias:
    """ConvE whose scores are dot products and nothing else."""

    score = "dot"

    def __init__(self, model: kgfast.ConvE) -> None:
        self.model, self.dim = model, model.dim
        self.num_entities, self.num_relations = model.num_entities, model.num_relations

    def queries(self, anchors: Tensor, relations: Tensor, side: Any) -> Tensor:
        """Return the queries of the model."""
        return self.model.queries(anchors, relations, side)

    def candidates(self, side: Any) -> kgfast.Candidates:
        """Return the entity table without biases."""
        return kgfast.Candidates(self.model.entity)


class AsNetwork(nn.Module):
    """ConvE without biases as a network for captum: its last layer is linear."""

    def __init__(self, model: kgfast.ConvE) -> None:
        super().__init__()
        self.model = model
        self.last = nn.Linear(model.dim, model.num_entities, bias=False)
        self.last.weight = nn.Parameter(model.entity.detach().clone())

    def forward(self, anchors: Tensor, relations: Tensor) -> Tensor:
        """Return scores of tails, ``[B, N]``."""
        scores: Tensor = self.last(self.model.queries(anchors, relations, "tail"))
        return scores


class SummedBce:
    """The loss that kgfast takes, as captum wants it: a sum, which says that it is one."""

    reduction = "sum"

    def __call__(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Sum the loss of scores ``[B, N]`` with positives ``[B]``."""
        labels = torch.zeros_like(scores).scatter_(1, targets[:, None], 1.0)
        total = nn.functional.binary_cross_entropy_with_logits(scores, labels, reduction="sum")
        return total / scores.shape[1]


def conve(entities: int, relations: int, dim: int) -> kgfast.ConvE:
    """Return a fresh model in eval mode."""
    height = 20 if dim % 20 == 0 else 4
    options = {"embedding_height": height, "initial_bias": -10.0}
    model = kgfast.ConvE.init(entities, relations, dim, seed=0, **options)
    return model.eval().requires_grad_(False)


def of_captum(model: kgfast.ConvE, train: Tensor, test: Tensor, batch: int) -> Tensor:
    """Return influences ``[M, 2T]`` by captum, as tail queries of inverse relations too."""
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


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield all rows of each graph."""
    for data in [None] if options.quick else options.data:
        yield in_child(whole, data, options.dim, options.tests)
        yield from race(data, options)


def race(data: Path | None, options: Options) -> list[dict[str, Any]]:
    """Compare kgfast and captum: in turns on a part of a training set, then on all of it."""
    graph = graph_of(data)
    model, test = conve(graph.num_entities, graph.num_relations, options.dim), graph.test.hrt
    test, plain = test[: options.tests], WithoutBias(model)
    about = {"dataset": graph.name, "entities": graph.num_entities}
    about |= {"tests": len(test), "dim": options.dim}

    def by(train: Tensor, batch: int | None) -> Callable[[], Tensor]:
        if batch is None:
            return lambda: tracin(plain, train, test, loss="bce", rates=[1.0]).matrix
        return partial(of_captum, model, train, test, batch)

    def row_of(section: str, batch: int | None, taken: dict[str, float]) -> dict[str, Any]:
        contender = "kgfast" if batch is None else "captum"
        row = {"section": section, "contender": contender, "batch": batch}
        return row | {"examples": 2 * len(train)} | taken | about

    rows, train = [], graph.train.hrt[:SOME]
    contenders: tuple[int | None, ...] = (None, *BATCHES)
    for batch in contenders:
        by(train[:64], batch)()  # libraries make their buffers
    turns = [[timed(by(train, it))[1] for it in contenders] for _ in range(options.rounds)]
    for batch, own in zip(contenders, zip(*turns, strict=True), strict=True):
        middle = {name: median(turn[name] for turn in own) for name in own[0]}
        rows.append(row_of("part", batch, middle))
    best = min(rows[1:], key=lambda row: row["cpu_seconds"])["batch"]
    train = graph.train.hrt
    found, taken = timed(by(train, None))
    rows.append(row_of("captum", None, taken))
    count = min(options.captum or len(train), len(train))
    expected, taken = timed(by(train[:count], best))
    share = count / len(train)
    rows.append(row_of("captum", best, {name: it / share for name, it in taken.items()}))
    rows[-1]["extrapolated_from"] = None if share == 1 else 2 * count
    same = torch.cat([found[:, :count], found[:, len(train) :][:, :count]], 1)
    rows[-1]["relative_difference"] = float((same - expected).abs().max() / expected.abs().max())
    for row in rows:
        ours = next(it for it in rows if it["section"] == row["section"])
        for name in taken:
            row[f"{name}_ratio"] = row[name] / ours[name]
    return rows


def graph_of(data: Path | None) -> Any:
    """Return the graph of a folder; without one a tiny one."""
    return synthetic(*QUICK_SIZES) if data is None else load(data)


def whole(data: Path | None, dim: int, tests: int) -> dict[str, Any]:
    """Take all training examples of a graph, timed once."""
    graph = graph_of(data)
    model = conve(graph.num_entities, graph.num_relations, dim)
    train, test = graph.train.hrt, graph.test.hrt[:tests]
    tracin(model, train[:64], test, loss="bce", rates=[1.0])  # libraries make their buffers
    found, taken = timed(lambda: tracin(model, train, test, loss="bce", rates=[1.0]))
    return {
        "section": "whole",
        "contender": "kgfast",
        "dataset": graph.name,
        "entities": graph.num_entities,
        "examples": len(found.examples),
        "tests": len(test),
        "dim": dim,
        **taken,
    }


BENCHMARK = Benchmark(
    "influence_speed",
    __doc__,
    {"influence": rows_of},
    options={
        "data": Option("folders of graphs", keywords={"type": Path, "nargs": "+"}),
        "dim": Option("of the model", 200, 16),
        "tests": Option("test triples", 100, 5),
        "rounds": Option("turns of each contender", 3, 1),
        "captum": Option(
            "training triples of captum's; all unless given", keywords={"type": positive}
        ),
    },
    tables=(
        *INFLUENCES,
        ("times kgfast's:", "{cpu_seconds_ratio:.1f}"),
        ("values differ by:", "{relative_difference:.0e}"),
    ),
    check=needs_data("each graph"),
    is_right=lambda row: row.get("relative_difference", 0) <= TOLERANCE,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
