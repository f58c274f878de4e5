"""The objective of a run: the batches, and the losses of a batch by public functions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from kgfast import losses
from kgfast.graph import KnownTriples
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
    with all entities; ``kvsall`` all targets of each distinct query with all entities. For a model
    with inverse relations (:attr:`kgfast.Model.has_inverses`) steps query the tails of triples and
    of their inverses, in common batches; for others, heads and tails. ``hrt`` are the training
    triples, int64 ``[T, 3]`` on the CPU; as an attribute ``[2T, 3]`` with inverses.
    """

    def __init__(self, config: Config, hrt: Tensor, model: Model) -> None:
        self._config, data, mode = config, config.data, config.train.mode
        loss = loss_of(config.loss, sparse=True)
        is_med, num_entities = isinstance(model, MED), model.num_entities
        self._loss: Callable[..., Tensor] = losses.MEDLoss(sparse=True) if is_med else loss
        self._draw_dims = model.draw if isinstance(model, MED) else None
        self.hrt = with_inverses(hrt, model.num_relations) if model.has_inverses else hrt
        self.lazy = mode == "negative"  # a step uses few rows of the entity table
        distinct = mode == "kvsall"
        filters = distinct or data.filter_negatives
        self._known = KnownTriples(self.hrt) if filters else None
        has_weights = data.subsampling and loss.takes_weights
        weights = losses.subsampling_weights(self.hrt) if has_weights else None
        sides: Sequence[Side] = ["tail"] if model.has_inverses else SIDES
        batches = self.hrt, data.train_bs, config.seed, weights, sides
        self.batches = Batches(*batches, distinct=distinct)
        self._target_weights: Tensor | None = None
        if data.target_weights:
            self._target_weights = losses.frequency_weights(self.hrt, num_entities)
        self.negatives: Negatives | None = None
        if self.lazy:
            options = data.neg_size, config.seed, data.negatives == "shared", self._known
            self.negatives = Negatives(num_entities, *options)

    def batch(self, number: int) -> Batch:
        """Draw a batch of the run with all data of the losses; the number determines the batch."""
        batch, more = self.batches.batch(number), dict[str, Any]()
        if self._draw_dims is not None:
            dims = self._draw_dims(mix(self._config.seed, number, Stream.SUBMODELS))
            more["dims"] = tuple(dims)
        if self.negatives is not None:
            more["negatives"], more["mask"] = self.negatives.draw(batch)
        elif batch.targets is None and self._known is not None:
            queries = batch.anchors, batch.relations, batch.side
            more["indptr"], more["answers"] = self._known.exclude(*queries)
        elif self._target_weights is not None:
            more["weights"] = self._target_weights[batch.targets]
        return replace(batch, **more)

    def __call__(self, model: Model, batch: Batch) -> Iterator[Tensor]:
        """Yield the losses of a batch, each computed when needed; their sum is minimised."""
        positives = None if batch.indptr is None else (batch.indptr, batch.answers)
        data = [x for x in (batch.queries, batch.negatives, positives) if x is not None]
        options = {"mask": batch.mask, "weights": batch.weights, "dims": batch.dims}
        options = {name: value for name, value in options.items() if value is not None}
        yield self._loss(model, *data, side=batch.side, **options)
        weight, penalty = self._config.loss.relation_weight, self._config.regularizer
        if weight:
            relations = model.relation_ids(batch.relations, batch.side)
            anchors, _, targets = batch.queries
            ends = (anchors, targets) if batch.side == "tail" else (targets, anchors)
            logits = losses.relation_logits(model, *ends, sparse=True)
            yield weight * cross_entropy(logits, relations)
        if penalty.name != "none":
            of_rows = getattr(losses.regularizers, penalty.name)
            yield penalty.weight * of_rows(model, batch.queries, side=batch.side, sparse=True)
        if penalty.time_weight:
            inner: Any = unwrapped(model)
            yield penalty.time_weight * inner.smoothness()
