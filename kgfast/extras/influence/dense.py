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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kgfast.extras.influence.examples import ExampleQueries
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
            self.passes.bce(slopes, rest, scale)
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
            run.passes_of(rows),
            operands,
            (of_rows[order], ids[order]),
            loss.labels(self._num_entities),
            run.loss_value(operands, CrossEntropy(queries.targets, 0.0)).logsumexp
            if loss.is_softmax
            else None,
        )


def _blocks(queries: ExampleQueries, size: int) -> Iterator[ExampleQueries]:
    """Cut examples into blocks; no examples are one empty block."""
    for first in range(0, max(1, len(queries)), size):
        yield queries.part(slice(first, first + size))
