"""Losses over all candidates that never hold all scores: one loop, for backends without a better.

A backend scores a chunk of candidates into a bounded scratch and, in the backward, carries a
gradient of the scratch to queries and candidates; what happens in between is here. Row losses of
scores ``x`` (bias included), ``P`` the row's positives, ``t`` its target, eps the smoothing:

    bce             sum_j softplus(x_j) - c sum_j x_j - a sum_{j in P} x_j
    cross entropy   logsumexp(x) - (1 - eps) x_t - (eps / N) sum_j x_j

Elementwise work and sums over a chunk (torch's sum is a tree) are in the dtype of the scratch, sums
of chunks in float64 in their order: two runs are bit-equal, for any number of threads. Positives
are sorted by candidate once, so that a chunk finds its own in a slice.

Cost model, per score: one exponential and one logarithm forward, one exponential backward, and
three to five passes over one scratch. A backward scores again, but where a loss and its gradients
are asked for together. Memory: the scratch, O(B + nnz).
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .backend import ChunkedBackend, Into, Losses, LossPlan, Passes
from .checks import inside_of
from .labels import (
    Ahead,
    BceRows,
    BceTotal,
    CrossEntropyBackward,
    CrossEntropyRows,
    Labels,
    LossChecks,
    LossGradients,
    LossNeed,
)
from .operands import Need, Operands
from .spares import empty_like

# A single row below 2**15 numbers is summed by one thread, so in an order that does not depend on
# their number.
_WIDEST_CHUNK = 1 << 14

# Of queries whose gradients are made at once: what is read and written of those of a table, 8 bytes
# a number, takes as long as a third of this many scores.
_LEAST_QUERIES = 128

# torch's softplus is x itself from here on: the omitted log1p(exp(-x)) is below 2**-57 x.
_SOFTPLUS_IS_LINEAR = 40.0


def bce(backend: ChunkedBackend, operands: Operands, labels: Labels) -> BceRows:
    """Binary cross entropy; the contract of :func:`kgfast.ops.bce`."""
    total, linear = _row_sums(operands), _row_sums(operands)
    for sweep in _sweeps(backend, operands):
        _bce_block(sweep, labels.of_queries(sweep.rows), None, (total, linear))
    return BceRows(total.to(_result_dtype(operands)), linear)


def bce_gradients(
    backend: ChunkedBackend, operands: Operands, labels: Labels, grad_rows: Tensor, need: LossNeed
) -> LossGradients:
    """The gradients of :func:`bce`, given that of the rows ``[B]``."""
    sums = GradientSums(backend, operands, need)
    for sweep in _sweeps(backend, operands, sums):
        _bce_block(sweep, labels.of_queries(sweep.rows), grad_rows[sweep.rows], None)
    return sums.finished()


def bce_with_gradients(
    backend: ChunkedBackend, operands: Operands, labels: Labels, grad_rows: Tensor, need: LossNeed
) -> tuple[BceRows, LossGradients]:
    """:func:`bce` and :func:`bce_gradients`, of scores that are swept once."""
    total, linear = _row_sums(operands), _row_sums(operands)
    sums = GradientSums(backend, operands, need)
    for sweep in _sweeps(backend, operands, sums):
        labels_here = labels.of_queries(sweep.rows)
        _bce_block(sweep, labels_here, grad_rows[sweep.rows], (total, linear))
    return BceRows(total.to(_result_dtype(operands)), linear), sums.finished()


def _bce_block(
    sweep: "_Sweep", labels: Labels, grad_rows: Tensor | None, totals: tuple[Tensor, Tensor] | None
) -> None:
    """One block of queries: fill its rows of ``totals``, carry its gradients back, or both."""
    passes = sweep.backend.passes
    positives = _Positives.of_rows(labels.indptr, labels.indices, sweep.chunks)
    total, linear = _row_sums(sweep.operands), _row_sums(sweep.operands)
    picked = total.new_empty(len(positives.rows))
    for chunk, part in zip(sweep.chunks, positives.parts, strict=True):
        scores = sweep.scores(chunk)
        places = positives.rows[part], positives.ids[part] - chunk.start
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
        totals[0][sweep.rows] = total - labels.a * positives.sum_by_row(picked)
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
    for sweep in _sweeps(backend, operands, kept=kept):
        positives = _Positives.of_targets(targets[sweep.rows], sweep.chunks)
        part = _cross_entropy_block(sweep, positives, label_smoothing)
        for total, values in zip((rows, linear, logsumexp), part, strict=True):
            total[sweep.rows] = values
    return CrossEntropyRows(rows.to(_result_dtype(operands)), linear, logsumexp, kept)


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
    grad = torch.ones_like(rows, dtype=_result_dtype(operands)) / ahead.divisor
    for first in range(0, operands.num_queries, step):
        block = slice(first, min(first + step, operands.num_queries))
        sweep = _Sweep(backend, operands.of_queries(block), block, plan, sums)
        sweep.keep_in(room)
        part = _cross_entropy_whole(sweep, targets[block], label_smoothing, grad[block])
        for total, values in zip((rows, linear, logsumexp), part, strict=True):
            total[block] = values
    made = rows.to(_result_dtype(operands)), linear, logsumexp
    return CrossEntropyRows(*made, gradients=sums.finished())


def _cross_entropy_block(
    sweep: "_Sweep", positives: "_Positives", label_smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Row losses, sums of scores and logsumexp of one block of queries, float64."""
    mass, linear = _row_sums(sweep.operands), _row_sums(sweep.operands)
    peak, picked = mass - torch.inf, mass.new_empty(len(positives.rows))
    for chunk, part in zip(sweep.chunks, positives.parts, strict=True):
        scores = sweep.scores(chunk)
        picked[part] = scores[positives.rows[part], positives.ids[part] - chunk.start].double()
        sweep.backend.passes.softmax_sums(scores, peak, mass, linear)
    return _cross_entropy_rows(
        sweep, (peak, mass, linear), positives.sum_by_row(picked), label_smoothing
    )


def _cross_entropy_whole(
    sweep: "_Sweep", targets: Tensor, label_smoothing: float, grad: Tensor
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
    sweep: "_Sweep", sums: tuple[Tensor, ...], picked: Tensor, label_smoothing: float
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
    for sweep in _sweeps(backend, operands, sums, kept):
        logsumexp, grad = made_of.logsumexp[sweep.rows], made_of.grad_rows[sweep.rows]
        positives = _Positives.of_targets(made_of.targets[sweep.rows], sweep.chunks)
        share = smoothing / max(1, operands.candidates.num_rows)
        factors = SoftmaxFactors.of(logsumexp, grad, smoothing, share, sweep.dtype)
        for chunk, part in zip(sweep.chunks, positives.parts, strict=True):
            slopes = sweep.scores(chunk) if kept is None else sweep.room(chunk)
            sweep.backend.passes.softmax_slopes(slopes, *factors[:3])
            rows = positives.rows[part]
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


def _result_dtype(operands: Operands) -> torch.dtype:
    return torch.float64 if operands.queries.dtype == torch.float64 else torch.float32


class GradientSums:
    """Where the gradients of all blocks of queries and chunks of candidates are collected.

    Attributes
    ----------
    queries, table, bias : Tensor or None
        ``[B, F]`` of the plan's dtype and ``[N]``, zeros, and ``[N, G]`` of the table's dtype,
        which chunks fill.
    """

    def __init__(self, backend: ChunkedBackend, operands: Operands, need: LossNeed) -> None:
        self.operands, plan = operands, backend.loss_plan(operands)
        queries, table = operands.queries, operands.table
        of_bias = _result_dtype(operands)
        self.queries = queries.new_zeros(queries.shape, dtype=plan.dtype) if need.queries else None
        self.table = empty_like(table) if need.table else None
        if self.table is not None and not operands.num_queries:
            self.table.zero_()  # else chunks fill the whole
        self.bias = table.new_zeros(len(table), dtype=of_bias) if need.bias else None

    def into(self, rows: slice, chunk: slice) -> Into:
        """The part of a block of queries and a chunk of candidates."""
        return Into(
            None if self.queries is None else self.queries[rows],
            None if self.table is None else self.table[chunk],
            adds_to_table=rows.start > 0,
        )

    def finished(self) -> LossGradients:
        """The gradients, in the dtypes of what they are of."""
        of_queries = self.queries
        if of_queries is not None:
            of_queries = of_queries.to(self.operands.queries.dtype)
        return LossGradients(of_queries, self.table, self.bias)


def _sweeps(
    backend: ChunkedBackend,
    operands: Operands,
    sums: GradientSums | None = None,
    kept: Tensor | None = None,
) -> Iterator["_Sweep"]:
    """The queries in blocks that a backend sweeps together; ``kept`` has room for all scores."""
    plan = backend.loss_plan(operands)
    step = plan.num_queries or max(1, operands.num_queries)
    for first in range(0, operands.num_queries, step):
        rows = slice(first, min(first + step, operands.num_queries))
        sweep = _Sweep(backend, operands.of_queries(rows), rows, plan, sums)
        if kept is not None:
            width = operands.candidates.num_rows
            sweep.keep_in(kept[rows.start * width : rows.stop * width])
        yield sweep


def chunks(num_queries: int, num_candidates: int, scratch: int) -> list[slice]:
    """The candidates in ranges whose scores fit the scratch."""
    width = max(1, min(_WIDEST_CHUNK, scratch // max(1, num_queries)))
    width = width // 64 * 64 or width
    return [
        slice(first, min(first + width, num_candidates))
        for first in range(0, num_candidates, width)
    ]


class _Sweep:
    """A block of queries against all candidates, chunk by chunk, through one scratch."""

    def __init__(
        self,
        backend: ChunkedBackend,
        operands: Operands,
        rows: slice,
        plan: LossPlan,
        sums: GradientSums | None,
    ) -> None:
        self.backend, self.operands, self.rows, self._sums = backend, operands, rows, sums
        count = operands.num_queries
        self.chunks = chunks(count, operands.candidates.num_rows, plan.scratch)
        self.dtype = plan.dtype
        self._scratch: Tensor | None = None

    def keep_in(self, scores: Tensor) -> None:
        """Have ``scores``, flat, for a scratch: all candidates are one chunk."""
        self.chunks = [slice(0, self.operands.candidates.num_rows)]
        self._scratch = scores

    def room(self, chunk: slice) -> Tensor:
        """Where the scores of a chunk stand, ``[B, n]``."""
        rows, count = self.operands.num_queries, chunk.stop - chunk.start
        if self._scratch is None:  # that of the first chunk: none is wider
            self._scratch = self.operands.queries.new_empty(rows * count, dtype=self.dtype)
        return self._scratch[: rows * count].view(-1, count)

    def scores(self, chunk: slice) -> Tensor:
        """Scores with the candidates of a chunk, ``[B, n]``, bias included, for overwriting."""
        return self.backend.scores(self.operands.of_rows(chunk), out=self.room(chunk))

    def backward(self, slopes: Tensor, chunk: slice) -> None:
        """Carry the gradient of those scores to what is asked for."""
        sums = self._sums
        assert sums is not None
        if sums.bias is not None:
            sums.bias[chunk] += slopes.sum(0)
        need = Need(sums.queries is not None, sums.table is not None)
        if any(need):
            into = sums.into(self.rows, chunk)
            self.backend.backward(self.operands.of_rows(chunk), slopes, need=need, into=into)


class _Positives(NamedTuple):
    """Distinct positive pairs by rising candidate id, and the slice of them in each chunk."""

    rows: Tensor  # [P]
    ids: Tensor  # [P]
    parts: list[slice]
    num_rows: int

    @classmethod
    def of_rows(cls, indptr: Tensor, indices: Tensor, chunks: list[slice]) -> "_Positives":
        """From a CSR of ids per row, in any order; duplicates count once."""
        num_rows = len(indptr) - 1
        rows = torch.arange(num_rows, dtype=torch.int64, device=indptr.device)
        rows = rows.repeat_interleave(indptr.diff())
        pairs = (indices * num_rows + rows).unique() if num_rows else indices
        return cls._of(pairs % max(1, num_rows), pairs // max(1, num_rows), chunks, num_rows)

    @classmethod
    def of_targets(cls, targets: Tensor, chunks: list[slice]) -> "_Positives":
        """From one id per row."""
        ids, rows = targets.sort(stable=True)
        return cls._of(rows, ids, chunks, len(targets))

    @classmethod
    def _of(cls, rows: Tensor, ids: Tensor, chunks: list[slice], num_rows: int) -> "_Positives":
        edges = [chunk.start for chunk in chunks] + [chunk.stop for chunk in chunks[-1:]]
        places = torch.searchsorted(ids, ids.new_tensor(edges)).tolist()
        parts = [slice(a, b) for a, b in pairwise(places)]
        return cls(rows, ids, parts, num_rows)

    def sum_by_row(self, values: Tensor) -> Tensor:
        """Sums of ``values [P]`` over the pairs of each row, in the order of the ids, ``[B]``."""
        order = self.rows.argsort(stable=True)
        lengths = self.rows.bincount(minlength=self.num_rows)
        return torch.segment_reduce(values[order], "sum", lengths=lengths, initial=0.0, unsafe=True)


class _TorchPasses:
    """The passes as torch has them, for any dtype and device."""

    def bce_sums(self, scores: Tensor, label_c: float) -> tuple[Tensor, Tensor]:
        linear = scores.sum(1).double()
        functional.softplus(scores, 1, _SOFTPLUS_IS_LINEAR, out=scores)  # type: ignore[call-arg]
        softplus = scores.sum(1).double()
        return softplus - label_c * linear if label_c else softplus, linear

    def bce_slopes(self, scores: Tensor, label_c: float, scale: Tensor) -> None:
        scores.sigmoid_()
        if label_c:
            scores.sub_(label_c)
        scores.mul_(scale[:, None])

    def bce_both(self, scores: Tensor, label_c: float, scale: Tensor) -> tuple[Tensor, Tensor]:
        sums = self.bce_sums(scores.clone(), label_c)
        self.bce_slopes(scores, label_c, scale)
        return sums

    def softmax_sums(self, scores: Tensor, peak: Tensor, mass: Tensor, linear: Tensor) -> None:
        lowest = torch.finfo(scores.dtype).min  # of scores that are all -inf: a finite peak
        higher = torch.maximum(peak, scores.amax(1)).clamp(min=lowest)
        mass *= (peak - higher).exp_()
        scores.sub_(higher[:, None].to(scores.dtype))  # a peak is a score: no rounding of it
        linear += scores.sum(1) + scores.shape[1] * higher
        mass += scores.exp_().sum(1)
        peak.copy_(higher)

    def softmax_both(
        self, scores: Tensor, sums: tuple[Tensor, ...], scale: Tensor, share: Tensor
    ) -> None:
        peak, mass, linear = sums
        self.softmax_sums(scores, peak, mass, linear)  # leaves exponentials
        scores.mul_((scale / mass).to(scores.dtype)[:, None]).sub_(share[:, None])

    def softmax_slopes(self, scores: Tensor, near: Tensor, scale: Tensor, share: Tensor) -> None:
        scores.sub_(near[:, None]).exp_().mul_(scale[:, None]).sub_(share[:, None])


TORCH_PASSES: Passes = _TorchPasses()


class ChunkedLosses(Losses):
    """The loop as a backend has it, checked; see :class:`kgfast.kernels.backend.Losses`.

    What is computed, of what is safe to index with, is in methods of their own.
    """

    def __init__(self, backend: ChunkedBackend) -> None:
        self._backend = backend

    def bce(self, operands: Operands, labels: Labels, checks: LossChecks | None = None) -> BceRows:
        """:func:`bce`, checked."""
        labels = _safe_labels(operands, labels, checks)
        result = self._bce(operands, labels)
        if checks is not None:
            checks.scores(result.linear)
        return result

    def bce_gradients(
        self, operands: Operands, labels: Labels, grad_rows: Tensor, need: LossNeed
    ) -> LossGradients:
        """:func:`bce_gradients`."""
        labels = _safe_labels(operands, labels, None)
        return self._bce_gradients(operands, labels, grad_rows.contiguous(), need)

    def bce_total(
        self,
        operands: Operands,
        labels: Labels,
        divisor: float,
        need: LossNeed,
        checks: LossChecks | None = None,
    ) -> BceTotal:
        """:func:`bce_with_gradients` of rows of equal weight, checked."""
        labels = _safe_labels(operands, labels, checks)
        queries = operands.queries
        grad_rows = queries.new_full((len(queries),), 1 / divisor)
        rows, gradients = self._bce_with_gradients(operands, labels, grad_rows, need)
        if checks is not None:
            checks.scores(rows.linear)
        return BceTotal(rows.rows.sum() / divisor, rows.linear, gradients)

    def cross_entropy(
        self,
        operands: Operands,
        targets: Tensor,
        label_smoothing: float,
        checks: LossChecks | None = None,
        *,
        keep: bool = False,
        ahead: Ahead | None = None,
    ) -> CrossEntropyRows:
        """:func:`cross_entropy`, checked."""
        if checks is not None:
            checks.labels()
        else:
            targets = inside_of(targets, operands.candidates.num_rows)
        result = self._cross_entropy(operands, targets, label_smoothing, keep, ahead)
        if checks is not None:
            checks.scores(result.linear)
        return result

    def cross_entropy_gradients(
        self, operands: Operands, made_of: CrossEntropyBackward, need: LossNeed
    ) -> LossGradients:
        """:func:`cross_entropy_gradients`."""
        targets = inside_of(made_of.targets, operands.candidates.num_rows)
        return self._cross_entropy_gradients(operands, made_of._replace(targets=targets), need)

    def scale(self, gradients: Sequence[Tensor], factor: Tensor) -> None:
        """Looks at the factor first where that waits for no device."""
        if factor.device.type != "cpu" or factor.item() != 1:
            for gradient in gradients:
                gradient.mul_(factor)

    def _bce(self, operands: Operands, labels: Labels) -> BceRows:
        return bce(self._backend, operands, labels)

    def _bce_gradients(
        self, operands: Operands, labels: Labels, grad_rows: Tensor, need: LossNeed
    ) -> LossGradients:
        return bce_gradients(self._backend, operands, labels, grad_rows, need)

    def _bce_with_gradients(
        self, operands: Operands, labels: Labels, grad_rows: Tensor, need: LossNeed
    ) -> tuple[BceRows, LossGradients]:
        return bce_with_gradients(self._backend, operands, labels, grad_rows, need)

    def _cross_entropy(
        self,
        operands: Operands,
        targets: Tensor,
        label_smoothing: float,
        keep: bool,
        ahead: Ahead | None,
    ) -> CrossEntropyRows:
        arguments = self._backend, operands, targets, label_smoothing
        step = 0 if ahead is None else self._queries_at_once(operands)
        if ahead is not None and step:
            return cross_entropy_with_gradients(*arguments, ahead, step)
        return cross_entropy(*arguments, self._room_for_all(operands) if keep else None)

    def _cross_entropy_gradients(
        self, operands: Operands, made_of: CrossEntropyBackward, need: LossNeed
    ) -> LossGradients:
        return cross_entropy_gradients(self._backend, operands, made_of, need)

    def _room_for_all(self, operands: Operands) -> Tensor | None:
        """Room for all scores, where the backend's plan allows it."""
        plan = self._backend.loss_plan(operands)
        pairs = operands.num_queries * operands.candidates.num_rows
        fits = pairs <= plan.kept
        return operands.queries.new_empty(pairs, dtype=plan.dtype) if fits else None

    def _queries_at_once(self, operands: Operands) -> int:
        """Of how many queries all scores are held where gradients are made ahead; 0: of none."""
        plan, count = self._backend.loss_plan(operands), operands.num_queries
        if plan.num_queries is None or not count:  # gradients of blocks are added up in the table's
            return 0
        most = plan.kept // max(1, operands.candidates.num_rows)
        if most < min(count, _LEAST_QUERIES):
            return 0
        blocks = -(-count // most)
        return -(-count // blocks)


def _safe_labels(operands: Operands, labels: Labels, checks: LossChecks | None) -> Labels:
    """Labels that were checked or, without checks, that are safe to index with."""
    if checks is None:
        return labels.inside(operands.candidates.num_rows)
    checks.labels()
    return labels
