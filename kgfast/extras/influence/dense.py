"""Influences by losses over all entities: binary cross entropy and softmax, of dot scores.

With scores ``x = E q + b`` and slopes ``s = dloss / dx``, an example's gradient of the table is ``s
q^T``, and the gradient of the biases is ``s``. So the inner product of two gradients is ``(s . s')
(q . q' + 1)`` (without biases ``(s . s') (q . q')``). The sum over entities is streamed: one
product makes a chunk of slopes ``[B, n]``, and another product consumes the chunk.

Examples of one query differ only in their target. The slopes of a query are made once, as if it had
no answer, and ``label e_t`` is subtracted from the sums ("late"). If a query has one example, the
label is subtracted from the slope itself: a difference of sums would lose a slope near 0. (The
slopes of a query with several answers are not near 0.)

Cost model: U N (2 F + 2 M) operations for U queries and M others. Memory: ``BLOCK x _ENTITIES``
slopes of queries, and as many of the others.
"""

from typing import Any

import torch
from torch import Tensor

from kgfast.extras.influence.examples import ExampleQueries
from kgfast.losses import EntitiesLoss, with_gamma
from kgfast.models import candidates_at, queries_at
from kgfast.ops import check_ids, run
from kgfast.ops.run import CrossEntropy
from kgfast.training import loss_of
from kgfast.training.config import LossConfig

BLOCK = 2048  # examples with slopes that are made together
_ENTITIES = 1024  # entities of a chunk: narrower products take longer
_QUERIES = 256  # queries that are made together: 10 MB of ConvE's features


class DenseInfluence:
    """Inner products of gradients of a loss over all entities, at one state of a model.

    Examples of equal queries should be neighbours, for speed.
    """

    def __init__(self, model: Any, loss: LossConfig) -> None:
        if model.score != "dot":
            raise ValueError(
                f"influences of {loss.name} over all entities need a model with score 'dot'; "
                f"{type(model).__name__} has {model.score!r}"
            )
        self._model, self._loss = model, loss
        self._num_entities = int(model.num_entities)

    def training(self, ids: Tensor, examples: ExampleQueries) -> ExampleQueries:
        """Return training examples by which :meth:`products` tells gradients."""
        return examples

    def others(self, examples: ExampleQueries) -> ExampleQueries:
        """Return other examples by which :meth:`products` tells gradients."""
        return examples

    def products(self, examples: ExampleQueries, others: ExampleQueries) -> Tensor:
        """Return the products ``[M, B]`` of examples with the M others."""
        columns = []
        for block in examples.blocks(BLOCK):
            side = _Side(self._model, self._loss, block)
            columns.append(torch.cat([self._block(side, some) for some in others.blocks(BLOCK)]))
        return torch.cat(columns, 1)

    def _block(self, side: "_Side", others: ExampleQueries) -> Tensor:
        other = _Side(self._model, self._loss, others, merged=False)
        rows, late = side.rows, side.examples.targets[side.late]
        dots = rows.new_zeros(len(other.rows), len(rows))
        at_late = rows.new_zeros(len(other.rows), len(late))  # slopes of others at late labels
        count = len(rows) + len(other.rows)
        scratch = rows.new_empty(count * min(_ENTITIES, self._num_entities))
        for first in range(0, self._num_entities, _ENTITIES):
            chunk = slice(first, min(first + _ENTITIES, self._num_entities))
            slopes = side.slopes(chunk, scratch)
            of_others = other.slopes(chunk, scratch[slopes.numel() :])
            dots.addmm_(of_others, slopes.T)
            inside = ((late >= chunk.start) & (late < chunk.stop)).nonzero()[:, 0]
            at_late[:, inside] = of_others[:, late[inside] - chunk.start]
        total = dots.index_select(1, side.place)
        total[:, side.late] -= side.label * at_late
        total *= (other.rows @ rows.T + side.with_bias).index_select(1, side.place)
        return total


class _Side:
    """Examples with distinct queries, and the slopes of these queries; ``merged`` joins neighbours.

    ``place`` int64 ``[B]`` is the query of each example, and ``late`` int64 ``[L]`` the examples
    with a label that is not in the slopes of the query.
    """

    def __init__(
        self, model: Any, loss: LossConfig, examples: ExampleQueries, *, merged: bool = True
    ) -> None:
        count, num_entities = len(examples), int(model.num_entities)
        place = torch.arange(count, dtype=torch.int64, device=examples.anchors.device)
        if merged and examples.known is None:
            place = examples.runs()
        firsts = torch.searchsorted(place, place.unique_consecutive())
        queries, indptr, ids = examples.part(firsts), *examples.positives()
        check_ids("targets", ids, num_entities)
        of_rows, late = place.repeat_interleave(indptr.diff()), place[:0]
        if len(firsts) < count:
            is_alone = place.bincount()[place] == 1
            of_rows, ids, late = place[is_alone], ids[is_alone], (~is_alone).nonzero()[:, 0]
        order = ids.argsort(stable=True)
        self.examples, self.place, self.late = examples, place, late
        self._positives = of_rows[order], ids[order]
        candidates = candidates_at(model, queries.side, None)
        if candidates.factor is not None:
            raise ValueError(f"{type(model).__name__}: candidates with factors are not served")
        pairs = zip(queries.anchors.split(_QUERIES), queries.relations.split(_QUERIES), strict=True)
        rows = torch.cat([queries_at(model, *pair, queries.side, None) for pair in pairs])
        candidates = with_gamma(candidates, model, rows.dtype)
        self.rows, self._table, self._bias = rows, candidates.table, candidates.bias
        # 1 if each entity has its own bias, with the slope as gradient; else 0.
        self.with_bias = float(self._bias is not None and len(self._bias) > 1)
        self._passes = run.passes_of(rows)
        of_all: EntitiesLoss = loss_of(loss)
        # A positive has the sum as label, any other entity the rest.
        self.label, self._rest = of_all.labels(num_entities)
        self._logsumexp: Tensor | None = None  # None: binary cross entropy
        if of_all.is_softmax:
            operands = run.operands_of(rows, self._table, model.score, self._bias)
            values = run.loss_value(operands, CrossEntropy(queries.targets, 0.0))
            self._logsumexp = values.logsumexp
        else:
            self.label /= num_entities

    def slopes(self, chunk: slice, scratch: Tensor) -> Tensor:
        """Write the slopes ``[U, n]`` of a chunk of entities into the scratch."""
        count = chunk.stop - chunk.start
        slopes = scratch[: len(self.rows) * count].view(-1, count)
        torch.mm(self.rows, self._table[chunk].to(self.rows.dtype).T, out=slopes)
        if self._bias is not None:
            slopes += self._bias[chunk] if self.with_bias else self._bias
        if self._logsumexp is None:
            scale = slopes.new_full((len(slopes),), 1 / len(self._table))
            self._passes.bce(slopes, self._rest, scale)
        else:
            # exp(x - logsumexp) in two factors: a difference of large numbers is exact in few bits.
            near = self._logsumexp.to(slopes.dtype)
            scale = (near.double() - self._logsumexp).exp_().to(slopes.dtype)
            share = slopes.new_full((len(slopes),), self._rest)
            self._passes.softmax_slopes(slopes, near, scale, share)
        rows, ids = self._positives
        first, last = torch.searchsorted(ids, ids.new_tensor([chunk.start, chunk.stop])).tolist()
        slopes[rows[first:last], ids[first:last] - chunk.start] -= self.label
        return slopes
