"""Steps of ComplEx trained over all entities, by kgfast and by what a user could run instead.

Each contender has the same graph, batch and rank, inverse relations, float32 and Adagrad; two peers
have products of bf16 numbers. A query is one (h, r, ?) or (?, r, t). In an epoch of 1-vs-all each
triple asks two, and the loss is cross entropy. In one of KvsAll, which PyKEEN calls LCWA, each
distinct pair asks one, with all its answers as labels, and the loss is binary cross entropy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kgfast.datasets import Dataset, synthetic
from kgfast.training import Config, Trainer
from kgfast.training.data import Batch, Batches, with_inverses
from lib.bare_run import TrainerSteps
from lib.peers import building
from lib.peers.pykeen_loop import PykeenLoop

LR = 0.1
INIT_STD = 0.1


@dataclass(frozen=True)
class Work:
    """The shape of a step, and the sizes of the graph."""

    sizes: tuple[int, int, int, int, int]
    rank: int
    batch: int

    @cached_property
    def graph(self) -> Dataset:
        """Return a synthetic graph."""
        return synthetic(*self.sizes)

    def trainer(self, loss: str = "cross_entropy") -> Trainer:
        """Return kgfast's trainer."""
        model = {"name": "complex", "base_dim": self.rank, "init_std": INIT_STD, "reciprocal": True}
        config = {
            "dataset": {"name": "synthetic"},
            "model": model,
            "optim": {"name": "adagrad", "lr": LR},
            "train": {"steps": 1_000_000, "mode": "kvsall" if loss == "bce" else "1vsall"},
            "data": {"train_bs": self.batch},
            "loss": {"name": loss},
        }
        return Trainer(Config.from_dict(config), dataset=self.graph, progress=False)


class Kgfast(TrainerSteps):
    """The trainer's own steps, of triples or, by ``bce``, of pairs with all their answers."""

    def __init__(self, work: Work, loss: str = "cross_entropy") -> None:
        both = with_inverses(work.graph.train.hrt, work.graph.num_relations)
        self.queries = len(both[:, :2].unique(dim=0) if loss == "bce" else both)  # of an epoch
        super().__init__(work.trainer(loss))


class Dense:
    """1-vs-all as the official code of N3 does it: three products and dense Adagrad."""

    def __init__(self, work: Work, *, is_compiled: bool = False) -> None:
        model: Any = work.trainer().model
        inner = getattr(model, "model", model)  # inner relations and their inverses are one table
        both = with_inverses(work.graph.train.hrt, work.graph.num_relations)
        self.queries = len(both)
        self.entity = nn.Parameter(inner.entity.detach().clone())
        self.relation = nn.Parameter(inner.relation.detach().clone())
        self.batches = Batches(both, work.batch, seed=0, sides=("tail",))
        self._optimizer = torch.optim.Adagrad([self.entity, self.relation], LR, fused=True)
        self._of_rows: Callable[[Tensor, Tensor, Tensor], Tensor] = self._loss
        if is_compiled:
            self._of_rows = torch.compile(self._loss, dynamic=False)
            with building():
                self.loss(self.batches.batch(0)).backward()
        self._step = 0

    def steps(self, count: int) -> None:
        """Make some steps."""
        for _ in range(count):
            self._optimizer.zero_grad()
            self.loss(self.batches.batch(self._step)).backward()
            self._optimizer.step()
            self._step += 1

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""
        anchors = functional.embedding(batch.anchors, self.entity)
        relations = functional.embedding(batch.relations, self.relation)
        assert batch.targets is not None
        return self._of_rows(anchors, relations, batch.targets)

    def _loss(self, anchors: Tensor, relations: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.scores(anchors, relations), targets)

    def scores(self, anchors: Tensor, relations: Tensor) -> Tensor:
        """``[B, N]``: Trouillon et al. 2016, eq. 9, of rows ``re | im``."""
        (re, im), (turn_re, turn_im) = anchors.chunk(2, 1), relations.chunk(2, 1)
        queries = torch.cat([re * turn_re - im * turn_im, re * turn_im + im * turn_re], 1)
        return queries @ self.entity.T


class DenseBf16(Dense):
    """Dense torch with products of bfloat16 numbers by autocast."""

    def scores(self, anchors: Tensor, relations: Tensor) -> Tensor:
        """``[B, N]``."""
        with torch.autocast("cpu", torch.bfloat16):
            return super().scores(anchors, relations)


class LibKGEs(Dense):
    """LibKGE's product: of features twice as many, its four terms, of a table made each step."""

    def scores(self, anchors: Tensor, relations: Tensor) -> Tensor:
        """``[B, N]``."""
        turn_re, turn_im = relations.chunk(2, 1)
        twice = torch.cat([anchors, anchors], 1)
        turns = torch.cat([turn_re, relations, -turn_im], 1)
        re, im = self.entity.chunk(2, 1)
        return (twice * turns) @ torch.cat([self.entity, im, re], 1).T


class PykeensLcwa:
    """PyKEEN's LCWA loop on its ComplEx; its epochs are as long as the steps asked for."""

    def __init__(self, work: Work) -> None:
        graph, self._batch = work.graph, work.batch
        self._hrt = with_inverses(graph.train.hrt, graph.num_relations)
        pairs, self._owners = self._hrt[:, :2].unique(dim=0, return_inverse=True)
        self.queries = len(pairs)
        self._order = torch.randperm(self.queries, generator=torch.Generator().manual_seed(0))
        self._loop = PykeenLoop(
            self._hrt,
            (graph.num_entities, 2 * graph.num_relations),
            "ComplEx",
            "lcwa",
            partial(torch.optim.Adagrad, lr=LR),
            {"embedding_dim": work.rank, "loss": "bcewithlogits"},
        )

    def steps(self, count: int) -> None:
        """Train an epoch of so many batches."""
        chosen = torch.isin(self._owners, self._order[: count * self._batch])
        self._loop.train(self._hrt[chosen], self._batch)


CONTENDERS: dict[str, Callable[[Work], Any]] = {
    "kgfast": Kgfast,
    "dense torch": Dense,
    "dense torch, bf16": DenseBf16,
    "dense torch, compiled": partial(Dense, is_compiled=True),
    "dense torch, compiled, bf16": partial(DenseBf16, is_compiled=True),
    "LibKGE's way": LibKGEs,
    "kgfast, KvsAll": partial(Kgfast, loss="bce"),
    "pykeen": PykeensLcwa,
}


def loss_difference(work: Work) -> float:
    """Return how far the losses of a first batch are from each other, relatively, at most."""
    ours = TrainerSteps(work.trainer()).first_loss()
    peers = [peer(work) for peer in (Dense, LibKGEs)]
    theirs = [float(it.loss(it.batches.batch(0)).detach()) for it in peers]
    return max(abs(ours - it) / abs(it) for it in theirs)
