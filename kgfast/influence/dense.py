"""Influences by losses over all entities: binary cross entropy and softmax, of dot scores.

With scores ``x = E q + b`` and slopes ``s = dloss / dx``, an example's gradient of the table is
``s q^T`` and that of the biases ``s``. So the inner product of two is ``(s . s') (q . q' + 1)``
(without biases ``(s . s') (q . q')``), and the sum over entities is streamed: a chunk of slopes
``[B, n]`` is made by one product and used up by another.

With all parameters an entity's row also makes the queries that it anchors. With ``g`` the gradient
of the anchor ``a``, products gain ``s_{a'} (q . g')``, ``s'_a (q' . g)`` and ``[a = a'] g . g'``;
``g`` follows from ``s E``, a third product.

Cost model: B N (2 F + 2 M) operations for B examples and M of the others; with all parameters
2 B N F more. Memory: ``BLOCK x _ENTITIES`` slopes of examples, and as many of the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kgfast.influence.examples import Queries
from kgfast.influence.query_side import Asker, QuerySide
from kgfast.kernels.backend import Passes
from kgfast.kernels.losses import TORCH_PASSES
from kgfast.kernels.operands import Operands, Prepared
from kgfast.kernels.scores import get_score
from kgfast.losses.formulas import smoothed_labels
from kgfast.losses.sampled import with_gamma
from kgfast.models.base import candidates_at, queries_at
from kgfast.ops import run
from kgfast.ops.checks import check_ids
from kgfast.ops.differentiable import chosen_backend
from kgfast.ops.dispatch import get_backend
from kgfast.training.config.sections import LossConfig

BLOCK = 2048  # whose slopes are made together
_ENTITIES = 512  # of a chunk: its slopes, 4 MiB, stay near the cores
_ASKED = 256  # queries that are made together: 10 MB of ConvE's features


@dataclass
class _Slopes:
    """The slopes of some examples, a chunk of entities at a time."""

    passes: Passes
    operands: Operands
    queries: Queries
    rows: Tensor  # of the positives, by rising entity
    ids: Tensor
    labels: tuple[float, float]  # positives have the sum, all others the second
    logsumexp: Tensor | None  # of softmax

    def of(self, chunk: slice, scratch: Tensor) -> Tensor:
        """``[B, n]``, in the scratch."""
        count = chunk.stop - chunk.start
        slopes = scratch[: self.operands.num_queries * count].view(-1, count)
        rows, bias = self.operands.queries, self.operands.bias
        torch.mm(rows, self.operands.table[chunk].to(rows.dtype).T, out=slopes)
        if bias is not None:
            slopes += bias[chunk] if len(bias) > 1 else bias
        label, rest = self.labels
        if self.logsumexp is None:
            scale = slopes.new_full((len(slopes),), 1 / self.operands.candidates.num_rows)
            self.passes.bce_slopes(slopes, rest, scale)
            label /= self.operands.candidates.num_rows
        else:
            # exp(x - logsumexp) in two factors: a difference of large numbers is exact in few bits.
            near = self.logsumexp.to(slopes.dtype)
            scale = (near.double() - self.logsumexp).exp_().to(slopes.dtype)
            share = slopes.new_full((len(slopes),), rest)
            self.passes.softmax_slopes(slopes, near, scale, share)
        first, last = torch.searchsorted(
            self.ids, self.ids.new_tensor([chunk.start, chunk.stop])
        ).tolist()
        places = self.rows[first:last], self.ids[first:last] - chunk.start
        slopes[places] -= label
        return slopes


@dataclass
class _Side:
    """Examples and what follows from their slopes.

    Attributes
    ----------
    slopes : _Slopes
    rows : Tensor
        ``[B, F]``: the queries.
    """

    slopes: _Slopes
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)


class DenseInfluence:
    """Inner products of gradients at one state of a model.

    Parameters
    ----------
    model : Model
        In eval mode.
    loss : LossConfig
        ``bce`` or ``cross_entropy``.
    parameters : {"entity", "all"}

    Raises
    ------
    ValueError, TypeError
        If the model's score is no dot product, its candidates have factors, or its gradients are
        not served.
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

    def products(self, examples: Queries, others: Queries) -> Tensor:
        """Those of examples with all others, ``[M, B]`` for M others."""
        parts = [self._products(part, others) for part in _parts(examples)]
        return torch.cat(parts, 1)

    def squares(self, examples: Queries) -> Tensor:
        """Those of each example with itself, ``[B]``."""
        return torch.cat([self._squares(part) for part in _parts(examples)])

    def _products(self, examples: Queries, others: Queries) -> Tensor:
        side = self._side(examples)
        blocks = [self._block(side, block) for block in _parts(others)]
        return torch.cat(blocks)

    def _block(self, side: _Side, others: Queries) -> Tensor:
        other = self._side(others)
        found = self._swept(side, other)
        total = found.dots * (other.rows @ side.rows.T + found.with_bias)
        if found.own is None or found.others is None:
            return total
        own, theirs = found.own, found.others
        total += found.at_others * (theirs.of_anchors @ side.rows.T)
        total += found.at_own * (other.rows @ own.of_anchors.T)
        same = theirs.anchors[:, None] == own.anchors
        total += torch.where(same, theirs.of_anchors @ own.of_anchors.T, 0.0)
        return total + theirs.products(own)

    def _swept(self, side: _Side, other: _Side) -> "_Swept":
        """What is summed over entities, and the slopes at the anchors."""
        size, rows, asker = len(side), side.rows, self._asker
        dots = rows.new_zeros(len(other), size)
        at_others, at_own = dots.new_zeros(dots.shape), dots.new_zeros(dots.shape)
        of_queries, of_others = torch.zeros_like(rows), torch.zeros_like(other.rows)
        operands = side.slopes.operands
        whose = (side.slopes.queries.anchors, of_queries), (other.slopes.queries.anchors, of_others)
        for chunk, scratch in self._chunks(size + len(other), rows):
            own = side.slopes.of(chunk, scratch)
            theirs = other.slopes.of(chunk, scratch[own.numel() :])
            dots.addmm_(theirs, own.T)
            if asker is None:
                continue
            table = operands.table[chunk].to(rows.dtype)
            for slopes, (_, total) in zip((own, theirs), whose, strict=True):
                total.addmm_(slopes, table)
            _pick(at_own, theirs, whose[0][0], chunk)
            _pick(at_others.T, own, whose[1][0], chunk)
        with_bias = 0.0 if operands.bias is None or len(operands.bias) == 1 else 1.0
        if asker is None:
            return _Swept(dots, with_bias)
        return _Swept(
            dots,
            with_bias,
            asker.gradients(side.slopes.queries, of_queries),
            asker.gradients(other.slopes.queries, of_others),
            at_own,
            at_others,
        )

    def _squares(self, examples: Queries) -> Tensor:
        side = self._side(examples)
        rows, operands = side.rows, side.slopes.operands
        lengths, at_own, of_queries = rows.new_zeros(len(rows)), rows.new_zeros(len(rows)), None
        if self._asker is not None:
            of_queries = torch.zeros_like(rows)
        for chunk, scratch in self._chunks(len(rows), rows):
            slopes = side.slopes.of(chunk, scratch)
            lengths += torch.linalg.vecdot(slopes, slopes)
            if of_queries is not None:
                of_queries.addmm_(slopes, operands.table[chunk].to(rows.dtype))
                inside = (examples.anchors >= chunk.start) & (examples.anchors < chunk.stop)
                which = inside.nonzero()[:, 0]
                at_own[which] = slopes[which, examples.anchors[which] - chunk.start]
        with_bias = 0.0 if operands.bias is None or len(operands.bias) == 1 else 1.0
        total = lengths * (rows.square().sum(1) + with_bias)
        if self._asker is None or of_queries is None:
            return total
        own = self._asker.gradients(examples, of_queries)
        total += 2 * at_own * torch.linalg.vecdot(rows, own.of_anchors)
        return total + own.of_anchors.square().sum(1) + own.squares()

    def _side(self, queries: Queries) -> _Side:
        model, loss = self._model, self._loss
        candidates = candidates_at(model, queries.side, None)
        if candidates.factor is not None:
            raise ValueError(f"{type(model).__name__}: candidates with factors are not served")
        asked = zip(queries.anchors.split(_ASKED), queries.relations.split(_ASKED), strict=True)
        rows = torch.cat([queries_at(model, *part, queries.side, None) for part in asked])
        candidates = with_gamma(candidates, model, rows.dtype)
        operands = Operands(
            rows, Prepared(candidates.table, get_score(model.score), candidates.bias)
        )
        logsumexp = None
        if loss.name == "cross_entropy":
            assert queries.targets is not None
            logsumexp = run.cross_entropy(operands, queries.targets, 0.0).logsumexp
            label, rest = 1 - loss.label_smoothing, loss.label_smoothing / self._num_entities
        else:
            label, rest = smoothed_labels(
                loss.label_smoothing, loss.smoothing_style, self._num_entities
            )
        indptr, ids = queries.positives()
        check_ids("targets", ids, self._num_entities)
        of_rows = torch.repeat_interleave(indptr.diff())
        order = ids.argsort(stable=True)
        # A backend that fuses its losses has no passes of its own.
        passes = getattr(get_backend(chosen_backend(rows)), "passes", TORCH_PASSES)
        slopes = _Slopes(
            passes, operands, queries, of_rows[order], ids[order], (label, rest), logsumexp
        )
        return _Side(slopes, rows)

    def _chunks(self, count: int, like: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Ranges of entities, with room for the slopes of so many examples."""
        scratch = like.new_empty(count * min(_ENTITIES, self._num_entities))
        for first in range(0, self._num_entities, _ENTITIES):
            yield slice(first, min(first + _ENTITIES, self._num_entities)), scratch


@dataclass
class _Swept:
    """Sums over entities of examples (own) and others; with all parameters the rest too."""

    dots: Tensor  # [M, B]
    with_bias: float
    own: QuerySide | None = None
    others: QuerySide | None = None
    at_own: Tensor | float = 0.0  # slopes of others at the anchors of examples, [M, B]
    at_others: Tensor | float = 0.0  # slopes of examples at the anchors of others, [M, B]


def _pick(into: Tensor, slopes: Tensor, anchors: Tensor, chunk: slice) -> None:
    """Slopes ``[B, n]`` of a chunk at the anchors that are in it, as columns ``[B, A]``."""
    which = ((anchors >= chunk.start) & (anchors < chunk.stop)).nonzero()[:, 0]
    into[:, which] = slopes[:, anchors[which] - chunk.start]


def _parts(queries: Queries) -> Iterator[Queries]:
    """Examples a few at a time; one empty part of none."""
    for first in range(0, max(1, len(queries)), BLOCK):
        yield queries.part(slice(first, first + BLOCK))
