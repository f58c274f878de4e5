"""The objective of a run: the batches, and the losses of a batch by public functions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from kgfast import losses
from kgfast.graph import KnownTriples
from kgfast.losses import NegativesLoss
from kgfast.models.base import SIDES, Model, Side
from kgfast.rng import Stream, mix
from kgfast.training.build import loss_of
from kgfast.training.config import Config
from kgfast.training.data import Batch, Batches, Negatives


class Objective:
    """Batches of a run, and the losses of a batch, in the mode of the config.

    ``negative`` compares positives with sampled negatives; ``1vsall`` the target of each triple
    with all entities; ``kvsall`` all targets of each distinct query with all entities.

    Parameters
    ----------
    config : Config
    hrt : Tensor
        Training triples, int64 ``[T, 3]`` on the CPU, from which batches are drawn.
    num_entities : int
    sides : sequence of side
        The queried sides.

    Attributes
    ----------
    lazy : bool
        True if a step uses few rows of the entity table.
    batches : Batches
        The batches of the run.
    negatives : Negatives, optional
        Draws the negatives of a batch.
    """

    def __init__(
        self, config: Config, hrt: Tensor, num_entities: int, sides: Sequence[Side] = SIDES
    ) -> None:
        self._config, data, mode = config, config.data, config.train.mode
        loss = loss_of(config.loss.name)(**config.loss.hyperparameters(), sparse=True)
        self._criterion: Callable[..., Tensor] = loss
        self.lazy = mode == "negative"
        self._takes_weights = isinstance(loss, NegativesLoss) and loss.takes_weights
        self.negatives: Negatives | None = None
        self._target_weights: Tensor | None = None
        self._known: KnownTriples | None = None
        if mode == "kvsall":
            self._known = KnownTriples(hrt)
            self.batches = Batches.of_queries(hrt, data.train_bs, config.seed, sides)
            return
        weights = losses.subsampling_weights(hrt) if data.subsampling else None
        self.batches = Batches.of_triples(hrt, data.train_bs, config.seed, weights, sides)
        if data.target_weights:
            self._target_weights = losses.frequency_weights(hrt, num_entities)
        if self.lazy:
            self.negatives = Negatives(
                num_entities,
                data.neg_size,
                config.seed,
                shared=data.negatives == "shared",
                known=KnownTriples(hrt) if data.filter_negatives else None,
            )

    def batch(self, number: int) -> Batch:
        """Draw a batch of the run with all data of the losses; the number determines the batch."""
        batch = self.batches.batch(number)
        if self.negatives is not None:
            negatives, mask = self.negatives.draw(batch)
            return replace(batch, negatives=negatives, mask=mask)
        if self._known is not None:
            indptr, answers = self._known.exclude(batch.anchors, batch.relations, batch.side)
            return replace(batch, indptr=indptr, answers=answers)
        if self._target_weights is None or batch.targets is None:
            return batch
        return replace(batch, weights=self._target_weights[batch.targets])

    def __call__(self, model: Model, batch: Batch) -> Iterator[Tensor]:
        """Yield the losses of a batch, each computed when needed; their sum is minimised."""
        yield self._loss(model, batch)
        weight, penalty = self._config.loss.relation_weight, self._config.regularizer
        if weight and batch.targets is not None:
            relations = model.relation_ids(batch.relations, batch.side)
            logits = losses.relation_logits(model, batch.heads, batch.tails, sparse=True)
            yield weight * cross_entropy(logits, relations)
        if penalty.name != "none":
            queries = batch.anchors, batch.relations
            rows: Any = queries if batch.targets is None else batch.triples
            of_rows = getattr(losses.regularizers, penalty.name)
            yield penalty.weight * of_rows(model, rows, side=batch.side, sparse=True)

    def _loss(self, model: Any, batch: Batch) -> Tensor:
        options: dict[str, Any] = {"side": batch.side}
        if self._known is not None:
            queries, positives = (batch.anchors, batch.relations), (batch.indptr, batch.answers)
            return self._criterion(model, queries, positives, **options)
        data: list[Any] = [batch.columns]
        if self.lazy:
            data.append(batch.negatives)
            options["mask"] = batch.mask
        if self._config.med is not None:
            dims = model.draw(mix(self._config.seed, batch.number, Stream.SUBMODELS))
            return losses.med(model, *data, dims=dims, sparse=True, **options)
        if batch.weights is not None and (self._takes_weights or not self.lazy):
            options["weights"] = batch.weights
        return self._criterion(model, *data, **options)
