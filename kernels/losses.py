"""Losses over all candidates that never store all scores, for backends that do not fuse.

Row losses of scores ``x`` (bias included), with positives ``P``, target ``t`` and smoothing eps:

    bce             sum_j softplus(x_j) - c sum_j x_j - a sum_{j in P} x_j
    cross entropy   logsumexp(x) - (1 - eps) x_t - (eps / N) sum_j x_j

Elementwise work and sums over a tile (torch's sum is a tree) are in the dtype of the scratch. Sums
of tiles are in float64, in order. Two runs are bit-equal, for any number of threads.

Cost model, per score: one exponential and one logarithm forward, one exponential backward, and
three to five passes over one scratch. A backward computes scores again, unless a loss and its
gradients are made together. Memory: the scratch, the needed gradients, O(B + nnz).
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .backend import Into
from .labels import Bce, CrossEntropy, LossChecks, LossGradients, LossNeed, LossRows, LossTotal
from .operands import Need, Operands

# Queries per block when gradients are made ahead: reading and writing the gradients of a table, 8
# bytes per number, takes as long as a third of this many scores.
_LEAST_QUERIES = 128
# A single row below 2**15 numbers is summed by one thread, so the order does not depend on the
# number of threads.
_WIDEST_TILE = 1 << 14
_NOTHING = LossNeed(queries=False, table=False, bias=False)


class LossPlan(NamedTuple):
    """Sizes, in scores, in which losses over all candidates are cut."""

    scratch: int  # most scores of a tile
    dtype: torch.dtype  # dtype of the scratch, and of sums of gradients of queries
    queries: int | None = None  # queries that are swept together; None for all
    kept: int = 0  # most scores that may be stored from a loss to its gradients


class Losses:
    """Losses of a backend that scores tiles of candidates; others override all methods.

    Without ``checks``, and in gradients, nothing is checked: wrong labels make results void, but
    nothing is read out of bounds.
    """

    def __init__(self, backend: Any, plan: LossPlan) -> None:
        self._backend, self.plan = backend, plan

    def value(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        checks: LossChecks | None = None,
        *,
        keep: bool = False,
    ) -> LossRows:
        """Return row losses like :func:`kgfast.ops.bce` or ``cross_entropy``.

        With ``keep``, gradients will follow, so a backend may store a few scores.
        """
        loss = _safe_labels(operands, loss, checks)
        if isinstance(loss, Bce):
            ones = operands.queries.new_ones(operands.num_queries)
            rows, _ = self._bce_tiles(operands, loss, ones, _NOTHING)
        else:
            pairs = operands.num_queries * operands.candidates.num_rows
            keep = keep and pairs <= self.plan.kept
            kept = operands.queries.new_empty(pairs, dtype=self.plan.dtype) if keep else None
            rows, _ = self._softmax_tiles(self._sweep(operands, kept=kept), loss)
            rows = rows._replace(scores=kept)
        if checks is not None:
            checks.scores(rows.linear)
        return rows

    def gradients(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        weights: Tensor,
        need: LossNeed,
        rows: LossRows | None = None,
    ) -> LossGradients:
        """Return the gradients of the sum of row losses times ``weights [B]``.

        Cross entropy needs the result of :meth:`value`; its scores are overwritten.
        """
        loss = _safe_labels(operands, loss, None)
        if isinstance(loss, Bce):
            return self._bce_tiles(operands, loss, weights.contiguous(), need)[1]
        assert rows is not None
        assert rows.logsumexp is not None
        sweep, grad = self._sweep(operands, need, kept=rows.scores), weights.double()
        # exp(x - logsumexp) in two factors: a difference of large numbers is exact in few bits.
        near = rows.logsumexp.to(sweep.dtype)
        scale = grad * (near.double() - rows.logsumexp).exp_()
        share = grad * (loss.smoothing / max(1, operands.candidates.num_rows))
        factors = near, *(t.to(sweep.dtype) for t in (scale, share, (1 - loss.smoothing) * grad))
        for tile in sweep.tiles(loss, is_scored=rows.scores is not None):
            near, scale, every, hit = (factor[tile.queries] for factor in factors)
            self._backend.passes.softmax_slopes(tile.scores, near, scale, every)
            tile.scores[tile.positives] -= hit[tile.positives[0]]
            sweep.backward(tile)
        return sweep.gradients()

    def value_and_gradients(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        divisor: float,
        need: LossNeed,
        checks: LossChecks | None = None,
    ) -> LossTotal:
        """Return the sum of row losses, divided, and the gradients."""
        loss = _safe_labels(operands, loss, checks)
        weights = operands.queries.new_full((operands.num_queries,), 1 / divisor)
        gradients = LossGradients(None, None, None)
        if isinstance(loss, Bce):
            rows, gradients = self._bce_tiles(operands, loss, weights, need)
        elif any(need) and (step := self._queries_at_once(operands)):
            rows, gradients = self._softmax_tiles(self._sweep(operands, need, step), loss, weights)
        else:
            rows = self.value(operands, loss, keep=any(need))
            if any(need):
                gradients = self.gradients(operands, loss, weights, need, rows)
        if checks is not None:
            checks.scores(rows.linear)
        return LossTotal(rows.rows.sum() / divisor, rows.linear, gradients)

    def scale(self, gradients: Sequence[Tensor], factor: Tensor) -> None:
        """Multiply up to three contiguous gradients by a factor, in place.

        Nothing is written for a factor of 1 that is known without waiting for a device.
        """
        if factor.device.type != "cpu" or factor.item() != 1:
            for gradient in gradients:
                gradient.mul_(factor)

    def _bce_tiles(
        self, operands: Operands, loss: Bce, weights: Tensor, need: LossNeed
    ) -> tuple[LossRows, LossGradients]:
        """Sweep scores once for row losses and gradients.

        Scores of positives with labels above 1/2 are negated first: ``softplus(x) - x`` loses the
        digits that ``softplus(-x)`` has. The loss still lacks ``rest`` times the score of a
        positive.
        """
        sign = -1.0 if loss.a + loss.c > 0.5 else 1.0
        rest = 1.0 - loss.a - 2.0 * loss.c if sign < 0 else -loss.a
        sweep = self._sweep(operands, need)
        rows, linear = _row_sums(operands, 2)
        for tile in sweep.tiles(loss):
            scores, places, queries = tile.scores, tile.positives, tile.queries
            picked = scores[places]
            scores[places] = sign * picked
            scale = weights[queries].to(scores.dtype)
            sums = self._backend.passes.bce(scores, loss.c, scale)
            of_positives = torch.zeros_like(sums[0])
            # bincount and index_add_ have no fixed order on a GPU
            of_positives.index_put_(places[:1], picked.double(), accumulate=True)
            rows[queries] += sums[0] + rest * of_positives
            linear[queries] += sums[1] + (1.0 - sign) * of_positives
            if any(need):
                scores[places] = sign * scores[places] + rest * scale[places[0]]
                sweep.backward(tile)
        return LossRows(rows.to(operands.queries.dtype), linear), sweep.gradients()

    def _softmax_tiles(
        self, sweep: "_TileSweep", loss: CrossEntropy, weights: Tensor | None = None
    ) -> tuple[LossRows, LossGradients]:
        """Compute row losses, and with weights also gradients, from tiles of whole rows."""
        operands = sweep.operands
        mass, linear, picked = _row_sums(operands, 3)
        peak, share = mass - torch.inf, loss.smoothing / max(1, operands.candidates.num_rows)
        for tile in sweep.tiles(loss):
            scores, queries, places = tile.scores, tile.queries, tile.positives
            picked[queries][places[0]] = scores[places].double()
            sums = peak[queries], mass[queries], linear[queries]
            if weights is None:
                self._backend.passes.softmax_sums(scores, sums)
            else:
                scale = weights[queries].to(scores.dtype)
                self._backend.passes.softmax_both(scores, sums, scale, scale * share)
                scores[places] -= (1 - loss.smoothing) * scale[places[0]]
                sweep.backward(tile)
        logsumexp = peak + mass.log()
        rows = logsumexp - (1 - loss.smoothing) * picked
        if share:  # else an infinite score would make a NaN
            rows -= linear * share
        return LossRows(rows.to(operands.queries.dtype), linear, logsumexp), sweep.gradients()

    def _sweep(self, operands: Operands, *options: Any, **more: Any) -> "_TileSweep":
        return _TileSweep(self._backend, self.plan, operands, *options, **more)

    def _queries_at_once(self, operands: Operands) -> int:
        """Count the queries per block when gradients are made ahead; 0 disables that."""
        count, most = operands.num_queries, self.plan.kept // max(1, operands.candidates.num_rows)
        adds_in_place = operands.table.dtype == torch.float32  # a block's gradients of the table
        if not (count and adds_in_place) or most < min(count, _LEAST_QUERIES):
            return 0
        blocks = -(-count // most)
        return -(-count // blocks)


class _Tile(NamedTuple):
    """Scores of some queries and candidates, bias included, and the places of positives."""

    queries: slice
    candidates: slice
    scores: Tensor  # [b, n], for overwriting
    positives: tuple[Tensor, Tensor]  # rows and columns of the scores


class _TileSweep:
    """Loop over tiles of scores in a bounded scratch; it adds up gradients.

    ``whole_rows`` is the number of queries in a tile of whole rows; ``kept`` is memory for all
    scores. Gradients of queries have the plan's dtype.
    """

    def __init__(
        self,
        backend: Any,
        plan: LossPlan,
        operands: Operands,
        need: LossNeed = _NOTHING,
        whole_rows: int = 0,
        kept: Tensor | None = None,
    ) -> None:
        queries, table, count = operands.queries, operands.table, max(1, operands.num_queries)
        self._backend, self.operands, self.dtype = backend, operands, plan.dtype
        self._step = whole_rows or count
        self._width = max(1, len(table))
        if kept is None and not whole_rows:
            if plan.queries and table.dtype == torch.float32:  # adds blocks of gradients in place
                self._step = plan.queries
            self._width = min(_WIDEST_TILE, max(1, plan.scratch // min(count, self._step)))
            self._width = self._width // 64 * 64 or self._width
        size = min(self._step, count) * min(self._width, len(table))
        self._scratch = queries.new_empty(size, dtype=plan.dtype) if kept is None else kept
        self._queries = queries.new_zeros(queries.shape, dtype=plan.dtype) if need.queries else None
        self._table = table.new_empty(table.shape) if need.table else None
        if self._table is not None and not operands.num_queries:
            self._table.zero_()  # else tiles fill the whole table
        self._bias = queries.new_zeros(len(table)) if need.bias else None

    def tiles(self, loss: Bce | CrossEntropy, *, is_scored: bool = False) -> Iterator[_Tile]:
        """Score tile by tile; the scratch may have all scores already."""
        count, operands = self.operands.num_queries, self.operands
        for first in range(0, count, self._step):
            queries = slice(first, min(first + self._step, count))
            block, num_rows = operands.of_queries(queries), len(operands.table)
            edges = [*range(0, num_rows, self._width), num_rows]
            rows, ids = loss.of_queries(queries).positives()
            places = torch.searchsorted(ids, ids.new_tensor(edges)).tolist()
            for (start, stop), (low, high) in zip(pairwise(edges), pairwise(places), strict=True):
                candidates, height = slice(start, stop), queries.stop - queries.start
                scores = self._scratch[: height * (stop - start)].view(height, -1)
                if not is_scored:
                    self._backend.scores(block.of_rows(candidates), out=scores)
                yield _Tile(queries, candidates, scores, (rows[low:high], ids[low:high] - start))

    def backward(self, tile: _Tile) -> None:
        """Carry the gradient of a tile's scores to the needed gradients."""
        if self._bias is not None:
            self._bias[tile.candidates] += tile.scores.sum(0)
        need = Need(self._queries is not None, self._table is not None)
        if any(need):
            into = Into(
                None if self._queries is None else self._queries[tile.queries],
                None if self._table is None else self._table[tile.candidates],
                adds_to_table=tile.queries.start > 0,
            )
            operands = self.operands.of_queries(tile.queries).of_rows(tile.candidates)
            self._backend.backward(operands, tile.scores, need=need, into=into)

    def gradients(self) -> LossGradients:
        """Return the gradients in the dtypes of the operands."""
        of_queries = self._queries
        if of_queries is not None:
            of_queries = of_queries.to(self.operands.queries.dtype)
        return LossGradients(of_queries, self._table, self._bias)


def _safe_labels(
    operands: Operands, loss: Bce | CrossEntropy, checks: LossChecks | None
) -> Bce | CrossEntropy:
    """Check labels or, without checks, make labels safe to index with."""
    if checks is None:
        return loss.inside(operands.candidates.num_rows)
    checks.labels()
    return loss


def _row_sums(operands: Operands, count: int) -> tuple[Tensor, ...]:
    """Return float64 zeros for each query."""
    shape = count, operands.num_queries
    return torch.zeros(shape, dtype=torch.float64, device=operands.table.device).unbind()
