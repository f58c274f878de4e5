"""Influences by losses of sampled negatives: gradients of few rows, joined by ids.

The gradient of the entity table is zero except at the target and the negatives of an example. So
the inner product of two gradients is a sum over the entities of both. The rows of the M other
examples are stored, sorted by entity. For each example only rows of these entities are computed.

Samplers have no state, so the negatives of a training triple are drawn again, as in the epoch in
which the checkpoint was written. Other triples get negatives of the same sampler with another seed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast import ops
from kgfast.extras.influence.checkpoints import Origin
from kgfast.extras.influence.query_side import Asker
from kgfast.extras.influence.training_examples import ExampleQueries
from kgfast.graph import KnownTriples
from kgfast.losses import NegativesLoss, with_gamma
from kgfast.models import MED, SIDES, Candidates, Side, candidates_at, queries_at
from kgfast.rng import Stream, mix
from kgfast.text import shown
from kgfast.training import Batch, Negatives, NegativeSampling, asked_of, loss_of
from kgfast.training.config import LossConfig

_NUMBERS = 1 << 21  # numbers in gradients of rows that are in memory at once
_SCORES = 1 << 20  # scores that are in memory at once


class DrawnNegatives(NamedTuple):
    """Examples with negatives."""

    queries: ExampleQueries  # [B]
    negatives: Tensor  # int64 [B, K]
    mask: Tensor | None  # bool [B, K], False: takes no part
    factor: Tensor  # [B], factor of a row in B times the loss of the row's batch

    def part(self, rows: Any) -> "DrawnNegatives":
        """Select examples by a slice or by row ids."""
        queries = self.queries.part(rows)
        mask = None if self.mask is None else self.mask[rows]
        return DrawnNegatives(queries, self.negatives[rows], mask, self.factor[rows])


class Replay:
    """A sampler that draws the batches and negatives of a run again."""

    def __init__(self, origin: Origin, device: torch.device) -> None:
        config, graph = origin.config, origin.graph
        self._config, self._device = config, device
        self._num_entities, self._num_relations = len(graph.entities), len(graph.relations)
        self._has_inverses = config.model.has_inverses
        triples, sides = asked_of(
            graph.splits["train"].cpu(), self._num_relations, self._has_inverses
        )
        self._hrt = triples.to(device)
        self._objective = NegativeSampling(config, triples, self._num_entities, sides)

    def training(self, queries: ExampleQueries, step: int) -> DrawnNegatives:
        """Return training triples with the negatives of the epoch in which ``step`` ended.

        Raises ValueError if a triple is not a training triple of the run.
        """
        ids, its_side = self._rows_of(queries), self._as_trained(queries).side
        batches, count = self._objective.batches, len(ids)
        place = torch.full((len(self._hrt),), -1, dtype=torch.int64, device=self._device)
        place[ids] = torch.arange(count, dtype=torch.int64, device=self._device)
        epoch = batches.epoch(max(0, step * self._config.train.accumulate - 1))
        size = self._config.data.neg_size
        negatives = torch.empty(count, size, dtype=torch.int64, device=self._device)
        mask = torch.ones(count, size, dtype=torch.bool, device=self._device)
        factor = torch.ones(count, dtype=torch.float32, device=self._device)
        for number in range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch):
            side, rows = batches.rows_of(number)
            at = place[rows.to(self._device)]
            own = (at >= 0).nonzero()[:, 0]
            if side != its_side or not len(own):
                continue
            batch = self._objective.batch(number).to(self._device)
            assert batch.negatives is not None
            drawn, taking_part = batch.negatives.expand(len(rows), -1), batch.mask
            negatives[at[own]] = drawn[own]
            if taking_part is not None:
                mask[at[own]] = taking_part[own]
            factor[at[own]] = self._factor(batch, drawn, taking_part)[own]
        # A triple that stands twice in the training set counts as the last occurrence.
        return DrawnNegatives(queries, negatives, mask, factor).part(place[ids])

    def others(self, queries: ExampleQueries) -> DrawnNegatives:
        """Return any triples, each as a separate batch, with negatives that no step had."""
        data, count = self._config.data, len(queries)
        known = KnownTriples(self._hrt.cpu()) if data.filter_negatives else None
        negatives = Negatives(
            self._num_entities,
            data.neg_size,
            mix(self._config.seed, Stream.INFLUENCE),
            shared=data.negatives == "shared",
            known=known,
        )
        number, own = SIDES.index(queries.side), self._as_trained(queries)
        batch = Batch(number, own.side, own.anchors.cpu(), own.relations.cpu(), None, None)
        ids, taking_part = negatives.draw(batch)
        drawn = ids.to(self._device).expand(count, -1)
        mask = None if taking_part is None else taking_part.to(self._device)
        ones = torch.ones(count, dtype=torch.float32, device=self._device)
        pairs = ones * data.neg_size if mask is None else mask.sum(1).float()
        factor = ones / _loss(self._config.loss).divisor(1, pairs)
        return DrawnNegatives(queries, drawn, mask, factor)

    def _factor(self, batch: Batch, negatives: Tensor, mask: Tensor | None) -> Tensor:
        """Return the factor ``[B]`` of each row in B times the loss of a batch."""
        count, loss, weights = len(negatives), _loss(self._config.loss), batch.weights
        if loss.takes_weights and weights is not None:
            return weights * (count / weights.sum())
        pairs = negatives.numel() if mask is None else int(mask.sum())
        ones = torch.ones(count, dtype=torch.float32, device=self._device)
        factor: Tensor = ones * (count / loss.divisor(count, pairs))
        return factor

    def _rows_of(self, queries: ExampleQueries) -> Tensor:
        own = self._as_trained(queries)
        wanted = self._keys(*_triples_of(own))
        keys, order = self._keys(*self._hrt.t()).sort(stable=True)
        at = torch.searchsorted(keys, wanted).clamp_(max=max(0, len(keys) - 1))
        missing = (keys[at] != wanted).nonzero()
        if len(missing):
            row = int(missing[0])
            triple = [int(it[row]) for it in _triples_of(queries)]
            raise ValueError(
                f"train: {shown(triple)} is not among the run's training triples, which alone have "
                f"drawn negatives (row {row} of the {queries.side} side)"
            )
        return order[at]

    def _as_trained(self, queries: ExampleQueries) -> ExampleQueries:
        """Return queries as in training: with inverse relations, all for tails."""
        if not self._has_inverses or queries.side == "tail":
            return queries
        return replace(queries, side="tail", relations=queries.relations + self._num_relations)

    def _keys(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        count = self._num_relations * (1 + self._has_inverses)
        return (heads * count + relations) * self._num_entities + tails


def _loss(loss: LossConfig) -> NegativesLoss:
    """Make a loss of rows."""
    cls = loss_of(loss.name)
    assert issubclass(cls, NegativesLoss)
    return cls(reduction="none", **loss.hyperparameters())


def _triples_of(queries: ExampleQueries) -> tuple[Tensor, Tensor, Tensor]:
    assert queries.targets is not None
    if queries.side == "head":
        return queries.targets, queries.relations, queries.anchors
    return queries.anchors, queries.relations, queries.targets


@dataclass
class _Entries:
    """Rows of gradients, sorted by the row of a table."""

    of: Tensor  # [P], number of the example
    ids: Tensor  # [P], the row of the table, ascending
    rows: Tensor  # [P, G]

    @classmethod
    def sorted(cls, of: Tensor, ids: Tensor, rows: Tensor) -> "_Entries":
        order = ids.argsort(stable=True)
        return cls(of[order], ids[order], rows[order])

    def add_products(self, others: "_Entries", into: Tensor) -> None:
        """Add inner products with the M others to ``into [M, B]``."""
        first = torch.searchsorted(others.ids, self.ids)
        counts = torch.searchsorted(others.ids, self.ids, right=True) - first
        own = torch.repeat_interleave(counts)
        starts = first - (counts.cumsum(0) - counts)
        theirs = torch.arange(len(own), dtype=torch.int64, device=own.device) + starts[own]
        step = max(1, _NUMBERS // max(1, self.rows.shape[1]))
        for mine, their in zip(own.split(step), theirs.split(step), strict=True):
            products = torch.linalg.vecdot(self.rows[mine], others.rows[their])
            into.index_put_((others.of[their], self.of[mine]), products, accumulate=True)

    def add_squares(self, into: Tensor) -> None:
        """Add the squared length of each example's gradient to ``into [B]``."""
        keys = self.of * (int(self.ids.max()) + 1 if len(self.ids) else 1) + self.ids
        distinct, place = keys.unique(return_inverse=True)
        total = self.rows.new_zeros(len(distinct), self.rows.shape[1])
        total.index_put_((place,), self.rows, accumulate=True)
        of = into.new_zeros(len(distinct), dtype=torch.int64).index_put_((place,), self.of)
        into.index_put_((of,), total.square().sum(1), accumulate=True)


@dataclass
class _Part:
    """Examples with slopes of scores, and gradients of the query side."""

    drawn: DrawnNegatives
    queries: Tensor  # [B, F]
    index: Tensor  # [B, 1 + K]
    slopes: Tensor  # [B, 1 + K]
    relations: _Entries | None
    of_anchors: Tensor | None


class SampledInfluence:
    """Inner products of gradients of a loss of sampled negatives, at one state of a model."""

    def __init__(self, model: Any, loss: LossConfig, parameters: str, origin: Origin) -> None:
        if isinstance(model, MED):
            raise TypeError(
                "influences of MED are not served: the loss of MED weighs an example by the other "
                "examples of the batch"
            )
        self._asker = Asker(model) if parameters == "all" else None
        self._model, self._loss, self._step = model, loss, origin.step
        self._made: dict[Side, Candidates] = {}
        self._replay = Replay(origin, model.entity.device)

    def products(self, examples: ExampleQueries, others: ExampleQueries) -> Tensor:
        """Return the products ``[M, B]`` of examples with the M others."""
        total = self._zeros(len(others), len(examples))
        mine, theirs = self._replay.training(examples, self._step), self._replay.others(others)
        width = self._model.entity.shape[1] * (theirs.negatives.shape[1] + 2)
        for rows in _slices(len(others), max(1, _NUMBERS // width)):
            entities, relations = self._entries(self._part(theirs.part(rows)), None)
            wanted = entities.ids.unique_consecutive()
            for columns in _slices(len(examples), max(1, _SCORES // mine.negatives.shape[1])):
                part = self._part(mine.part(columns))
                block = total[rows, columns]
                own, own_relations = self._entries(part, wanted)
                own.add_products(entities, block)
                if relations is not None and own_relations is not None:
                    own_relations.add_products(relations, block)
        return total

    def squares(self, examples: ExampleQueries) -> Tensor:
        """Return the product ``[B]`` of each example with itself."""
        total = self._zeros(len(examples))
        drawn = self._replay.training(examples, self._step)
        width = self._model.entity.shape[1] * (drawn.negatives.shape[1] + 2)
        for rows in _slices(len(examples), max(1, _NUMBERS // width)):
            for entries in self._entries(self._part(drawn.part(rows)), None):
                if entries is not None:
                    entries.add_squares(total[rows])
        return total

    def _zeros(self, *shape: int) -> Tensor:
        table = self._model.entity
        dtype = torch.float64 if table.dtype == torch.float64 else torch.float32
        return torch.zeros(shape, dtype=dtype, device=table.device)

    def _part(self, drawn: DrawnNegatives) -> _Part:
        queries, model = drawn.queries, self._model
        assert queries.targets is not None
        index = torch.cat([queries.targets[:, None], drawn.negatives], 1)
        candidates = self._candidates(queries.side)
        with torch.no_grad():
            made = queries_at(model, queries.anchors, queries.relations, queries.side, None)
        candidates = with_gamma(candidates, model, made.dtype)
        with torch.enable_grad():
            leaf = made.detach().requires_grad_()
            scores = ops.indexed_scores(
                leaf,
                candidates.table.detach(),
                index,
                model.score,
                bias=candidates.bias,
                factor=candidates.factor,
            )
            seen = scores.detach().requires_grad_()
            rows = _loss(self._loss).of_scores(seen[:, 0], seen[:, 1:], mask=drawn.mask)
            (slopes,) = torch.autograd.grad(rows, seen, drawn.factor.to(rows.dtype))
            if self._asker is None:
                return _Part(drawn, made, index, slopes, None, None)
            (of_queries,) = torch.autograd.grad(scores, leaf, slopes)
        found = self._asker.gradients(queries, of_queries)
        number = torch.arange(len(index), dtype=torch.int64, device=index.device)
        relations = _Entries.sorted(number, found.relations, found.of_relations)
        return _Part(drawn, made, index, slopes, relations, found.of_anchors)

    def _candidates(self, side: Side) -> Candidates:
        """Return the candidates of a side, made only once for RSCF."""
        if side not in self._made:
            with torch.no_grad():
                self._made[side] = candidates_at(self._model, side, None)
        return self._made[side]

    def _entries(self, part: _Part, wanted: Tensor | None) -> tuple[_Entries, _Entries | None]:
        """Return gradients of entity rows (``wanted`` ones, or all) and of relation rows."""
        takes_part = part.slopes != 0
        if wanted is not None:
            takes_part &= torch.isin(part.index, wanted)
        of, place = takes_part.nonzero(as_tuple=True)
        ids = part.index[of, place]
        rows = self._candidate_rows(part, of, ids, part.slopes[of, place])
        if part.of_anchors is not None:
            anchors = part.drawn.queries.anchors
            chosen = torch.ones_like(anchors, dtype=torch.bool)
            if wanted is not None:
                chosen = torch.isin(anchors, wanted)
            which = chosen.nonzero()[:, 0]
            of, ids = torch.cat([of, which]), torch.cat([ids, anchors[which]])
            rows = torch.cat([rows, part.of_anchors[which].to(rows.dtype)])
        return _Entries.sorted(of, ids, rows), part.relations

    def _candidate_rows(self, part: _Part, of: Tensor, ids: Tensor, slopes: Tensor) -> Tensor:
        """Return ``slope dscore / drow`` of pairs, ``[P, G]``."""
        table, side = self._model.entity.detach(), part.drawn.queries.side
        step = max(1, _NUMBERS // table.shape[1])
        whole = part.queries.new_empty(len(ids), table.shape[1])
        for some in _slices(len(ids), step):
            with torch.enable_grad():
                rows = table[ids[some]].to(whole.dtype).requires_grad_()
                index = torch.arange(len(rows), dtype=torch.int64, device=rows.device)[:, None]
                factor = candidates_at(self._model.with_entity(rows), side, None).factor
                scores = ops.indexed_scores(
                    part.queries[of[some]], rows, index, self._model.score, factor=factor
                )
                (whole[some],) = torch.autograd.grad(scores, rows, slopes[some, None])
        return whole


def _slices(count: int, size: int) -> Iterator[slice]:
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))
