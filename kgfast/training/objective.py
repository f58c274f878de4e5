"""The objective of a run: the losses of a batch, by public functions, in three modes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from kgfast import losses
from kgfast.graph import KnownTriples
from kgfast.losses import NegativesLoss
from kgfast.models import MED
from kgfast.models.base import SIDES, Model, Side
from kgfast.rng import Stream, mix
from kgfast.training.config import Config
from kgfast.training.data import Batch, Batches, Negatives
from kgfast.training.own import loss_of
from kgfast.training.processes.placement import ALONE, Placement


class Objective(ABC):
    """Base of the modes: the batches of a run, and the losses of a batch.

    ``hrt`` are the training triples, int64 ``[T, 3]`` on the CPU, from which batches are drawn.
    ``sides`` are the queried sides, and ``device`` computes the losses.
    """

    lazy = False  # True if a step uses few rows of the entity table

    def __init__(
        self,
        config: Config,
        hrt: Tensor,
        num_entities: int,
        sides: Sequence[Side] = SIDES,
    ) -> None:
        self._loss, self._regularizer = config.loss, config.regularizer
        self._criterion = loss_of(config.loss.name)(**config.loss.hyperparameters(), sparse=True)
        self.batches = self._batches_of(config, hrt, sides)
        self._prepare(config, hrt, num_entities)

    def _batches_of(self, config: Config, hrt: Tensor, sides: Sequence[Side]) -> Batches:
        weights = losses.subsampling_weights(hrt) if config.data.subsampling else None
        return Batches.of_triples(hrt, config.data.train_bs, config.seed, weights, sides)

    def _prepare(self, config: Config, hrt: Tensor, num_entities: int) -> None:  # noqa: B027
        """Make whatever a mode needs beside batches; by default nothing."""

    def batch(self, number: int) -> Batch:
        """Draw a batch of the run with all data of the losses; the number determines the batch."""
        return self.batches.batch(number)

    @abstractmethod
    def __call__(
        self, model: Model, batch: Batch, placement: Placement = ALONE
    ) -> Iterator[Tensor]:
        """Yield the losses of a batch, each computed when needed; their sum is minimised.

        ``placement`` reads the rows that sampled negatives name.
        """
        ...

    def _others(self, model: Model, batch: Batch) -> Iterator[Tensor]:
        """Yield the losses of relation prediction and the regularizer, if the config has these."""
        weight, penalty = self._loss.relation_weight, self._regularizer
        if weight and batch.targets is not None:
            relations = model.relation_ids(batch.relations, batch.side)
            logits = losses.relation_logits(model, batch.heads, batch.tails, sparse=True)
            yield weight * losses.relation_prediction(logits, relations)
        if penalty.name != "none":
            yield penalty.weight * self._penalty(model, batch)

    def _penalty(self, model: Model, batch: Batch) -> Tensor:
        config = self._regularizer
        queries = batch.anchors, batch.relations
        rows: Any = queries if batch.targets is None else batch.triples
        if config.name == "dura":
            weight = config.product_weight
            return losses.regularizers.dura(
                model, rows, side=batch.side, product_weight=weight, sparse=True
            )
        penalty = losses.regularizers.n3 if config.name == "n3" else losses.regularizers.l2
        return penalty(model, rows, side=batch.side, weighted=config.weighted, sparse=True)


class NegativeSampling(Objective):
    """Loss of positives against sampled negatives.

    Attributes
    ----------
    batches : Batches
        The batches of the run.
    negatives : Negatives
        Draws the negatives of a batch.
    """

    lazy = True

    def _prepare(self, config: Config, hrt: Tensor, num_entities: int) -> None:
        assert isinstance(self._criterion, NegativesLoss)
        self._takes_weights, self._seed = self._criterion.takes_weights, config.seed
        data = config.data
        self.negatives = Negatives(
            num_entities,
            data.neg_size,
            config.seed,
            shared=data.negatives == "shared",
            known=KnownTriples(hrt) if data.filter_negatives else None,
        )

    def batch(self, number: int) -> Batch:
        batch = super().batch(number)
        negatives, mask = self.negatives.draw(batch)
        return replace(batch, negatives=negatives, mask=mask)

    def __call__(
        self, model: Model, batch: Batch, placement: Placement = ALONE
    ) -> Iterator[Tensor]:
        model, batch = placement.read(model, batch)
        assert batch.negatives is not None
        sample = batch.columns, batch.negatives
        given: dict[str, Any] = {"side": batch.side, "mask": batch.mask}
        if isinstance(model, MED):
            dims = model.draw(mix(self._seed, batch.number, Stream.SUBMODELS))
            yield losses.med(model, *sample, dims=dims, sparse=True, **given)
        else:
            if self._takes_weights:
                given["weights"] = batch.weights
            yield self._criterion(model, *sample, **given)
        yield from self._others(model, batch)


class OneVsAll(Objective):
    """Loss of the target of each triple against all entities."""

    def _prepare(self, config: Config, hrt: Tensor, num_entities: int) -> None:
        is_weighted = config.data.target_weights
        self._weights = losses.frequency_weights(hrt, num_entities) if is_weighted else None

    def batch(self, number: int) -> Batch:
        batch = super().batch(number)
        if self._weights is None:
            return batch
        assert batch.targets is not None
        return replace(batch, weights=self._weights[batch.targets])

    def __call__(
        self, model: Model, batch: Batch, placement: Placement = ALONE
    ) -> Iterator[Tensor]:
        given: dict[str, Any] = {} if batch.weights is None else {"weights": batch.weights}
        yield self._criterion(model, batch.columns, side=batch.side, **given)
        yield from self._others(model, batch)


class KvsAll(Objective):
    """Loss of all targets of each distinct query against all entities."""

    def _batches_of(self, config: Config, hrt: Tensor, sides: Sequence[Side]) -> Batches:
        return Batches.of_queries(hrt, config.data.train_bs, config.seed, sides)

    def _prepare(self, config: Config, hrt: Tensor, num_entities: int) -> None:
        self._known = KnownTriples(hrt)

    def batch(self, number: int) -> Batch:
        batch = super().batch(number)
        indptr, answers = self._known.exclude(batch.anchors, batch.relations, batch.side)
        return replace(batch, indptr=indptr, answers=answers)

    def __call__(
        self, model: Model, batch: Batch, placement: Placement = ALONE
    ) -> Iterator[Tensor]:
        queries, positives = (batch.anchors, batch.relations), (batch.indptr, batch.answers)
        yield self._criterion(model, queries, positives, side=batch.side)
        yield from self._others(model, batch)


MODES: dict[str, type[Objective]] = {
    "negative": NegativeSampling,
    "1vsall": OneVsAll,
    "kvsall": KvsAll,
}
