"""Influences by losses of sampled negatives: gradients of few rows, joined by ids.

The gradient of the entity table is zero except at the target and the negatives of an example. So
the inner product of two gradients is a sum over the entities of both. The rows of the M other
examples are stored, sorted by entity. For each example only rows of these entities are computed.

Samplers have no state, so the negatives of a training triple are drawn again, as in the epoch in
which the checkpoint was written. Test triples get negatives of the same sampler with another seed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast import ops
from kgfast.extras.influence.checkpoints import Origin
from kgfast.extras.influence.examples import ExampleQueries
from kgfast.losses import NegativesLoss, with_gamma
from kgfast.models import MED, RSCF, SIDES, Side, candidates_at, queries_at
from kgfast.rng import Stream, mix
from kgfast.training import Batch, Objective, loss_of

_NUMBERS = 1 << 21  # numbers in gradients of rows that are in memory at once
_SCORES = 1 << 20  # scores that are in memory at once


class DrawnNegatives(NamedTuple):
    """Examples with negatives."""

    queries: ExampleQueries  # [B]
    negatives: Tensor  # int64 [B, K]
    mask: Tensor  # bool [B, K], False: takes no part
    factor: Tensor  # [B], factor of a row in B times the loss of the row's batch

    def part(self, rows: slice) -> "DrawnNegatives":
        """Select examples."""
        queries = self.queries.part(rows)
        return DrawnNegatives(queries, self.negatives[rows], self.mask[rows], self.factor[rows])

    def blocks(self, size: int) -> Iterator["DrawnNegatives"]:
        """Cut examples into blocks."""
        return (self.part(rows) for rows in _slices(len(self.queries), size))


class SampledInfluence:
    """Inner products of gradients of a loss of sampled negatives, at one state of a model.

    The batches and negatives of the run are drawn again.
    """

    def __init__(self, model: Any, origin: Origin) -> None:
        if isinstance(model, MED | RSCF):
            raise TypeError(
                f"influences of {type(model).__name__} are not served: MED weighs an example by "
                "the other examples of the batch, and RSCF filters rows of candidates"
            )
        self._model, self._config, self._step = model, origin.config, origin.step
        self._table = model.entity.detach()
        graph = origin.graph
        self._num_relations = len(graph.relations)
        self._has_inverses, self._num_triples = model.has_inverses, len(graph.train)
        self._objective = Objective(self._config, graph.train.hrt.cpu(), model)
        self._loss: NegativesLoss = loss_of(self._config.loss, reduction="none")
        numbers = self._table.shape[1] * (self._config.data.neg_size + 2)  # an example's rows
        self._rows_at_once = max(1, _NUMBERS // numbers)

    def training(self, ids: Tensor, queries: ExampleQueries) -> DrawnNegatives:
        """Return training examples with the negatives of the epoch that the checkpoint is in."""
        objective, count = self._objective, len(ids)
        is_head = queries.side == "head"
        rows = ids - self._num_triples * (is_head and not self._has_inverses)
        place = torch.full((len(objective.hrt),), -1, dtype=torch.int64, device="cpu")
        place[rows.cpu()] = torch.arange(count, dtype=torch.int64, device="cpu")
        size = self._config.data.neg_size
        negatives = torch.empty(count, size, dtype=torch.int64, device="cpu")
        mask = torch.ones(count, size, dtype=torch.bool, device="cpu")
        factor = torch.ones(count, dtype=torch.float32, device="cpu")
        epoch = max(0, self._step - 1) // objective.per_epoch
        for number in range(epoch * objective.per_epoch, (epoch + 1) * objective.per_epoch):
            side, of_batch = objective.rows_of(number)
            at = place[of_batch]
            chosen = at >= 0
            if side != self._trained_side(queries.side) or not bool(chosen.any()):
                continue
            batch, at = objective.batch(number), at[chosen]
            drawn, taking_part = _drawn(batch.negatives, batch.mask, len(of_batch))
            negatives[at], mask[at] = drawn[chosen], taking_part[chosen]
            factor[at] = self._factor(batch, taking_part)[chosen]
        return self._placed(queries, negatives, mask, factor)

    def others(self, queries: ExampleQueries) -> DrawnNegatives:
        """Return any triples, each as a separate batch, with negatives that no step had."""
        side, of_steps = self._trained_side(queries.side), self._objective.negatives
        assert of_steps is not None
        negatives = replace(of_steps, seed=mix(self._config.seed, Stream.INFLUENCE))
        relations = queries.relations + self._num_relations * (side != queries.side)
        number = SIDES.index(queries.side)
        batch = Batch(number, side, queries.anchors.cpu(), relations.cpu(), None, None)
        drawn, mask = _drawn(*negatives.draw(batch), len(queries))
        factor = 1 / self._loss.divisor(1, mask.sum(1).float())
        of_each = torch.ones(len(queries), dtype=torch.float32, device="cpu") * factor
        return self._placed(queries, drawn, mask, of_each)

    def _placed(self, queries: ExampleQueries, *drawn: Tensor) -> DrawnNegatives:
        return DrawnNegatives(queries, *(each.to(self._table.device) for each in drawn))

    def _trained_side(self, side: Side) -> Side:
        """Return the side that training queries: with inverse relations, tails alone."""
        return "tail" if self._has_inverses else side

    def _factor(self, batch: Batch, mask: Tensor) -> Tensor:
        """Return the factor ``[B]`` of each row in B times the loss of a batch."""
        count, loss, weights = len(mask), self._loss, batch.weights
        if loss.takes_weights and weights is not None:
            return weights * (count / weights.sum())
        ones = torch.ones(count, dtype=torch.float32, device="cpu")
        factor: Tensor = ones * (count / loss.divisor(count, int(mask.sum())))
        return factor

    def products(self, drawn: DrawnNegatives, others: DrawnNegatives) -> Tensor:
        """Return the products ``[M, B]`` of examples with the M others."""
        shape = len(others.queries), len(drawn.queries)
        dtype = torch.float64 if self._table.dtype == torch.float64 else torch.float32
        total = torch.zeros(shape, dtype=dtype, device=self._table.device)
        for rows in _slices(shape[0], self._rows_at_once):
            entries = self._gradients(others.part(rows))
            wanted = entries.ids.unique_consecutive()
            for columns in _slices(shape[1], max(1, _SCORES // drawn.negatives.shape[1])):
                examples = self._gradients(drawn.part(columns), wanted)
                examples.add_products(entries, total[rows, columns])
        return total

    def _gradients(self, drawn: DrawnNegatives, wanted: Tensor | None = None) -> "_Entries":
        """Return gradients of entity rows, of ``wanted`` ones or of all."""
        examples = drawn.queries
        index = torch.cat([examples.targets[:, None], drawn.negatives], 1)
        with torch.no_grad():
            queries = queries_at(
                self._model, examples.anchors, examples.relations, examples.side, None
            )
        slopes = self._slopes(drawn, index, queries)
        takes_part = slopes != 0
        if wanted is not None:
            takes_part &= torch.isin(index, wanted)
        of, place = takes_part.nonzero(as_tuple=True)
        ids = index[of, place]
        order = ids.argsort(stable=True)
        rows = self._candidate_rows(queries[of], ids, slopes[of, place])
        return _Entries(of[order], ids[order], rows[order])

    def _slopes(self, drawn: DrawnNegatives, index: Tensor, queries: Tensor) -> Tensor:
        """Return slopes of scores ``[B, 1 + K]``."""
        model, side = self._model, drawn.queries.side
        with torch.no_grad():
            bias = with_gamma(candidates_at(model, side, None), model, queries.dtype).bias
            scores = ops.indexed_scores(queries, self._table, index, model.score, bias=bias)
        with torch.enable_grad():
            leaf = scores.requires_grad_()
            rows = self._loss.of_scores(leaf[:, 0], leaf[:, 1:], mask=drawn.mask)
            return torch.autograd.grad(rows, leaf, drawn.factor.to(rows.dtype))[0]

    def _candidate_rows(self, queries: Tensor, ids: Tensor, slopes: Tensor) -> Tensor:
        """Return ``slope dscore / drow`` of pairs of a query and an entity, ``[P, G]``."""
        whole = queries.new_empty(len(ids), self._table.shape[1])
        for some in _slices(len(ids), max(1, _NUMBERS // whole.shape[1])):
            with torch.enable_grad():
                rows = self._table[ids[some]].to(whole.dtype).requires_grad_()
                index = torch.arange(len(rows), dtype=torch.int64, device=rows.device)[:, None]
                scores = ops.indexed_scores(queries[some], rows, index, self._model.score)
                (whole[some],) = torch.autograd.grad(scores, rows, slopes[some, None])
        return whole


def _drawn(ids: Tensor | None, mask: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Return negatives ``[count, K]``, and whether each takes part."""
    assert ids is not None
    ids = ids.expand(count, -1)
    return ids, torch.ones_like(ids, dtype=torch.bool) if mask is None else mask


@dataclass
class _Entries:
    """Rows of gradients, sorted by the row of a table."""

    of: Tensor  # [P], number of the example
    ids: Tensor  # [P], the row of the table, ascending
    rows: Tensor  # [P, G]

    def add_products(self, others: "_Entries", into: Tensor) -> None:
        """Add inner products with the M others to ``into [M, B]``."""
        first = torch.searchsorted(others.ids, self.ids)
        counts = torch.searchsorted(others.ids, self.ids, right=True) - first
        ours = torch.repeat_interleave(counts)
        starts = first - (counts.cumsum(0) - counts)
        theirs = torch.arange(len(ours), dtype=torch.int64, device=ours.device) + starts[ours]
        step = max(1, _NUMBERS // max(1, self.rows.shape[1]))
        for mine, their in zip(ours.split(step), theirs.split(step), strict=True):
            products = torch.linalg.vecdot(self.rows[mine], others.rows[their])
            into.index_put_((others.of[their], self.of[mine]), products, accumulate=True)


def _slices(count: int, size: int) -> Iterator[slice]:
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))
