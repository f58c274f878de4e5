"""The objective of a run: the losses of a batch, by public functions, in three modes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from kgfast import losses
from kgfast.graph import KnownTriples
from kgfast.losses import NegativesLoss
from kgfast.models.base import SIDES, Model, Side
from kgfast.processes.placement import ALONE, Placement
from kgfast.rng import Stream, mix
from kgfast.training.build import loss_of
from kgfast.training.config import Config
from kgfast.training.data import Batch, Batches, Negatives


class Objective(ABC):
    """Base of the modes: the batches of a run, and the losses of a batch.

    ``hrt`` are the training triples, int64 ``[T, 3]`` on the CPU, from which batches are drawn.
    ``sides`` are the queried sides.
    """

    lazy = False  # True if a step uses few rows of the entity table
    batches: Batches

    def __init__(
        self,
        config: Config,
        hrt: Tensor,
        num_entities: int,
        sides: Sequence[Side] = SIDES,
    ) -> None:
        self._config = config
        self._criterion = loss_of(config.loss.name)(**config.loss.hyperparameters(), sparse=True)
        self._prepare(hrt, num_entities, sides)

    def _prepare(self, hrt: Tensor, num_entities: int, sides: Sequence[Side]) -> None:
        """Make the batches, and whatever a mode needs beside them."""
        data, seed = self._config.data, self._config.seed
        weights = losses.subsampling_weights(hrt) if data.subsampling else None
        self.batches = Batches.of_triples(hrt, data.train_bs, seed, weights, sides)

    def batch(self, number: int) -> Batch:
        """Draw a batch of the run with all data of the losses; the number determines the batch."""
        return self.batches.batch(number)

    def __call__(
        self, model: Model, batch: Batch, placement: Placement = ALONE
    ) -> Iterator[Tensor]:
        """Yield the losses of a batch, each computed when needed; their sum is minimised.

        ``placement`` reads the rows that sampled negatives name.
        """
        yield self._loss(model, batch)
        weight, penalty = self._config.loss.relation_weight, self._config.regularizer
        if weight and batch.targets is not None:
            relations = model.relation_ids(batch.relations, batch.side)
            logits = losses.relation_logits(model, batch.heads, batch.tails, sparse=True)
            yield weight * cross_entropy(logits, relations)
        if penalty.name != "none":
            yield penalty.weight * self._penalty(model, batch)

    @abstractmethod
    def _loss(self, model: Model, batch: Batch) -> Tensor: ...

    def _penalty(self, model: Model, batch: Batch) -> Tensor:
        queries = batch.anchors, batch.relations
        rows: Any = queries if batch.targets is None else batch.triples
        penalty = getattr(losses.regularizers, self._config.regularizer.name)
        value: Tensor = penalty(model, rows, side=batch.side, sparse=True)
        return value


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

    def _prepare(self, hrt: Tensor, num_entities: int, sides: Sequence[Side]) -> None:
        super()._prepare(hrt, num_entities, sides)
        assert isinstance(self._criterion, NegativesLoss)
        self._takes_weights = self._criterion.takes_weights
        data = self._config.data
        self.negatives = Negatives(
            num_entities,
            data.neg_size,
            self._config.seed,
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
        yield from super().__call__(*placement.read(model, batch))

    def _loss(self, model: Model, batch: Batch) -> Tensor:
        given: dict[str, Any] = {"side": batch.side, "mask": batch.mask}
        if self._config.crops is not None:
            crops: Any = model
            dims = crops.draw(mix(self._config.seed, batch.number, Stream.SUBMODELS))
            return losses.med(
                crops, batch.columns, batch.negatives, dims=dims, sparse=True, **given
            )
        if self._takes_weights:
            given["weights"] = batch.weights
        loss: Tensor = self._criterion(model, batch.columns, batch.negatives, **given)
        return loss


class OneVsAll(Objective):
    """Loss of the target of each triple against all entities."""

    def _prepare(self, hrt: Tensor, num_entities: int, sides: Sequence[Side]) -> None:
        super()._prepare(hrt, num_entities, sides)
        is_weighted = self._config.data.target_weights
        self._weights = losses.frequency_weights(hrt, num_entities) if is_weighted else None

    def batch(self, number: int) -> Batch:
        batch = super().batch(number)
        if self._weights is None or batch.targets is None:
            return batch
        return replace(batch, weights=self._weights[batch.targets])

    def _loss(self, model: Model, batch: Batch) -> Tensor:
        given: dict[str, Any] = {} if batch.weights is None else {"weights": batch.weights}
        loss: Tensor = self._criterion(model, batch.columns, side=batch.side, **given)
        return loss


class KvsAll(Objective):
    """Loss of all targets of each distinct query against all entities."""

    def _prepare(self, hrt: Tensor, num_entities: int, sides: Sequence[Side]) -> None:
        self._known = KnownTriples(hrt)
        self.batches = Batches.of_queries(hrt, self._config.data.train_bs, self._config.seed, sides)

    def batch(self, number: int) -> Batch:
        batch = super().batch(number)
        indptr, answers = self._known.exclude(batch.anchors, batch.relations, batch.side)
        return replace(batch, indptr=indptr, answers=answers)

    def _loss(self, model: Model, batch: Batch) -> Tensor:
        queries, positives = (batch.anchors, batch.relations), (batch.indptr, batch.answers)
        loss: Tensor = self._criterion(model, queries, positives, side=batch.side)
        return loss


MODES: dict[str, type[Objective]] = {
    "negative": NegativeSampling,
    "1vsall": OneVsAll,
    "kvsall": KvsAll,
}
