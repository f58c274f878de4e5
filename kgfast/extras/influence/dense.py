"""Influences by losses over all entities: binary cross entropy and softmax, of dot scores.

With scores ``x = E q + b`` and slopes ``s = dloss / dx``, an example's gradient of the table is ``s
q^T``, and the gradient of the biases is ``s``. So the inner product of two gradients is ``(s . s')
(q . q' + 1)`` (without biases ``(s . s') (q . q')``). The sum over entities is streamed: one
product makes a chunk of slopes ``[B, n]``, and another product consumes the chunk.

With all parameters the row of an entity also makes the queries that it anchors. With ``g`` the
gradient of the anchor ``a``, products gain ``s_{a'} (q . g')``, ``s'_a (q' . g)`` and
``[a = a'] g . g'``; ``g`` follows from ``s E``, a third product.

Examples of one query differ only in their target. The slopes of a query are made once, as if it had
no answer, and ``label e_t`` is subtracted from the sums ("late"). If a query has one example, the
label is subtracted from the slope itself: a difference of sums would lose a slope near 0. (The
slopes of a query with several answers are not near 0.)

Cost model: U N (2 F + 2 M) operations for U queries and M others; with all parameters 2 U N F
more. Memory: ``BLOCK x _ENTITIES`` slopes of queries, and as many of the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kgfast.extras.influence.examples import ExampleQueries
from kgfast.extras.influence.query_side import Asker, QuerySide
from kgfast.losses import LOSSES, EntitiesLoss, with_gamma
from kgfast.models import candidates_at, queries_at
from kgfast.ops import check_ids, run
from kgfast.ops.run import CrossEntropy, Operands, Passes
from kgfast.training.config import LossConfig

BLOCK = 2048  # examples with slopes that are made together
_ENTITIES = 1024  # entities of a chunk: narrower products take longer
_ASKED = 256  # queries that are made together: 10 MB of ConvE's features
_SQUARES = 64  # examples whose products with each other are made, for the diagonal


@dataclass
class _Side:
    """Examples with distinct queries, and the slopes of these queries."""

    examples: ExampleQueries  # [B]
    place: Tensor  # int64 [B]: the query of each example
    late: Tensor  # int64 [L]: examples with a label that is not in the slopes of the query
    anchors: Tensor  # int64 [U], anchors of the queries
    passes: Passes
    operands: Operands  # queries [U, F] and candidates
    positives: tuple[Tensor, Tensor]  # query and entity of each label, in ascending order of ids
    labels: tuple[float, float]  # a positive has the sum, any other entity the second
    logsumexp: Tensor | None  # None: binary cross entropy

    @property
    def rows(self) -> Tensor:
        return self.operands.queries

    @property
    def label(self) -> float:
        is_mean = self.logsumexp is None
        return self.labels[0] / self.operands.candidates.num_rows if is_mean else self.labels[0]

    @property
    def with_bias(self) -> float:
        """Return 1 if each entity has its own bias, with the slope as gradient; else 0."""
        bias = self.operands.bias
        return 0.0 if bias is None or len(bias) == 1 else 1.0

    @property
    def late_targets(self) -> Tensor:
        """Return the entities that carry the labels of ``late``."""
        return self.examples.targets[self.late]

    def slopes(self, chunk: slice, scratch: Tensor) -> Tensor:
        """Write the slopes ``[U, n]`` of a chunk of entities into the scratch."""
        count = chunk.stop - chunk.start
        slopes = scratch[: len(self.rows) * count].view(-1, count)
        bias = self.operands.bias
        torch.mm(self.rows, self.operands.table[chunk].to(self.rows.dtype).T, out=slopes)
        if bias is not None:
            slopes += bias[chunk] if len(bias) > 1 else bias
        rest = self.labels[1]
        if self.logsumexp is None:
            scale = slopes.new_full((len(slopes),), 1 / self.operands.candidates.num_rows)
            self.passes.bce_slopes(slopes, rest, scale)
        else:
            # exp(x - logsumexp) in two factors: a difference of large numbers is exact in few bits.
            near = self.logsumexp.to(slopes.dtype)
            scale = (near.double() - self.logsumexp).exp_().to(slopes.dtype)
            share = slopes.new_full((len(slopes),), rest)
            self.passes.softmax_slopes(slopes, near, scale, share)
        rows, ids = self.positives
        first, last = torch.searchsorted(ids, ids.new_tensor([chunk.start, chunk.stop])).tolist()
        slopes[rows[first:last], ids[first:last] - chunk.start] -= self.label
        return slopes

    def of_queries(self, sums: Tensor) -> Tensor:
        """Return gradients ``[B, F]`` of the examples' queries, from sums ``[U, F]``."""
        found = sums.index_select(0, self.place)
        found[self.late] -= self.label * self.operands.table[self.late_targets].to(found.dtype)
        return found


class DenseInfluence:
    """Inner products of gradients of a loss over all entities, at one state of a model.

    Examples of equal queries should be neighbours, for speed.
    """

    def __init__(self, model: Any, loss: LossConfig, parameters: str) -> None:
        if model.score != "dot":
            raise ValueError(
                f"influences of {loss.name} over all entities need a model with score 'dot'; "
                f"{type(model).__name__} has {model.score!r}"
            )
        self._model, self._loss = model, loss
        self._asker = Asker(model) if parameters == "all" else None
        self._num_entities = int(model.num_entities)

    def products(self, ids: Tensor, examples: ExampleQueries, others: ExampleQueries) -> Tensor:
        """Return the products ``[M, B]`` of examples with the M others."""
        columns = []
        for part in _blocks(examples, BLOCK):
            side = self._side(part)
            columns.append(torch.cat([self._block(side, it) for it in _blocks(others, BLOCK)]))
        return torch.cat(columns, 1)

    def squares(self, ids: Tensor, examples: ExampleQueries) -> Tensor:
        """Return the product ``[B]`` of each example with itself."""
        parts = _blocks(examples, _SQUARES)
        return torch.cat([self._block(self._side(part), part).diagonal() for part in parts])

    def _block(self, side: _Side, others: ExampleQueries) -> Tensor:
        other = self._side(others, merged=False)
        found, place = self._swept(side, other), side.place
        total = found.dots.index_select(1, place)
        total[:, side.late] -= side.label * found.at_late
        total *= (other.rows @ side.rows.T + side.with_bias).index_select(1, place)
        if found.own is None or found.others is None:
            return total
        own, theirs = found.own, found.others
        at_others = found.at_others.index_select(1, place)
        is_label = theirs.anchors[:, None] == side.late_targets
        at_others[:, side.late] -= side.label * is_label.to(total.dtype)
        total += at_others * (theirs.of_anchors @ side.rows.T).index_select(1, place)
        total += found.at_own.index_select(1, place) * (other.rows @ own.of_anchors.T)
        same = theirs.anchors[:, None] == own.anchors
        total += torch.where(same, theirs.of_anchors @ own.of_anchors.T, 0.0)
        return total + theirs.products(own)

    def _swept(self, side: _Side, other: _Side) -> "_Swept":
        rows, late, asker = side.rows, side.late_targets, self._asker
        count = len(rows) + len(other.rows)
        dots = rows.new_zeros(len(other.rows), len(rows))
        at_late = rows.new_zeros(len(other.rows), len(late))
        held = dots.shape if asker is not None else (0, 0)
        at_others, at_own = dots.new_zeros(held), dots.new_zeros(held)
        of_queries, of_others = torch.zeros_like(rows), torch.zeros_like(other.rows)
        scratch = rows.new_empty(count * min(_ENTITIES, self._num_entities))
        for first in range(0, self._num_entities, _ENTITIES):
            chunk = slice(first, min(first + _ENTITIES, self._num_entities))
            own = side.slopes(chunk, scratch)
            theirs = other.slopes(chunk, scratch[own.numel() :])
            dots.addmm_(theirs, own.T)
            _pick(at_late, theirs, late, chunk)
            if asker is None:
                continue
            table = side.operands.table[chunk].to(rows.dtype)
            of_queries.addmm_(own, table)
            of_others.addmm_(theirs, table)
            _pick(at_own, theirs, side.anchors, chunk)
            _pick(at_others.T, own, other.anchors, chunk)
        found = _Swept(dots, at_late, at_own, at_others)
        if asker is not None:
            found.own = asker.gradients(side.examples, side.of_queries(of_queries))
            found.others = asker.gradients(other.examples, of_others)
        return found

    def _side(self, examples: ExampleQueries, *, merged: bool = True) -> _Side:
        """Make the queries and slopes of examples; ``merged`` joins equal neighbours."""
        model, device, count = self._model, examples.anchors.device, len(examples)
        place = torch.arange(count, dtype=torch.int64, device=device)
        if merged and examples.known is None:
            place = examples.runs()
        firsts = torch.searchsorted(place, place.unique_consecutive())
        queries, indptr, ids = examples.part(firsts), *examples.positives()
        check_ids("targets", ids, self._num_entities)
        of_rows, late = place.repeat_interleave(indptr.diff()), place[:0]
        if len(firsts) < count:
            is_alone = place.bincount()[place] == 1
            of_rows, ids, late = place[is_alone], ids[is_alone], (~is_alone).nonzero()[:, 0]
        order = ids.argsort(stable=True)
        candidates = candidates_at(model, queries.side, None)
        if candidates.factor is not None:
            raise ValueError(f"{type(model).__name__}: candidates with factors are not served")
        asked = zip(queries.anchors.split(_ASKED), queries.relations.split(_ASKED), strict=True)
        rows = torch.cat([queries_at(model, *part, queries.side, None) for part in asked])
        candidates = with_gamma(candidates, model, rows.dtype)
        operands = run.operands_of(rows, candidates.table, model.score, candidates.bias)
        loss = LOSSES[self._loss.name](**self._loss.hyperparameters())
        assert isinstance(loss, EntitiesLoss)
        return _Side(
            examples,
            place,
            late,
            queries.anchors,
            run.passes_of(rows),
            operands,
            (of_rows[order], ids[order]),
            loss.labels(self._num_entities),
            run.loss_value(operands, CrossEntropy(queries.targets, 0.0)).logsumexp
            if loss.is_softmax
            else None,
        )


@dataclass
class _Swept:
    """Sums over entities of queries (own) and others; the last four only with all parameters."""

    dots: Tensor  # [M, U]
    at_late: Tensor  # [M, L], slopes of others at late labels
    at_own: Tensor  # [M, U], slopes of others at anchors of queries
    at_others: Tensor  # [M, U], slopes of queries at anchors of others
    own: QuerySide | None = None  # gradients of the examples' query side
    others: QuerySide | None = None


def _pick(into: Tensor, slopes: Tensor, ids: Tensor, chunk: slice) -> None:
    """Copy slopes ``[B, n]`` of a chunk at entities ``ids [A]`` to columns of ``into [B, A]``."""
    which = ((ids >= chunk.start) & (ids < chunk.stop)).nonzero()[:, 0]
    into[:, which] = slopes[:, ids[which] - chunk.start]


def _blocks(queries: ExampleQueries, size: int) -> Iterator[ExampleQueries]:
    """Cut examples into blocks; no examples are one empty block."""
    for first in range(0, max(1, len(queries)), size):
        yield queries.part(slice(first, first + size))
