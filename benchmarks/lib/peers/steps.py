"""RotatE training steps by kgfast and by what a user could run instead, at equal work.

Each contender has the same batch, number of negatives and dimension, self-adversarial loss, and
Adam. kgfast and the plain loop share a pool of negatives; PyKEEN draws some for each triple, which
is the same number of scores. The plain loop is the official code's formula (Sun et al. 2019), on a
pool: as a user would start it, on the whole batch where it fits into memory, and tuned: on parts of
the batch that stay nearer to the cache, whose gradients add up, with a modulus that torch computes
faster than the official code's norm of a stack of two. PyKEEN has the whole batch where it fits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kgfast.datasets import synthetic
from kgfast.training import Config, Trainer
from kgfast.training.leaves import Leaves
from kgfast.training.negatives import Batches, Negatives
from kgfast.training.run import Run
from kgfast.training.steps import MODES
from lib.bare_run import bare_run
from lib.machine import available_memory
from lib.measure import Stopwatch
from lib.peers import Missing, quiet, silence_pykeen

GAMMA, ALPHA, LR = 6.0, 0.5, 1e-3
# [B, K, d] float32 tensors alive at the peak of a step: measured on small batches.
_TENSORS = {"plain": 8, "pykeen": 13}
_SHARE = 0.6  # of the memory that is free
_TINY = 1e-20  # the square root has no slope at 0


@dataclass(frozen=True)
class Work:
    """The shape of a step, and the sizes of the graph."""

    sizes: tuple[int, ...]
    dim: int
    batch: int
    negatives: int

    @property
    def scores(self) -> int:
        """Pairs that a step scores and differentiates."""
        return self.batch * (self.negatives + 1)

    def config(self) -> Config:
        """Of kgfast's trainer."""
        return Config.from_dict(
            {
                "dataset": {"name": "synthetic"},
                "model": {"name": "rotate", "base_dim": self.dim, "gamma": GAMMA},
                "optim": {"name": "row_adam", "lr": LR},
                "train": {"steps": 1_000_000},
                "data": {
                    "train_bs": self.batch,
                    "neg_size": self.negatives,
                    "negatives": "shared",
                },
                "loss": {"name": "nssa", "alpha": ALPHA},
            }
        )

    def fitting(self, contender: str) -> int:
        """Rows of a batch that fit into the free memory of a peer, ``plain`` or ``pykeen``."""
        row = 4 * self.negatives * self.dim * _TENSORS[contender]
        part = self.batch
        while part > 1 and part * row > _SHARE * available_memory():
            part //= 2
        return part


class Kgfast:
    """The trainer's own steps; like its peers it makes the optimizer's state at the first one."""

    def __init__(self, work: Work, part: int) -> None:
        self.part = part  # is always the whole batch
        self._trainer = Trainer(work.config(), dataset=synthetic(*work.sizes), progress=False)

    def steps(self, count: int) -> None:
        """Make some steps."""
        for _ in range(count):
            self._run.make_step()

    @cached_property
    def _run(self) -> Run:
        return bare_run(self._trainer)


class Plain:
    """The official code's formula in eager torch, with dense Adam as there."""

    def __init__(self, work: Work, part: int, is_tuned: bool = False) -> None:
        self._work, self.part, self._is_tuned = work, part, is_tuned
        trainer = Trainer(work.config(), dataset=synthetic(*work.sizes), progress=False)
        self.model: Any = trainer.model
        hrt, config = trainer.dataset.train.hrt, trainer.config
        self._batches = Batches.of_triples(hrt, work.batch, config.seed)
        self._negatives = Negatives(
            trainer.dataset.num_entities, work.negatives, config.seed, shared=True
        )
        self._optimizer = torch.optim.Adam(self.model.parameters(), LR)
        self._step = 0

    def steps(self, count: int) -> None:
        """Make some steps."""
        for _ in range(count):
            self._optimizer.zero_grad()
            self.backward(self._step)
            self._optimizer.step()
            self._step += 1

    def backward(self, number: int) -> float:
        """The gradients of a batch; returns its loss."""
        batch = self._batches.batch(number)
        assert batch.targets is not None
        pool = self._negatives.draw(batch)[0]
        entity, relation = self.model.entity, self.model.relation
        rows = [
            table.index_select(0, ids)
            for table, ids in (
                (entity, batch.anchors),
                (relation, batch.relations),
                (entity, batch.targets),
                (entity, pool),
            )
        ]
        # Parts meet the gathered rows, and not the tables: their gradients are whole tables.
        leaves = [it.detach().requires_grad_() for it in rows]
        total, count = 0.0, len(batch.anchors)
        for start in range(0, count, self.part):
            part = slice(start, start + self.part)
            anchors, relations, targets = (leaf[part, None] for leaf in leaves[:3])
            positive = self._scores(anchors, relations, targets, batch.side)
            negative = self._scores(anchors, relations, leaves[3][None], batch.side)
            weights = (negative * ALPHA).softmax(1).detach()
            wrong = (weights * functional.logsigmoid(-negative)).sum(1)
            loss = -(functional.logsigmoid(positive[:, 0]) + wrong).sum() / (2 * count)
            loss.backward()
            total += float(loss.detach())
        torch.autograd.backward(rows, [leaf.grad for leaf in leaves])
        return total

    def _scores(self, anchors: Tensor, relations: Tensor, candidates: Tensor, side: str) -> Tensor:
        """Scores ``[B, K]``; ``codes/model.py`` of the official code, ``RotatE``."""
        re, im = anchors.chunk(2, -1)
        phase = relations / (self.model.embedding_range / torch.pi)
        turn_re, turn_im = phase.cos(), phase.sin()
        if side == "head":
            turn_im = -turn_im
        candidate_re, candidate_im = candidates.chunk(2, -1)
        re_score = re * turn_re - im * turn_im - candidate_re
        im_score = re * turn_im + im * turn_re - candidate_im
        if self._is_tuned:
            return GAMMA - (re_score * re_score + im_score * im_score + _TINY).sqrt().sum(-1)
        return GAMMA - torch.stack([re_score, im_score], 0).norm(dim=0).sum(-1)


class Pykeen:
    """PyKEEN's sLCWA loop on its RotatE; its epochs are as long as the steps asked for."""

    def __init__(self, work: Work, part: int) -> None:
        try:
            from pykeen.losses import NSSALoss
            from pykeen.models import RotatE
            from pykeen.training import SLCWATrainingLoop
            from pykeen.triples import CoreTriplesFactory
        except ImportError:
            raise Missing("not installed") from None
        silence_pykeen()
        self._work, self.part = work, part
        graph = synthetic(*work.sizes)
        self._hrt = graph.train.hrt
        self._factory = partial(
            CoreTriplesFactory,
            num_entities=graph.num_entities,
            num_relations=graph.num_relations,
        )
        factory = self._factory(self._hrt)
        model: nn.Module = RotatE(
            triples_factory=factory,
            embedding_dim=work.dim,
            random_seed=0,
            loss=NSSALoss(margin=GAMMA, adversarial_temperature=ALPHA),
        )
        self._loop: Any = SLCWATrainingLoop(
            model=model,
            triples_factory=factory,
            optimizer=torch.optim.Adam(model.parameters(), LR),
            negative_sampler_kwargs={"num_negs_per_pos": work.negatives},
        )

    def steps(self, count: int) -> None:
        """Train an epoch of so many batches."""
        with quiet():
            self._loop.train(
                self._factory(self._hrt[: count * self._work.batch]),
                num_epochs=1,
                batch_size=self._work.batch,
                sub_batch_size=self.part if self.part < self._work.batch else None,
                use_tqdm=False,
                pin_memory=False,
            )


CONTENDERS: dict[str, Callable[[Work, int], Any]] = {
    "kgfast": Kgfast,
    "plain torch": Plain,
    "plain torch, tuned": partial(Plain, is_tuned=True),
    "pykeen": Pykeen,
}
_PARTS = (4, 16, 64)  # rows, tried for tuned contenders


def rows_at_once(name: str, work: Work) -> int:
    """Rows of a batch that a contender gets at once: all that fit, or the fastest number."""
    if name == "kgfast":
        return work.batch
    kind = name.split(",")[0].split()[0]
    fitting = work.fitting(kind)
    if not name.endswith("tuned"):
        return fitting
    contender, stopwatch = CONTENDERS[name](work, fitting), Stopwatch("cpu")
    seconds = {}
    for contender.part in sorted({min(part, fitting) for part in _PARTS}):
        seconds[contender.part] = stopwatch.seconds(partial(contender.steps, 1))
    return min(seconds, key=lambda part: seconds[part])


def loss_difference(work: Work) -> float:
    """How far the loss of a first batch is from that of the plain loop, relatively."""
    trainer = Trainer(work.config(), dataset=synthetic(*work.sizes), progress=False)
    hrt, entities = trainer.dataset.train.hrt, trainer.dataset.num_entities
    objective = MODES["negative"](trainer.config, hrt, entities)
    with torch.no_grad():
        ours = float(objective(Leaves(trainer.model), objective.batches.batch(0)))
    theirs = Plain(work, work.fitting("plain")).backward(0)
    return abs(ours - theirs) / abs(theirs)
