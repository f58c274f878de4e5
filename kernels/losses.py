"""Losses over all candidates that never store all scores, for backends that do not fuse.

Row losses of scores ``x`` (bias included), with positives ``P``, target ``t`` and smoothing eps:

    bce             sum_j softplus(x_j) - c sum_j x_j - a sum_{j in P} x_j
    cross entropy   logsumexp(x) - (1 - eps) x_t - (eps / N) sum_j x_j

Elementwise work and sums over a chunk (torch's sum is a tree) are in the dtype of the scratch. Sums
of chunks are in float64, in order. Two runs are bit-equal, for any number of threads. Positives are
sorted by candidate once, so that a chunk's positives are a slice.

Cost model, per score: one exponential and one logarithm forward, one exponential backward, and
three to five passes over one scratch. A backward computes scores again, unless a loss and its
gradients are made together. Memory: the scratch (sweeps.py), O(B + nnz).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .labels import Bce, CrossEntropy, LossChecks, LossGradients, LossNeed, LossRows, LossTotal
from .operands import Operands
from .positives import Positives
from .sweeps import GradientSums, Sweep, result_dtype, sweeps

# Queries per block when gradients are made ahead: reading and writing the gradients of a table, 8
# bytes per number, takes as long as a third of this many scores.
_LEAST_QUERIES = 128
_NOTHING = LossNeed(queries=False, table=False, bias=False)


class Losses:
    """Losses of a backend that scores chunks of candidates; others override all methods.

    Without ``checks``, and in gradients, nothing is checked: wrong labels make results void, but
    nothing is read out of bounds.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def value(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        checks: LossChecks | None = None,
        *,
        keep: bool = False,
    ) -> LossRows:
        """Return row losses, by the contract of :func:`kgfast.ops.bce` or ``cross_entropy``.

        With ``keep``, gradients will follow, so a backend may store a few scores.
        """
        loss = _safe_labels(operands, loss, checks)
        if isinstance(loss, Bce):
            made, _ = self._bce_results(operands, loss, None, _NOTHING)
        else:
            made = self._cross_entropy(operands, loss, keep=keep)
        if checks is not None:
            checks.scores(made.linear)
        return made

    def gradients(
        self,
        operands: Operands,
        loss: Bce | CrossEntropy,
        weights: Tensor,
        need: LossNeed,
        made: LossRows | None = None,
    ) -> LossGradients:
        """Return the gradients of the sum of row losses times ``weights [B]``.

        Cross entropy needs the result of :meth:`value`; its scores are overwritten.
        """
        loss = _safe_labels(operands, loss, None)
        if isinstance(loss, Bce):
            return self._bce_results(operands, loss, weights.contiguous(), need, has_rows=False)[1]
        assert made is not None
        return self._cross_entropy_gradients(operands, loss, weights, need, made)

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
            made, gradients = self._bce_results(
                operands, loss, weights if any(need) else None, need
            )
        elif any(need) and (step := self._queries_at_once(operands)):
            made, gradients = self._cross_entropy_ahead(operands, loss, weights, need, step)
        else:
            made = self._cross_entropy(operands, loss, keep=any(need))
            if any(need):
                gradients = self._cross_entropy_gradients(operands, loss, weights, need, made)
        if checks is not None:
            checks.scores(made.linear)
        return LossTotal(made.rows.sum() / divisor, made.linear, gradients)

    def scale(self, gradients: Sequence[Tensor], factor: Tensor) -> None:
        """Multiply up to three contiguous gradients by a factor, in place.

        Nothing is written for a factor of 1 that is known without waiting for a device.
        """
        if factor.device.type != "cpu" or factor.item() != 1:
            for gradient in gradients:
                gradient.mul_(factor)

    def _bce_results(
        self,
        operands: Operands,
        loss: Bce,
        weights: Tensor | None,
        need: LossNeed,
        *,
        has_rows: bool = True,
    ) -> tuple[LossRows, LossGradients]:
        """Sweep scores once for rows, gradients or both; without ``has_rows`` the rows are void."""
        total, linear = _row_sums(operands), _row_sums(operands)
        sums = GradientSums(self._backend, operands, need)
        totals = (total, linear) if has_rows else None
        for sweep in sweeps(self._backend, operands, sums):
            grad = None if weights is None else weights[sweep.rows]
            _bce_block(sweep, loss.of_queries(sweep.rows), grad, totals)
        return LossRows(total.to(result_dtype(operands)), linear), sums.finished()

    def _cross_entropy(self, operands: Operands, loss: CrossEntropy, *, keep: bool) -> LossRows:
        kept = self._room_for_all(operands) if keep else None
        rows, linear, logsumexp = (_row_sums(operands) for _ in range(3))
        for sweep in sweeps(self._backend, operands, kept=kept):
            positives = Positives.of_targets(loss.targets[sweep.rows], by_candidate=True)
            part = _cross_entropy_block(sweep, positives, loss.smoothing)
            for total, values in zip((rows, linear, logsumexp), part, strict=True):
                total[sweep.rows] = values
        return LossRows(rows.to(result_dtype(operands)), linear, logsumexp, kept)

    def _cross_entropy_ahead(
        self, operands: Operands, loss: CrossEntropy, weights: Tensor, need: LossNeed, step: int
    ) -> tuple[LossRows, LossGradients]:
        """Make rows, and the gradients of their weighted sum, from scores that are swept once.

        ``step`` is the number of queries with scores in memory at once.
        """
        rows, linear, logsumexp = (_row_sums(operands) for _ in range(3))
        sums = GradientSums(self._backend, operands, need)
        plan = self._backend.loss_plan(operands)
        pairs = step * operands.candidates.num_rows
        room = operands.queries.new_empty(pairs, dtype=plan.dtype)
        for first in range(0, operands.num_queries, step):
            block = slice(first, min(first + step, operands.num_queries))
            sweep = Sweep(self._backend, operands.of_queries(block), block, plan, sums)
            sweep.keep_in(room)
            part = _cross_entropy_whole(sweep, loss.targets[block], loss.smoothing, weights[block])
            for total, values in zip((rows, linear, logsumexp), part, strict=True):
                total[block] = values
        return LossRows(rows.to(result_dtype(operands)), linear, logsumexp), sums.finished()

    def _cross_entropy_gradients(
        self,
        operands: Operands,
        loss: CrossEntropy,
        weights: Tensor,
        need: LossNeed,
        made: LossRows,
    ) -> LossGradients:
        sums, kept = GradientSums(self._backend, operands, need), made.scores
        assert made.logsumexp is not None
        for sweep in sweeps(self._backend, operands, sums, kept):
            logsumexp, grad = made.logsumexp[sweep.rows], weights[sweep.rows]
            positives = Positives.of_targets(loss.targets[sweep.rows], by_candidate=True)
            share = loss.smoothing / max(1, operands.candidates.num_rows)
            factors = SoftmaxFactors.of(logsumexp, grad, loss.smoothing, share, sweep.dtype)
            for chunk, part in zip(sweep.chunks, positives.in_chunks(sweep.chunks), strict=True):
                slopes = sweep.scores(chunk) if kept is None else sweep.room(chunk)
                sweep.backend.passes.softmax_slopes(slopes, *factors[:3])
                rows = positives.queries[part]
                slopes[rows, positives.ids[part] - chunk.start] -= factors.hit[rows]
                sweep.backward(slopes, chunk)
        return sums.finished()

    def _room_for_all(self, operands: Operands) -> Tensor | None:
        """Make memory for all scores, if the backend's plan allows."""
        plan = self._backend.loss_plan(operands)
        pairs = operands.num_queries * operands.candidates.num_rows
        fits = pairs <= plan.kept
        return operands.queries.new_empty(pairs, dtype=plan.dtype) if fits else None

    def _queries_at_once(self, operands: Operands) -> int:
        """Count the queries per block when gradients are made ahead; 0 disables that."""
        plan, count = self._backend.loss_plan(operands), operands.num_queries
        # gradients of blocks are added up in the table's gradient
        if plan.num_queries is None or not count:
            return 0
        most: int = plan.kept // max(1, operands.candidates.num_rows)
        if most < min(count, _LEAST_QUERIES):
            return 0
        blocks = -(-count // most)
        return -(-count // blocks)


def _safe_labels(
    operands: Operands, loss: Bce | CrossEntropy, checks: LossChecks | None
) -> Bce | CrossEntropy:
    """Check labels or, without checks, make labels safe to index with."""
    if checks is None:
        return loss.inside(operands.candidates.num_rows)
    checks.labels()
    return loss


def _bce_block(
    sweep: Sweep, labels: Bce, grad_rows: Tensor | None, totals: tuple[Tensor, Tensor] | None
) -> None:
    """Fill a block's rows of ``totals``, carry the gradients of the block back, or both.

    Scores of positives with labels above 1/2 are negated first: ``softplus(x) - x`` loses the
    digits that ``softplus(-x)`` has. The loss still lacks ``rest`` times the score of a positive.
    """
    passes, is_negated = sweep.backend.passes, labels.a + labels.c > 0.5
    rest = 1.0 - labels.a - 2.0 * labels.c if is_negated else -labels.a
    width = sweep.operands.candidates.num_rows
    positives = Positives.of_labels(labels, width, by_candidate=True)
    total, linear = _row_sums(sweep.operands), _row_sums(sweep.operands)
    picked = total.new_empty(len(positives.queries))
    for chunk, part in zip(sweep.chunks, positives.in_chunks(sweep.chunks), strict=True):
        scores = sweep.scores(chunk)
        places = positives.queries[part], positives.ids[part] - chunk.start
        own = scores[places]
        if is_negated:
            scores[places] = -own
        if totals is not None:
            picked[part] = own.double()
        if grad_rows is None:
            sums = passes.bce_sums(scores, labels.c)
        else:
            scale = grad_rows.to(scores.dtype)
            if totals is None:
                passes.bce_slopes(scores, labels.c, scale)
            else:
                sums = passes.bce_both(scores, labels.c, scale)
            slopes = -scores[places] if is_negated else scores[places]
            scores[places] = slopes + rest * scale[places[0]]
            sweep.backward(scores, chunk)
        if totals is not None:
            total += sums[0]
            linear += sums[1]
    if totals is not None:
        own_sums = positives.sum_by_query(picked)
        totals[0][sweep.rows] = total + rest * own_sums
        totals[1][sweep.rows] = linear + 2.0 * own_sums if is_negated else linear


def _cross_entropy_block(
    sweep: Sweep, positives: Positives, label_smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return row losses, sums of scores and logsumexp of a block of queries, float64."""
    mass, linear = _row_sums(sweep.operands), _row_sums(sweep.operands)
    peak, picked = mass - torch.inf, mass.new_empty(len(positives.queries))
    for chunk, part in zip(sweep.chunks, positives.in_chunks(sweep.chunks), strict=True):
        scores = sweep.scores(chunk)
        picked[part] = scores[positives.queries[part], positives.ids[part] - chunk.start].double()
        sweep.backend.passes.softmax_sums(scores, peak, mass, linear)
    return _cross_entropy_rows(
        sweep, (peak, mass, linear), positives.sum_by_query(picked), label_smoothing
    )


def _cross_entropy_whole(
    sweep: Sweep, targets: Tensor, label_smoothing: float, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Do :func:`_cross_entropy_block` for one chunk, and carry the gradients back."""
    (chunk,) = sweep.chunks
    scores = sweep.scores(chunk)
    places = torch.arange(len(targets), dtype=torch.int64, device=targets.device), targets
    picked = scores[places].double()
    mass, linear = _row_sums(sweep.operands), _row_sums(sweep.operands)
    sums = mass - torch.inf, mass, linear
    grad = grad.to(scores.dtype)
    share = grad * (label_smoothing / sweep.operands.candidates.num_rows)
    sweep.backend.passes.softmax_both(scores, sums, grad, share)
    scores[places] -= (1 - label_smoothing) * grad
    sweep.backward(scores, chunk)
    return _cross_entropy_rows(sweep, sums, picked, label_smoothing)


def _cross_entropy_rows(
    sweep: Sweep, sums: tuple[Tensor, ...], picked: Tensor, label_smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    peak, mass, linear = sums
    logsumexp = peak + mass.log()
    share = label_smoothing / max(1, sweep.operands.candidates.num_rows)
    rows = softmax_rows(logsumexp, (1 - label_smoothing) * picked, linear, share)
    return rows, linear, logsumexp


def softmax_rows(logsumexp: Tensor, picked: Tensor, linear: Tensor, share: float) -> Tensor:
    """Return row losses: logsumexp minus the shares of the target and of all scores."""
    rows = logsumexp - picked
    return rows - linear * share if share else rows  # else an infinite score would make a NaN


class SoftmaxFactors(NamedTuple):
    """Factors ``[B]`` of slopes of cross entropy: ``scale exp(x - near) - share``.

    The slope of a target is smaller by ``hit``.
    """

    near: Tensor
    scale: Tensor
    share: Tensor
    hit: Tensor

    @classmethod
    def of(
        cls,
        logsumexp: Tensor,
        grad_rows: Tensor,
        smoothing: float,
        share: float,
        dtype: torch.dtype,
    ) -> "SoftmaxFactors":
        """Make the factors in a dtype; ``share`` is the smoothing of each candidate."""
        grad = grad_rows.double()
        # exp(x - logsumexp) in two factors: a difference of large numbers is exact in few bits.
        near = logsumexp.to(dtype)
        scale = grad * (near.double() - logsumexp.double()).exp_()
        parts = scale, grad * share, (1 - smoothing) * grad
        return cls(near, *(part.to(dtype) for part in parts))


def _row_sums(operands: Operands) -> Tensor:
    """Return a float64 zero for each query."""
    return torch.zeros(operands.num_queries, dtype=torch.float64, device=operands.table.device)
