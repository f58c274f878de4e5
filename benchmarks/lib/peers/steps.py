"""RotatE training steps by kgfast and by what a user could run instead.

Each contender has the same batch, number of negatives and dimension, and self-adversarial loss.
kgfast and the loops in torch share a pool of negatives. PyKEEN draws negatives for each triple, the
same number of scores, and so do a second contender of kgfast and two tuned loops in torch.

`plain torch` is the official code's formula (Sun et al. 2019) on a pool, as a user would start it:
on the whole batch where it fits into memory, with dense Adam. The tuned loop runs on parts of the
batch that stay nearer to the cache, whose gradients add up, with a modulus that torch computes
faster than the official code's norm of a stack of two. Its SparseAdam updates the rows of a step
alone, as kgfast's RowAdam does. The compiled loop is the tuned one by torch.compile. PyKEEN has
parts where they are faster.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import kgfast
from kgfast.datasets import synthetic
from kgfast.training import Config, Trainer
from kgfast.training.data import Batches, Negatives
from lib.bare_run import TrainerSteps
from lib.machine import available_memory
from lib.measure import Stopwatch
from lib.peers import building
from lib.peers.pykeen_loop import PykeenLoop

GAMMA, ALPHA, LR = 6.0, 0.5, 1e-3
# [B, K, d] float32 tensors alive at the peak of a step: measured on small batches.
_TENSORS = {"plain": 8, "pykeen": 13}
_SHARE = 0.6  # share of free memory
_TINY = 1e-20  # the square root has no slope at 0


@dataclass(frozen=True)
class Work:
    """The shape of a step, and the sizes of the graph."""

    sizes: tuple[int, int, int, int, int]
    dim: int
    batch: int
    negatives: int
    per_row: bool = False

    @property
    def scores(self) -> int:
        """Return the number of pairs that a step scores and differentiates."""
        return self.batch * (self.negatives + 1)

    def trainer(self, capture: str = "auto") -> Trainer:
        """Return kgfast's trainer."""
        config = Config.from_dict(
            {
                "dataset": {"name": "synthetic"},
                "model": {"name": "rotate", "base_dim": self.dim, "gamma": GAMMA},
                "optim": {"name": "row_adam", "lr": LR},
                "train": {"steps": 1_000_000, "capture": capture},
                "data": {
                    "train_bs": self.batch,
                    "neg_size": self.negatives,
                    "negatives": "per_row" if self.per_row else "shared",
                },
                "loss": {"name": "nssa", "alpha": ALPHA},
            }
        )
        return Trainer(config, dataset=synthetic(*self.sizes), progress=False)

    def fitting(self, contender: str) -> int:
        """Return the rows of a batch that fit into free memory for ``plain`` or ``pykeen``."""
        row = 4 * self.negatives * self.dim * _TENSORS[contender]
        part = self.batch
        while part > 1 and part * row > _SHARE * available_memory():
            part //= 2
        return part


class Loop:
    """Train as a user writes it: a public loss, ``backward()``, a step of a public optimizer."""

    def __init__(self, work: Work) -> None:
        self._graph, self._work = synthetic(*work.sizes), work
        sizes = self._graph.num_entities, self._graph.num_relations
        self._model = kgfast.RotatE.init(*sizes, dim=work.dim, gamma=GAMMA, seed=0)
        self._optimizer = kgfast.RowAdam(self._model.parameters(), lr=LR)
        self._step = 0

    def steps(self, count: int) -> None:
        """Make some steps."""
        model, optimizer, graph, work = self._model, self._optimizer, self._graph, self._work
        shape = (work.batch, work.negatives) if work.per_row else (work.negatives,)
        with kgfast.cores_for_kernels(torch.device("cpu")):
            for _ in range(count):
                rows = torch.randint(len(graph.train), (work.batch,))
                negatives = torch.randint(graph.num_entities, shape)
                side = ("tail", "head")[self._step % 2]
                loss = kgfast.losses.nssa(
                    model, graph.train.hrt[rows], negatives, side=side, alpha=ALPHA, sparse=True
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                self._step += 1
                assert loss.isfinite()


class Plain:
    """The official code's formula in torch; with dense Adam as there, unless it is tuned.

    A loop whose triples have negatives of their own is tuned.
    """

    def __init__(
        self, work: Work, part: int, *, is_tuned: bool = False, is_compiled: bool = False
    ) -> None:
        self.part, self._is_tuned, self._per_row = part, is_tuned, work.per_row
        trainer = work.trainer()
        self.model: Any = trainer.model
        hrt, config = trainer.dataset.train.hrt, trainer.config
        self._batches = Batches(hrt, work.batch, config.seed)
        self._negatives = Negatives(
            trainer.dataset.num_entities, work.negatives, config.seed, shared=not work.per_row
        )
        optimizer = torch.optim.SparseAdam if is_tuned else torch.optim.Adam
        self._optimizer = optimizer(list(self.model.parameters()), LR)
        self._part_loss: Callable[..., Tensor] = self._loss
        if is_compiled:
            torch._dynamo.reset()  # or it stops compiling after eight shapes
            self._part_loss = torch.compile(self._loss, dynamic=False)
        self._step = 0

    def steps(self, count: int) -> None:
        """Make some steps."""
        for _ in range(count):
            self._optimizer.zero_grad()
            self.backward(self._step)
            self._optimizer.step()
            self._step += 1

    def backward(self, number: int) -> float:
        """Make the gradients of a batch; return its loss."""
        batch = self._batches.batch(number)
        assert batch.targets is not None
        pool = self._negatives.draw(batch)[0]
        entity, relation = self.model.entity, self.model.relation
        rows = [
            functional.embedding(ids, table, sparse=self._is_tuned)
            for table, ids in (
                (entity, batch.anchors),
                (relation, batch.relations),
                (entity, batch.targets),
                (entity, pool[:0] if self._per_row else pool),
            )
        ]
        # Parts are leaves of their own: the gradient of a slice is as large as the whole.
        split = [list(it.detach()[:, None].split(self.part)) for it in rows[:3]]
        candidates = shared = rows[3].detach()[None].requires_grad_()
        of_entities = torch.zeros(entity.shape) if self._per_row else None
        total, count = 0.0, len(batch.anchors)
        pools = pool.split(self.part) if self._per_row else (pool,) * len(split[0])
        for ids, *part in zip(pools, *split, strict=True):
            anchors, relations, targets = (leaf.requires_grad_() for leaf in part)
            if of_entities is not None:
                candidates = entity.detach()[ids].requires_grad_()
            # Not compiled: the compiler would turn an anchor again for each of its candidates.
            turned = self._turned(anchors, relations, batch.side)
            loss = self._part_loss(*turned, targets, candidates) / (2 * count)
            loss.backward()
            total += float(loss.detach())
            if of_entities is not None:
                of_entities.index_add_(0, ids.flatten(), candidates.grad.flatten(0, 1))
        gradients = [torch.cat([leaf.grad[:, 0] for leaf in leaves]) for leaves in split]
        of_shared = shared.grad[0] if of_entities is None else rows[3]
        torch.autograd.backward(rows, [*gradients, of_shared])
        if of_entities is not None:
            drawn = pool.unique()
            entity.grad = entity.grad + torch.sparse_coo_tensor(
                drawn[None], of_entities[drawn], entity.shape, check_invariants=False
            )
        return total

    def _turned(self, anchors: Tensor, relations: Tensor, side: str) -> tuple[Tensor, Tensor]:
        """Return the parts of rotated anchors as ``RotatE`` of the official ``codes/model.py``."""
        re, im = anchors.chunk(2, -1)
        phase = relations / (self.model.embedding_range / torch.pi)
        turn_re, turn_im = phase.cos(), phase.sin()
        if side == "head":
            turn_im = -turn_im
        return re * turn_re - im * turn_im, re * turn_im + im * turn_re

    def _loss(self, re: Tensor, im: Tensor, targets: Tensor, pool: Tensor) -> Tensor:
        positive, negative = (self._scores(re, im, it) for it in (targets, pool))
        weights = (negative * ALPHA).softmax(1).detach()
        wrong = (weights * functional.logsigmoid(-negative)).sum(1)
        return -(functional.logsigmoid(positive[:, 0]) + wrong).sum()

    def _scores(self, re: Tensor, im: Tensor, candidates: Tensor) -> Tensor:
        """Return scores ``[B, K]`` of rotated anchors and candidates."""
        candidate_re, candidate_im = candidates.chunk(2, -1)
        re_score, im_score = re - candidate_re, im - candidate_im
        if self._is_tuned:
            return GAMMA - (re_score * re_score + im_score * im_score + _TINY).sqrt().sum(-1)
        return GAMMA - torch.stack([re_score, im_score], 0).norm(dim=0).sum(-1)


class Pykeen:
    """PyKEEN's sLCWA loop on its RotatE; its epochs are as long as the steps asked for."""

    def __init__(self, work: Work, part: int) -> None:
        self._work, self.part, self._hrt = work, part, synthetic(*work.sizes).train.hrt
        loss = {"margin": GAMMA, "adversarial_temperature": ALPHA}
        self._loop = PykeenLoop(
            self._hrt,
            work.sizes[:2],
            "RotatE",
            "slcwa",
            partial(torch.optim.Adam, lr=LR),
            {"embedding_dim": work.dim, "loss": "nssa", "loss_kwargs": loss},
            {"negative_sampler_kwargs": {"num_negs_per_pos": work.negatives}},
        )

    def steps(self, count: int) -> None:
        """Train an epoch of so many batches."""
        batch = self._work.batch
        part = self.part if self.part < batch else None
        self._loop.train(self._hrt[: count * batch], batch, part)


def _own(work: Work, part: int) -> TrainerSteps:
    return TrainerSteps(work.trainer())


def _per_row(work: Work) -> Work:
    return replace(work, per_row=True)


CONTENDERS: dict[str, Callable[[Work, int], Any]] = {
    "kgfast": _own,
    "plain torch": Plain,
    "plain torch, tuned": partial(Plain, is_tuned=True),
    "plain torch, tuned, compiled": partial(Plain, is_tuned=True, is_compiled=True),
    "kgfast, negatives per row": lambda work, part: _own(_per_row(work), part),
    "plain torch, negatives per row, tuned": lambda work, part: Plain(
        _per_row(work), part, is_tuned=True
    ),
    "plain torch, negatives per row, tuned, compiled": lambda work, part: Plain(
        _per_row(work), part, is_tuned=True, is_compiled=True
    ),
    "pykeen": Pykeen,
}
# Rows of a part; the last: all that fit. The compiler fuses a part, so that no tensor is large.
_PARTS = {"plain": (1, 2, 4, 16, 64), "compiled": (1, 2, 4, 16, 64), "pykeen": (4, 16, 64, 1 << 62)}


def rows_at_once(name: str, work: Work) -> int:
    """Return the rows of a batch for a contender: all that fit, or the fastest number."""
    if name.startswith("kgfast"):
        return work.batch
    kind = name.split()[0]
    fitting = work.fitting(kind)
    if name == "plain torch":  # a user would start so
        return fitting
    if name.endswith("compiled"):
        kind, fitting = "compiled", work.batch
    contender, stopwatch = CONTENDERS[name](work, fitting), Stopwatch("cpu")
    seconds = {}
    for contender.part in sorted({min(part, fitting) for part in _PARTS[kind]}):
        if kind == "compiled":
            with building():
                contender.steps(1)
        seconds[contender.part] = stopwatch.seconds(partial(contender.steps, 1))
    return min(seconds, key=lambda part: seconds[part])


def loss_difference(work: Work) -> float:
    """Return how far losses of a first batch are from those of the tuned loop, relatively."""
    differences = []
    for some in (work, _per_row(work)):
        theirs = Plain(some, 1, is_tuned=True).backward(0)
        differences.append(abs(TrainerSteps(some.trainer()).first_loss() - theirs) / abs(theirs))
    return max(differences)
