"""What a step computes: the loss of a batch, in three modes."""

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kgfast import losses
from kgfast.graph import KnownTriples
from kgfast.losses import LOSSES, NegativesFormula
from kgfast.models import MED
from kgfast.models.base import SIDES, Candidates, Model, Side
from kgfast.models.wrapper import unwrapped
from kgfast.ops.differentiable import has_bf16_losses
from kgfast.rng import Stream, mix
from kgfast.training.config import Config
from kgfast.training.leaves import Leaves, sample_negatives, sample_scores
from kgfast.training.negatives import Batch, Batches, Negatives
from kgfast.training.regularizers import Regularizer


class Objective:
    """Base of the modes; each is made of the arguments of :class:`MakeObjective`.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    batches : Batches
        What the run is asked about.
    lazy : bool
        Whether a step uses few rows of the entity table.
    """

    lazy: bool
    batches: Batches

    def __init__(self, config: Config) -> None:
        self._loss = config.loss
        self._options = config.loss.hyperparameters()
        penalised = config.regularizer.name != "none"
        self._regularizer = Regularizer(config.regularizer) if penalised else None
        self._takes_rows = penalised or config.loss.relation_weight > 0

    def __call__(self, leaves: Leaves, batch: Batch) -> Tensor:
        """The loss of a batch, a scalar: in each of several processes that of the whole batch."""
        raise NotImplementedError

    def _asked(self, leaves: Leaves, batch: Batch) -> Batch:
        """The batch as the model of the leaves is asked."""
        model = unwrapped(leaves.model)
        reads_few = model.has_wide_relations and model.relation.requires_grad
        if reads_few and not self._loss.relation_weight:
            batch = leaves.among_relations(batch)
        return batch

    def _with_others(
        self,
        loss: Tensor,
        model: Model,
        batch: Batch,
        anchors: Tensor,
        targets: Tensor | None,
    ) -> Tensor:
        """The loss with what the config adds to it, of rows ``[B, G]`` of a batch."""
        if self._loss.relation_weight and targets is not None:
            relations = model.relation_ids(batch.relations, batch.side)
            mean = _of_relations(model, relations, batch.side, (anchors, targets))
            loss = loss + self._loss.relation_weight * mean
        if self._regularizer is None:
            return loss
        return loss + self._regularizer(model, batch, anchors, targets)


class NegativeSampling(Objective):
    """Positives against sampled negatives.

    Attributes
    ----------
    negatives : Negatives
        What draws them.
    """

    lazy = True

    def __init__(
        self, config: Config, hrt: Tensor, num_entities: int, sides: Sequence[Side] = SIDES
    ) -> None:
        super().__init__(config)
        formula = LOSSES[config.loss.name].formula
        assert issubclass(formula, NegativesFormula)
        self._formula, self._seed = formula, config.seed
        data = config.data
        weights = losses.subsampling_weights(hrt) if data.subsampling else None
        self.batches = Batches.of_triples(hrt, data.train_bs, config.seed, weights, sides)
        self.negatives = Negatives(
            num_entities,
            data.neg_size,
            config.seed,
            shared=data.negatives == "shared",
            known=KnownTriples(hrt) if data.filter_negatives else None,
            device=hrt.device,
        )

    def __call__(self, leaves: Leaves, batch: Batch) -> Tensor:
        """As :class:`Objective`."""
        ids, mask = self.negatives.draw(batch)
        batch, ids = leaves.among(self._asked(leaves, batch), ids)
        model, dims = leaves.model, None
        if isinstance(model, MED):
            dims = model.draw(mix(self._seed, batch.number, Stream.SUBMODELS))
        if isinstance(model, MED) and dims is not None:
            scores = sample_scores(leaves, batch, ids, dims, takes_rows=self._takes_rows)
            given = scores.positive, scores.negative
            loss, rows = losses.med_of_submodels(model, *given, dims, mask), scores.rows
        else:
            formula = self._formula(mask=mask, **self._options)
            made, rows = sample_negatives(leaves, batch, ids, formula, takes_rows=self._takes_rows)
            weights = batch.weights if formula.takes_weights else None
            loss = formula.reduced(made, weights, "mean")
        return self._with_others(loss, model, batch, *rows) if rows else loss


class _AllEntities(Objective):
    """A loss over all entities, of queries whose anchors are few rows."""

    lazy = False

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config)
        self._function = LOSSES[config.loss.name].function
        if config.loss.precision == "bf16" and not has_bf16_losses(device):
            warnings.warn(
                f"loss.precision: no bf16 products for tensors on {device} here; training goes on "
                f"in float32",
                stacklevel=2,
            )
            self._options["precision"] = "float32"


class OneVsAll(_AllEntities):
    """The target of each triple against all entities."""

    def __init__(
        self, config: Config, hrt: Tensor, num_entities: int, sides: Sequence[Side] = SIDES
    ) -> None:
        super().__init__(config, hrt.device)
        self.batches = Batches.of_triples(hrt, config.data.train_bs, config.seed, sides=sides)

    def __call__(self, leaves: Leaves, batch: Batch) -> Tensor:
        """As :class:`Objective`."""
        asked = self._asked(leaves, batch)
        assert asked.targets is not None
        relations, targets, side = asked.relations, asked.targets, asked.side
        model, anchors = _Gathered.of(leaves, asked)

        def mean(model: Any, rows: slice) -> Tensor:
            queries = anchors[rows], relations[rows]
            return self._function(model, queries, targets[rows], side=side, **self._options)

        loss = leaves.over_all(model, anchors, asked, mean)
        if not self._takes_rows:
            return loss
        rows = model.rows_of(anchors), leaves.rows(targets)
        return self._with_others(loss, leaves.model, asked, *rows)


class KvsAll(_AllEntities):
    """All targets of each distinct query against all entities."""

    def __init__(
        self, config: Config, hrt: Tensor, num_entities: int, sides: Sequence[Side] = SIDES
    ) -> None:
        super().__init__(config, hrt.device)
        self.batches = Batches.of_queries(hrt, config.data.train_bs, config.seed, sides)
        self._known = KnownTriples(hrt).to(hrt.device)

    def __call__(self, leaves: Leaves, batch: Batch) -> Tensor:
        """As :class:`Objective`."""
        asked = self._asked(leaves, batch)
        model, anchors = _Gathered.of(leaves, asked)

        def mean(model: Any, rows: slice) -> Tensor:
            positives = self._known.exclude(batch.anchors[rows], batch.relations[rows], batch.side)
            queries = anchors[rows], asked.relations[rows]
            return self._function(model, queries, positives, side=asked.side, **self._options)

        loss = leaves.over_all(model, anchors, asked, mean)
        if not self._takes_rows:
            return loss
        return self._with_others(loss, leaves.model, asked, model.rows_of(anchors), None)


class MakeObjective(Protocol):
    """What makes the objective of a run.

    ``hrt`` are the training triples, int64 ``[T, 3]`` on the training device, and ``sides`` what is
    asked for.
    """

    def __call__(
        self, config: Config, hrt: Tensor, num_entities: int, sides: Sequence[Side] = SIDES
    ) -> Objective:
        """Make it."""
        ...


MODES: dict[str, MakeObjective] = {
    "negative": NegativeSampling,
    "1vsall": OneVsAll,
    "kvsall": KvsAll,
}


class _Gathered:
    """A model whose queries come from gathered rows, and whose candidates are all entities.

    Anchors are numbered as they were gathered.
    """

    def __init__(self, model: Model, anchors: Model) -> None:
        self._model, self._anchors = model, anchors
        self.score, self.gamma = model.score, getattr(model, "gamma", None)
        self.num_entities = model.num_entities
        self.num_relations = len(model.relation)  # inverses are asked for by their own numbers

    @classmethod
    def of(cls, leaves: Leaves, batch: Batch) -> "tuple[_Gathered, Tensor]":
        """That of the distinct anchors of a batch, and the numbers of all of them."""
        distinct, anchors = batch.anchors.unique(return_inverse=True)
        rows = leaves.rows(distinct)
        return cls(leaves.model, leaves.model.with_entity(rows)), anchors

    def rows_of(self, anchors: Tensor) -> Tensor:
        return nn.functional.embedding(anchors, self._anchors.entity)

    def queries(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        return self._anchors.queries(anchors, relations, side)

    def candidates(self, side: Side) -> Candidates:
        return self._model.candidates(side)


def _of_relations(
    model: Model, relations: Tensor, side: Side, rows: tuple[Tensor, Tensor]
) -> Tensor:
    """Prediction of the model's relations, given the rows of anchors and targets."""
    numbers = torch.arange(2 * len(relations), dtype=torch.int64, device=relations.device)
    heads, tails = numbers.chunk(2)
    if side == "head":
        heads, tails = tails, heads
    local = model.with_entity(torch.cat(rows))
    return losses.relation_prediction(losses.relation_logits(local, heads, tails), relations)
