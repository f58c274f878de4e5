"""What a step computes: the loss of a batch, in three modes.

The rows of the entity table that a step reads are gathered into leaves. Their gradients are as
small as they are, so no gradient of the size of the table is made where a step uses few rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kgfast import losses, ops
from kgfast.graph import KnownTriples
from kgfast.models.base import Candidates, Model, Side
from kgfast.training.negatives import Batch, Batches, Negatives
from kgfast.training.regularizers import Regularizer
from kgfast.training.row_gradients import RowGradients

if TYPE_CHECKING:
    from kgfast.training.config import Config, LossConfig


@dataclass
class Leaves:
    """The leaves of one step.

    Attributes
    ----------
    model : Model
        Whose entity table they are rows of.
    """

    model: Model
    _rows: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    _tables: list[Tensor] = field(default_factory=list)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ``ids`` of the entity table, ``[len(ids), G]``, as a leaf."""
        leaf = self.model.entity.detach().index_select(0, ids).requires_grad_()
        self._rows.append((ids, leaf))
        return leaf

    def table(self) -> Tensor:
        """The whole table as a leaf, for operators whose gradient is sparse."""
        leaf = self.model.entity.detach().requires_grad_()
        self._tables.append(leaf)
        return leaf

    def gradients(self) -> list[RowGradients]:
        """What the backward left in them."""
        return [
            *(RowGradients.of(ids, leaf) for ids, leaf in self._rows),
            *(RowGradients.of_table(leaf) for leaf in self._tables),
        ]


class Objective:
    """Base of the modes.

    Parameters
    ----------
    config : Config
    hrt : Tensor
        int64 ``[T, 3]``, the training triples, on the training device.
    num_entities : int

    Attributes
    ----------
    batches : Batches
        What the run is asked about.
    lazy : bool
        Whether a step uses few rows of the entity table.
    """

    lazy: bool
    batches: Batches

    def __init__(self, config: "Config", hrt: Tensor, num_entities: int) -> None:
        self._loss = config.loss
        wanted = config.regularizer
        self._regularizer = (
            None if wanted.name == "none" else Regularizer(wanted.name, wanted.weight)
        )

    def __call__(self, leaves: Leaves, batch: Batch) -> Tensor:
        """The loss of a batch, a scalar."""
        raise NotImplementedError

    def _penalised(
        self, loss: Tensor, leaves: Leaves, batch: Batch, entities: Sequence[Tensor]
    ) -> Tensor:
        """The loss, with the penalty of the entities and relations of the batch."""
        if self._regularizer is None:
            return loss
        model = leaves.model
        ids = model.relation_ids(batch.relations, batch.side)
        relations = nn.functional.embedding(ids, model.relation)
        return loss + self._regularizer(model, [*entities, relations])


class NegativeSampling(Objective):
    """Positives against sampled negatives."""

    lazy = True

    def __init__(self, config: "Config", hrt: Tensor, num_entities: int) -> None:
        super().__init__(config, hrt, num_entities)
        data = config.data
        weights = losses.subsampling_weights(hrt) if data.subsampling else None
        self.batches = Batches.of_triples(hrt, data.train_bs, config.seed, weights)
        self._negatives = Negatives(
            num_entities,
            data.neg_size,
            config.seed,
            shared=data.negatives == "shared",
            known=KnownTriples(hrt) if data.filter_negatives else None,
            device=hrt.device,
        )

    def __call__(self, leaves: Leaves, batch: Batch) -> Tensor:
        """As :class:`Objective`."""
        assert batch.targets is not None
        ids, mask = self._negatives.draw(batch)
        anchors, queries = _queries(leaves, batch)
        if self._negatives.shared:
            targets = leaves.rows(batch.targets)
            own = torch.arange(len(targets), device=targets.device)[:, None]
            positive = _indexed(leaves, batch, queries, targets, own)
            negative = _pairwise(leaves, batch, queries, leaves.rows(ids))
        else:
            targets = anchors if self._regularizer is None else leaves.rows(batch.targets)
            index = torch.cat([batch.targets[:, None], ids], 1)
            scores = _indexed(leaves, batch, queries, leaves.table(), index)
            positive, negative = scores[:, :1], scores[:, 1:]
        loss = self._of_scores(positive[:, 0], negative, mask, batch.weights)
        return self._penalised(loss, leaves, batch, [anchors, targets])

    def _of_scores(
        self, positive: Tensor, negative: Tensor, mask: Tensor | None, weights: Tensor | None
    ) -> Tensor:
        name, formulas = self._loss.name, losses.formulas
        if name == "nssa":
            alpha = self._loss.alpha
            return formulas.nssa(positive, negative, alpha=alpha, weights=weights, mask=mask)
        if name == "margin":
            return formulas.margin(positive, negative, margin=self._loss.margin, mask=mask)
        return formulas.logistic(positive, negative, mask=mask)


class OneVsAll(Objective):
    """The target of each triple against all entities."""

    lazy = False

    def __init__(self, config: "Config", hrt: Tensor, num_entities: int) -> None:
        super().__init__(config, hrt, num_entities)
        self.batches = Batches.of_triples(hrt, config.data.train_bs, config.seed)

    def __call__(self, leaves: Leaves, batch: Batch) -> Tensor:
        """As :class:`Objective`."""
        assert batch.targets is not None
        model, anchors = _Gathered.of(leaves, batch)
        if self._loss.name == "cross_entropy":
            loss = losses.cross_entropy(
                model,
                anchors,
                batch.relations,
                batch.targets,
                side=batch.side,
                label_smoothing=self._loss.label_smoothing,
            )
        else:
            loss = _bce(self._loss, model, anchors, batch, batch.targets)
        if self._regularizer is None:
            return loss
        factors = [model.rows_of(anchors), leaves.rows(batch.targets)]
        return self._penalised(loss, leaves, batch, factors)


class KvsAll(Objective):
    """All targets of each distinct query against all entities."""

    lazy = False

    def __init__(self, config: "Config", hrt: Tensor, num_entities: int) -> None:
        super().__init__(config, hrt, num_entities)
        self.batches = Batches.of_queries(hrt, config.data.train_bs, config.seed)
        self._known = KnownTriples(hrt).to(hrt.device)

    def __call__(self, leaves: Leaves, batch: Batch) -> Tensor:
        """As :class:`Objective`."""
        model, anchors = _Gathered.of(leaves, batch)
        positives = self._known.exclude(batch.anchors, batch.relations, batch.side)
        loss = _bce(self._loss, model, anchors, batch, positives)
        return self._penalised(loss, leaves, batch, [model.rows_of(anchors)])


MODES: dict[str, type[Objective]] = {
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
        self.score, self.gamma = model.score, _gamma_of(model)
        self.num_entities, self.num_relations = model.num_entities, model.num_relations

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


def _bce(
    loss: "LossConfig",
    model: _Gathered,
    anchors: Tensor,
    batch: Batch,
    positives: Tensor | tuple[Tensor, Tensor],
) -> Tensor:
    return losses.bce(
        model,
        anchors,
        batch.relations,
        positives,
        side=batch.side,
        label_smoothing=loss.label_smoothing,
        smoothing_style=loss.smoothing_style,
    )


def _queries(leaves: Leaves, batch: Batch) -> tuple[Tensor, Tensor]:
    """The rows of the anchors, and the queries made of them."""
    anchors = leaves.rows(batch.anchors)
    local = torch.arange(len(anchors), device=anchors.device)
    queries = leaves.model.with_entity(anchors).queries(local, batch.relations, batch.side)
    return anchors, queries


def _gamma_of(model: Model) -> float:
    """The margin, of models that have one."""
    return float(getattr(model, "gamma", 0.0))


def _candidates(model: Model, batch: Batch) -> Candidates:
    """The candidates of a model whose ids are rows of a step, with its margin as their bias."""
    candidates, gamma = model.candidates(batch.side), _gamma_of(model)
    if not gamma:
        return candidates
    return replace(candidates, bias=candidates.table.new_full((1,), gamma))


def _pairwise(leaves: Leaves, batch: Batch, queries: Tensor, pool: Tensor) -> Tensor:
    """Scores ``[B, K]`` of all queries with rows of a pool."""
    model = leaves.model.with_entity(pool)
    return ops.pairwise_scores(queries, score=model.score, **_candidates(model, batch).operands())


def _indexed(leaves: Leaves, batch: Batch, queries: Tensor, rows: Tensor, index: Tensor) -> Tensor:
    """Scores ``[B, K]`` of each query with the rows that its index names."""
    model = leaves.model.with_entity(rows)
    found = _candidates(model, batch)
    return ops.indexed_scores(
        queries, found.table, index, model.score, bias=found.bias, factor=found.factor, sparse=True
    )
