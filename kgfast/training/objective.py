"""The objective of a run: the batches, and the losses of a batch by public functions."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from kgfast import losses
from kgfast.graph import KnownTriples
from kgfast.losses import NegativesLoss
from kgfast.models import MED
from kgfast.models.base import SIDES, Model, Side
from kgfast.models.wrapper import unwrapped
from kgfast.rng import Stream, mix
from kgfast.training.build import loss_of
from kgfast.training.config import Config
from kgfast.training.data import Batch, Batches, Negatives, with_inverses


class Objective:
    """Batches of a run, and the losses of a batch, in the mode of the config.

    ``negative`` compares positives with sampled negatives; ``1vsall`` the target of each triple
    with all entities; ``kvsall`` all targets of each distinct query with all entities.

    Parameters
    ----------
    config : Config
    hrt : Tensor
        Training triples, int64 ``[T, 3]`` on the CPU.
    num_entities : int
    inverses_of : int, optional
        Number of relations of a model with inverse relations (:attr:`kgfast.Model.has_inverses`):
        steps query the tails of triples and of their inverses, in common batches. By default they
        query heads and tails.

    Attributes
    ----------
    hrt : Tensor
        The triples of the batches: int64 ``[T, 3]``, or ``[2T, 3]`` with inverses.
    lazy : bool
        True if a step uses few rows of the entity table.
    batches : Batches
        The batches of the run.
    negatives : Negatives, optional
        Draws the negatives of a batch.
    """

    def __init__(
        self, config: Config, hrt: Tensor, num_entities: int, inverses_of: int | None = None
    ) -> None:
        self._config, data, mode = config, config.data, config.train.mode
        loss = loss_of(config.loss.name)(**config.loss.hyperparameters(), sparse=True)
        self._criterion: Callable[..., Tensor] = loss
        sides: tuple[Side, ...] = SIDES if inverses_of is None else ("tail",)
        self.hrt = hrt if inverses_of is None else with_inverses(hrt, inverses_of)
        self.lazy, is_distinct = mode == "negative", mode == "kvsall"
        filters = is_distinct or data.filter_negatives
        self._known = KnownTriples(self.hrt) if filters else None
        weights = losses.subsampling_weights(self.hrt) if data.subsampling else None
        self.batches = Batches(
            self.hrt, data.train_bs, config.seed, weights, sides, distinct=is_distinct
        )
        self._target_weights: Tensor | None = None
        if data.target_weights:
            self._target_weights = losses.frequency_weights(self.hrt, num_entities)
        self._takes_weights = not isinstance(loss, NegativesLoss) or loss.takes_weights
        self.negatives: Negatives | None = None
        if self.lazy:
            sizes, shared = (num_entities, data.neg_size), data.negatives == "shared"
            self.negatives = Negatives(*sizes, config.seed, shared=shared, known=self._known)

    def batch(self, number: int) -> Batch:
        """Draw a batch of the run with all data of the losses; the number determines the batch."""
        batch = self.batches.batch(number)
        if self.negatives is not None:
            negatives, mask = self.negatives.draw(batch)
            return replace(batch, negatives=negatives, mask=mask)
        if batch.targets is None and self._known is not None:
            indptr, answers = self._known.exclude(batch.anchors, batch.relations, batch.side)
            return replace(batch, indptr=indptr, answers=answers)
        if self._target_weights is None:
            return batch
        return replace(batch, weights=self._target_weights[batch.targets])

    def __call__(self, model: Model, batch: Batch) -> Iterator[Tensor]:
        """Yield the losses of a batch, each computed when needed; their sum is minimised."""
        yield self._loss(model, batch)
        weight, penalty = self._config.loss.relation_weight, self._config.regularizer
        if weight:
            relations = model.relation_ids(batch.relations, batch.side)
            heads, _, tails = batch.triples.unbind(1)
            yield weight * cross_entropy(
                losses.relation_logits(model, heads, tails, sparse=True), relations
            )
        if penalty.name != "none":
            rows: Any = batch.anchors, batch.relations
            rows = rows if batch.targets is None else (*rows, batch.targets)
            of_rows = getattr(losses.regularizers, penalty.name)
            yield penalty.weight * of_rows(model, rows, side=batch.side, sparse=True)

        if penalty.time_weight:
            inner: Any = unwrapped(model)
            yield penalty.time_weight * inner.smoothness()

    def dims_of(self, model: Model, batch: Batch) -> tuple[int, ...] | None:
        """Return the widths of the sub-models that a batch trains; None if the model has none."""
        if not isinstance(model, MED):
            return None
        return tuple(model.draw(mix(self._config.seed, batch.number, Stream.SUBMODELS)))

    def _loss(self, model: Any, batch: Batch) -> Tensor:
        options: dict[str, Any] = {"side": batch.side}
        if batch.targets is None:
            queries, positives = (batch.anchors, batch.relations), (batch.indptr, batch.answers)
            return self._criterion(model, queries, positives, **options)
        data: list[Any] = [(batch.anchors, batch.relations, batch.targets)]
        if self.lazy:
            data.append(batch.negatives)
            options["mask"] = batch.mask
        if self._config.med is not None:
            dims = self.dims_of(model, batch)
            return losses.med(model, *data, dims=dims, sparse=True, **options)
        if batch.weights is not None and self._takes_weights:
            options["weights"] = batch.weights
        return self._criterion(model, *data, **options)
