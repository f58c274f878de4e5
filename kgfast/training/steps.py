"""What a step computes: the losses of a batch, in three modes; each is one that a user can call."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from kgfast import losses
from kgfast.graph import KnownTriples
from kgfast.losses import LOSSES, NegativesFormula
from kgfast.models import MED
from kgfast.models.base import SIDES, Model, Side
from kgfast.ops.differentiable import has_bf16_losses
from kgfast.rng import Stream, mix
from kgfast.training.config import Config
from kgfast.training.negatives import Batch, Batches, Negatives
from kgfast.training.parallel.placement import ALONE, Placement


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
        self._loss, self._regularizer = config.loss, config.regularizer
        self._function = LOSSES[config.loss.name].function
        self._options = config.loss.hyperparameters()

    def __call__(
        self, model: Model, batch: Batch, placement: Placement = ALONE
    ) -> Iterator[Tensor]:
        """Yield the losses of a batch, scalars whose sum is minimised.

        Each has gradients of its own; the next loss is computed when it is asked for.

        Parameters
        ----------
        model : Model
        batch : Batch
        placement : Placement
            Reads the rows that sampled negatives name.
        """
        raise NotImplementedError

    def _others(self, model: Model, batch: Batch) -> Iterator[Tensor]:
        """Yield what the config adds to the loss."""
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
        self._takes_weights, self._seed = formula.takes_weights, config.seed
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

    def __call__(
        self, model: Model, batch: Batch, placement: Placement = ALONE
    ) -> Iterator[Tensor]:
        """As :class:`Objective`."""
        negatives, mask = self.negatives.draw(batch)
        model, batch, negatives = placement.read(model, batch, negatives)
        given: dict[str, Any] = {"side": batch.side, "mask": mask, "sparse": True}
        dims = None
        if isinstance(model, MED):
            dims = model.draw(mix(self._seed, batch.number, Stream.SUBMODELS))
        if isinstance(model, MED) and dims is not None:
            yield losses.med(model, batch.triples, negatives, dims=dims, **given)
        else:
            if self._takes_weights:
                given["weights"] = batch.weights
            yield self._function(model, batch.triples, negatives, **given, **self._options)
        yield from self._others(model, batch)


class _AllEntities(Objective):
    """A loss over all entities, of queries whose anchors are few rows."""

    lazy = False

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config)
        if config.loss.precision == "bf16" and not has_bf16_losses(device):
            warnings.warn(
                f"loss.precision: no bf16 products for tensors on {device} here; training goes on "
                f"in float32",
                stacklevel=2,
            )
            self._options["precision"] = "float32"
        self._options["sparse"] = True


class OneVsAll(_AllEntities):
    """The target of each triple against all entities."""

    def __init__(
        self, config: Config, hrt: Tensor, num_entities: int, sides: Sequence[Side] = SIDES
    ) -> None:
        super().__init__(config, hrt.device)
        self.batches = Batches.of_triples(hrt, config.data.train_bs, config.seed, sides=sides)

    def __call__(
        self, model: Model, batch: Batch, placement: Placement = ALONE
    ) -> Iterator[Tensor]:
        """As :class:`Objective`."""
        yield self._function(model, batch.triples, side=batch.side, **self._options)
        yield from self._others(model, batch)


class KvsAll(_AllEntities):
    """All targets of each distinct query against all entities."""

    def __init__(
        self, config: Config, hrt: Tensor, num_entities: int, sides: Sequence[Side] = SIDES
    ) -> None:
        super().__init__(config, hrt.device)
        self.batches = Batches.of_queries(hrt, config.data.train_bs, config.seed, sides)
        self._known = KnownTriples(hrt).to(hrt.device)

    def __call__(
        self, model: Model, batch: Batch, placement: Placement = ALONE
    ) -> Iterator[Tensor]:
        """As :class:`Objective`."""
        queries = batch.anchors, batch.relations
        positives = self._known.exclude(*queries, batch.side)
        yield self._function(model, queries, positives, side=batch.side, **self._options)
        yield from self._others(model, batch)


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
