"""Losses over all candidates that never hold all scores, for backends that do not fuse them.

What happens to the scores of a chunk (sweeps.py) is here. Row losses of scores ``x`` (bias
included), ``P`` the row's positives, ``t`` its target, eps the smoothing:

    bce             sum_j softplus(x_j) - c sum_j x_j - a sum_{j in P} x_j
    cross entropy   logsumexp(x) - (1 - eps) x_t - (eps / N) sum_j x_j

Elementwise work and sums over a chunk (torch's sum is a tree) are in the dtype of the scratch, sums
of chunks in float64 in their order: two runs are bit-equal, for any number of threads. Positives
are sorted by candidate once, so that a chunk finds its own in a slice.

Cost model, per score: one exponential and one logarithm forward, one exponential backward, and
three to five passes over one scratch. A backward scores again, but where a loss and its gradients
are asked for together. Memory: the scratch, O(B + nnz).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .backend import ChunkedBackend
from .labels import (
    Ahead,
    BceRows,
    CrossEntropyBackward,
    CrossEntropyRows,
    Labels,
    LossGradients,
    LossNeed,
)
from .operands import Operands
from .positives import Positives
from .sweeps import GradientSums, Sweep, result_dtype, sweeps


def bce(backend: ChunkedBackend, operands: Operands, labels: Labels) -> BceRows:
    """Binary cross entropy; the contract of :func:`kgfast.ops.bce`."""
    total, linear = _row_sums(operands), _row_sums(operands)
    for sweep in sweeps(backend, operands):
        _bce_block(sweep, labels.of_queries(sweep.rows), None, (total, linear))
    return BceRows(total.to(result_dtype(operands)), linear)


def bce_gradients(
    backend: ChunkedBackend, operands: Operands, labels: Labels, grad_rows: Tensor, need: LossNeed
) -> LossGradients:
    """The gradients of :func:`bce`, given that of the rows ``[B]``."""
    sums = GradientSums(backend, operands, need)
    for sweep in sweeps(backend, operands, sums):
        _bce_block(sweep, labels.of_queries(sweep.rows), grad_rows[sweep.rows], None)
    return sums.finished()


def bce_with_gradients(
    backend: ChunkedBackend, operands: Operands, labels: Labels, grad_rows: Tensor, need: LossNeed
) -> tuple[BceRows, LossGradients]:
    """:func:`bce` and :func:`bce_gradients`, of scores that are swept once."""
    total, linear = _row_sums(operands), _row_sums(operands)
    sums = GradientSums(backend, operands, need)
    for sweep in sweeps(backend, operands, sums):
        labels_here = labels.of_queries(sweep.rows)
        _bce_block(sweep, labels_here, grad_rows[sweep.rows], (total, linear))
    return BceRows(total.to(result_dtype(operands)), linear), sums.finished()


def _bce_block(
    sweep: "Sweep", labels: Labels, grad_rows: Tensor | None, totals: tuple[Tensor, Tensor] | None
) -> None:
    """One block of queries: fill its rows of ``totals``, carry its gradients back, or both."""
    passes = sweep.backend.passes
    width = sweep.operands.candidates.num_rows
    positives = Positives.of_labels(labels, width, by_candidate=True)
    total, linear = _row_sums(sweep.operands), _row_sums(sweep.operands)
    picked = total.new_empty(len(positives.queries))
    for chunk, part in zip(sweep.chunks, positives.in_chunks(sweep.chunks), strict=True):
        scores = sweep.scores(chunk)
        places = positives.queries[part], positives.ids[part] - chunk.start
        if totals is not None:
            picked[part] = scores[places].double()
        if grad_rows is None:
            sums = passes.bce_sums(scores, labels.c)
        else:
            scale = grad_rows.to(scores.dtype)
            if totals is None:
                passes.bce_slopes(scores, labels.c, scale)
            else:
                sums = passes.bce_both(scores, labels.c, scale)
            scores[places] -= labels.a * scale[places[0]]
            sweep.backward(scores, chunk)
        if totals is not None:
            total += sums[0]
            linear += sums[1]
    if totals is not None:
        totals[0][sweep.rows] = total - labels.a * positives.sum_by_query(picked)
        totals[1][sweep.rows] = linear


def cross_entropy(
    backend: ChunkedBackend,
    operands: Operands,
    targets: Tensor,
    label_smoothing: float,
    kept: Tensor | None = None,
) -> CrossEntropyRows:
    """Softmax cross entropy; the contract of :func:`kgfast.ops.cross_entropy`.

    ``kept``: room for the scores of all pairs, which the gradients can be made of.
    """
    rows, linear, logsumexp = (_row_sums(operands) for _ in range(3))
    for sweep in sweeps(backend, operands, kept=kept):
        positives = Positives.of_targets(targets[sweep.rows], by_candidate=True)
        part = _cross_entropy_block(sweep, positives, label_smoothing)
        for total, values in zip((rows, linear, logsumexp), part, strict=True):
            total[sweep.rows] = values
    return CrossEntropyRows(rows.to(result_dtype(operands)), linear, logsumexp, kept)


def cross_entropy_with_gradients(
    backend: ChunkedBackend,
    operands: Operands,
    targets: Tensor,
    label_smoothing: float,
    ahead: Ahead,
    step: int,
) -> CrossEntropyRows:
    """:func:`cross_entropy` and the gradients of its sum, of scores that are swept once.

    ``step``: queries whose scores are held together.
    """
    rows, linear, logsumexp = (_row_sums(operands) for _ in range(3))
    sums, plan = GradientSums(backend, operands, ahead.need), backend.loss_plan(operands)
    pairs = step * operands.candidates.num_rows
    room = operands.queries.new_empty(pairs, dtype=plan.dtype)
    grad = torch.ones_like(rows, dtype=result_dtype(operands)) / ahead.divisor
    for first in range(0, operands.num_queries, step):
        block = slice(first, min(first + step, operands.num_queries))
        sweep = Sweep(backend, operands.of_queries(block), block, plan, sums)
        sweep.keep_in(room)
        part = _cross_entropy_whole(sweep, targets[block], label_smoothing, grad[block])
        for total, values in zip((rows, linear, logsumexp), part, strict=True):
            total[block] = values
    made = rows.to(result_dtype(operands)), linear, logsumexp
    return CrossEntropyRows(*made, gradients=sums.finished())


def _cross_entropy_block(
    sweep: "Sweep", positives: "Positives", label_smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Row losses, sums of scores and logsumexp of one block of queries, float64."""
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
    sweep: "Sweep", targets: Tensor, label_smoothing: float, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`_cross_entropy_block` of all candidates at once, its gradients carried back."""
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
    sweep: "Sweep", sums: tuple[Tensor, ...], picked: Tensor, label_smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of a block's peaks, masses and sums of scores, and the scores of its targets."""
    peak, mass, linear = sums
    logsumexp = peak + mass.log()
    share = label_smoothing / max(1, sweep.operands.candidates.num_rows)
    rows = softmax_rows(logsumexp, (1 - label_smoothing) * picked, linear, share)
    return rows, linear, logsumexp


def softmax_rows(logsumexp: Tensor, picked: Tensor, linear: Tensor, share: float) -> Tensor:
    """Row losses, less what the targets take off and the smoothing's share of every score."""
    rows = logsumexp - picked
    return rows - linear * share if share else rows  # else a score of infinity would make a NaN


def cross_entropy_gradients(
    backend: ChunkedBackend, operands: Operands, made_of: CrossEntropyBackward, need: LossNeed
) -> LossGradients:
    """The gradients of :func:`cross_entropy`."""
    sums = GradientSums(backend, operands, need)
    smoothing = made_of.label_smoothing
    kept = made_of.scores
    for sweep in sweeps(backend, operands, sums, kept):
        logsumexp, grad = made_of.logsumexp[sweep.rows], made_of.grad_rows[sweep.rows]
        positives = Positives.of_targets(made_of.targets[sweep.rows], by_candidate=True)
        share = smoothing / max(1, operands.candidates.num_rows)
        factors = SoftmaxFactors.of(logsumexp, grad, smoothing, share, sweep.dtype)
        for chunk, part in zip(sweep.chunks, positives.in_chunks(sweep.chunks), strict=True):
            slopes = sweep.scores(chunk) if kept is None else sweep.room(chunk)
            sweep.backend.passes.softmax_slopes(slopes, *factors[:3])
            rows = positives.queries[part]
            slopes[rows, positives.ids[part] - chunk.start] -= factors.hit[rows]
            sweep.backward(slopes, chunk)
    return sums.finished()


class SoftmaxFactors(NamedTuple):
    """What slopes of cross entropy are made of, ``[B]`` each: ``scale exp(x - near) - share``.

    That of a target is ``hit`` less.
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
        """Of rows, in the dtype of their scores; ``share`` is each candidate's of the smoothing."""
        grad = grad_rows.double()
        # exp(x - logsumexp) in two factors: a difference of large numbers is exact in few bits.
        near = logsumexp.to(dtype)
        scale = grad * (near.double() - logsumexp.double()).exp_()
        parts = scale, grad * share, (1 - smoothing) * grad
        return cls(near, *(part.to(dtype) for part in parts))


def _row_sums(operands: Operands) -> Tensor:
    """A float64 zero for each query."""
    return torch.zeros(operands.num_queries, dtype=torch.float64, device=operands.table.device)
