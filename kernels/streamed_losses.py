"""Losses over all candidates that never hold all scores: the loop that the backends share.

A backend scores a chunk of candidates into a bounded scratch and, in the backward, carries a
gradient of the scratch to queries and candidates; what happens in between is here. Row losses of
scores ``x`` (bias included), ``P`` the row's positives, ``t`` its target, eps the smoothing:

    bce             sum_j softplus(x_j) - c sum_j x_j - a sum_{j in P} x_j
    cross entropy   logsumexp(x) - (1 - eps) x_t - (eps / N) sum_j x_j

Elementwise work and sums over a chunk (torch's sum is a tree) are in the dtype of the scratch, sums
of chunks in float64 in their order: two runs are bit-equal, for any number of threads. Positives
are sorted by candidate once, so that a chunk finds its own in a slice.

Cost model, per score: one exponential and one logarithm forward, one exponential backward, and
three to five passes over one scratch of ``scratch_scores``. A backward scores again, but where a
loss and its gradients are asked for together. Memory: the scratch, O(B + nnz).
"""

from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

# A single row below 2**15 numbers is summed by one thread, so in an order that does not depend on
# their number.
_WIDEST_CHUNK = 1 << 14

# torch's softplus is x itself from here on: the omitted log1p(exp(-x)) is below 2**-57 x.
_SOFTPLUS_IS_LINEAR = 40.0


class Sweep(Protocol):
    """Queries and candidates of a loss, as a backend scores them.

    ``scratch_scores`` is how many scores a chunk may hold.
    """

    num_queries: int
    num_candidates: int
    scratch_scores: int

    def scores(self, start: int, stop: int) -> Tensor:
        """Scores of all queries with candidates ``start .. stop-1``, bias included.

        A contiguous floating-point scratch ``[B, stop - start]`` that the caller overwrites; it is
        used no more when the next chunk is asked for.
        """
        ...

    def pull(self, grad: Tensor, start: int, stop: int) -> None:
        """Carry the gradient of those scores on.

        Adds to the queries' gradient and writes that of candidates ``start .. stop-1``. Called
        once per chunk, with chunks in order.
        """
        ...


class Passes(Protocol):
    """What is done to a scratch ``[B, n]`` of scores, which is overwritten."""

    def bce_sums(self, scores: Tensor, label_c: float) -> tuple[Tensor, Tensor]:
        """Sums of ``softplus(x) - c x`` and of ``x``, float64 ``[B]`` each."""
        ...

    def bce_slopes(self, scores: Tensor, label_c: float, scale: Tensor) -> None:
        """In place ``scale (sigmoid(x) - c)``, with ``scale [B]``."""
        ...

    def bce_both(self, scores: Tensor, label_c: float, scale: Tensor) -> tuple[Tensor, Tensor]:
        """What :meth:`bce_sums` returns; in place what :meth:`bce_slopes` makes."""
        ...

    def softmax_sums(self, scores: Tensor, peak: Tensor, mass: Tensor, linear: Tensor) -> None:
        """Carry on, in place, the highest score, the sum of ``exp(x - peak)`` and that of scores.

        Float64 ``[B]`` each.
        """
        ...

    def softmax_slopes(self, scores: Tensor, near: Tensor, scale: Tensor, share: Tensor) -> None:
        """In place ``scale exp(x - near) - share``, of the scores' dtype ``[B]`` each."""
        ...


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

    def softmax_slopes(self, scores: Tensor, near: Tensor, scale: Tensor, share: Tensor) -> None:
        scores.sub_(near[:, None]).exp_().mul_(scale[:, None]).sub_(share[:, None])


TORCH: Passes = _TorchPasses()


def chunks(sweep: Sweep) -> list[tuple[int, int]]:
    """The candidates in ranges whose scores fit the scratch."""
    width = max(1, min(_WIDEST_CHUNK, sweep.scratch_scores // max(1, sweep.num_queries)))
    width = width // 64 * 64 or width
    stop = sweep.num_candidates
    return [(start, min(start + width, stop)) for start in range(0, stop, width)]


def bce_rows(
    sweep: Sweep,
    indptr: Tensor,
    indices: Tensor,
    label_a: float,
    label_c: float,
    passes: Passes = TORCH,
) -> tuple[Tensor, Tensor]:
    """Row losses of binary cross entropy and sums of the rows' scores, float64 ``[B]`` each.

    A sum of scores is finite only where all of them are.
    """
    bounds = chunks(sweep)
    positives = _Positives.of_rows(indptr, indices, bounds)
    total, linear = torch.zeros(
        2, sweep.num_queries, dtype=torch.float64, device=indptr.device
    ).unbind()
    picked = total.new_empty(len(positives.rows))
    for (start, stop), part in zip(bounds, positives.parts, strict=True):
        scores = sweep.scores(start, stop)
        picked[part] = scores[positives.rows[part], positives.ids[part] - start].double()
        sums = passes.bce_sums(scores, label_c)
        total += sums[0]
        linear += sums[1]
    return total - label_a * positives.sum_by_row(picked), linear


def bce_gradients(
    sweep: Sweep,
    grad_rows: Tensor,
    indptr: Tensor,
    indices: Tensor,
    label_a: float,
    label_c: float,
    grad_bias: Tensor | None = None,
    passes: Passes = TORCH,
) -> None:
    """Pull the gradient of :func:`bce_rows`, given that of the rows ``[B]``; fill ``grad_bias``."""
    bounds = chunks(sweep)
    positives = _Positives.of_rows(indptr, indices, bounds)
    for (start, stop), part in zip(bounds, positives.parts, strict=True):
        slopes = sweep.scores(start, stop)
        scale = grad_rows.to(slopes.dtype)
        passes.bce_slopes(slopes, label_c, scale)
        rows = positives.rows[part]
        slopes[rows, positives.ids[part] - start] -= label_a * scale[rows]
        _pull(sweep, slopes, start, stop, grad_bias)


def bce_rows_and_gradients(
    sweep: Sweep,
    grad_rows: Tensor,
    indptr: Tensor,
    indices: Tensor,
    label_a: float,
    label_c: float,
    grad_bias: Tensor | None = None,
    passes: Passes = TORCH,
) -> tuple[Tensor, Tensor]:
    """:func:`bce_rows` and :func:`bce_gradients` of scores that are swept once."""
    bounds = chunks(sweep)
    positives = _Positives.of_rows(indptr, indices, bounds)
    total, linear = torch.zeros(
        2, sweep.num_queries, dtype=torch.float64, device=indptr.device
    ).unbind()
    picked = total.new_empty(len(positives.rows))
    for (start, stop), part in zip(bounds, positives.parts, strict=True):
        scores = sweep.scores(start, stop)
        rows, ids = positives.rows[part], positives.ids[part] - start
        scale = grad_rows.to(scores.dtype)
        picked[part] = scores[rows, ids].double()
        sums = passes.bce_both(scores, label_c, scale)
        total += sums[0]
        linear += sums[1]
        scores[rows, ids] -= label_a * scale[rows]
        _pull(sweep, scores, start, stop, grad_bias)
    return total - label_a * positives.sum_by_row(picked), linear


def cross_entropy_rows(
    sweep: Sweep, targets: Tensor, label_smoothing: float, passes: Passes = TORCH
) -> tuple[Tensor, Tensor, Tensor]:
    """Row losses of cross entropy, their logsumexp, and sums of scores as :func:`bce_rows` has.

    Float64 ``[B]`` each.
    """
    bounds = chunks(sweep)
    positives = _Positives.of_targets(targets, bounds)
    zeros = torch.zeros(sweep.num_queries, dtype=torch.float64, device=targets.device)
    peak, mass, linear = zeros - torch.inf, zeros, zeros.clone()
    picked = mass.new_empty(len(positives.rows))
    for (start, stop), part in zip(bounds, positives.parts, strict=True):
        scores = sweep.scores(start, stop)
        picked[part] = scores[positives.rows[part], positives.ids[part] - start].double()
        passes.softmax_sums(scores, peak, mass, linear)
    logsumexp = peak + mass.log()
    target_scores = positives.sum_by_row(picked)
    smooth: Tensor | float = 0.0
    if label_smoothing:  # else a score of infinity would make a NaN of it
        smooth = linear * (label_smoothing / max(1, sweep.num_candidates))
    return logsumexp - (1 - label_smoothing) * target_scores - smooth, logsumexp, linear


def cross_entropy_gradients(
    sweep: Sweep,
    grad_rows: Tensor,
    logsumexp: Tensor,
    targets: Tensor,
    label_smoothing: float,
    grad_bias: Tensor | None = None,
    passes: Passes = TORCH,
) -> None:
    """Pull the gradient of :func:`cross_entropy_rows`, given that of the rows ``[B]``."""
    bounds = chunks(sweep)
    positives = _Positives.of_targets(targets, bounds)
    for (start, stop), part in zip(bounds, positives.parts, strict=True):
        slopes = sweep.scores(start, stop)
        # exp(x - logsumexp) in two factors: a difference of large numbers is exact in few bits.
        near = logsumexp.to(slopes.dtype)
        grad = grad_rows.double()
        scale = grad * (near.double() - logsumexp.double()).exp_()
        share = grad * (label_smoothing / sweep.num_candidates)
        passes.softmax_slopes(slopes, near, scale.to(slopes.dtype), share.to(slopes.dtype))
        rows = positives.rows[part]
        hit = ((1 - label_smoothing) * grad[rows]).to(slopes.dtype)
        slopes[rows, positives.ids[part] - start] -= hit
        _pull(sweep, slopes, start, stop, grad_bias)


def _pull(sweep: Sweep, slopes: Tensor, start: int, stop: int, grad_bias: Tensor | None) -> None:
    if grad_bias is not None:
        grad_bias[start:stop] = slopes.sum(0)
    sweep.pull(slopes, start, stop)


class _Positives(NamedTuple):
    """Distinct positive pairs by rising candidate id, and the slice of them in each chunk."""

    rows: Tensor  # [P]
    ids: Tensor  # [P]
    parts: list[slice]
    num_rows: int

    @classmethod
    def of_rows(
        cls, indptr: Tensor, indices: Tensor, bounds: list[tuple[int, int]]
    ) -> "_Positives":
        """From a CSR of ids per row, in any order; duplicates count once."""
        num_rows = len(indptr) - 1
        rows = torch.arange(num_rows, dtype=torch.int64, device=indptr.device)
        rows = rows.repeat_interleave(indptr.diff())
        pairs = (indices * num_rows + rows).unique() if num_rows else indices
        return cls._of(pairs % max(1, num_rows), pairs // max(1, num_rows), bounds, num_rows)

    @classmethod
    def of_targets(cls, targets: Tensor, bounds: list[tuple[int, int]]) -> "_Positives":
        """From one id per row."""
        ids, rows = targets.sort(stable=True)
        return cls._of(rows, ids, bounds, len(targets))

    @classmethod
    def _of(
        cls, rows: Tensor, ids: Tensor, bounds: list[tuple[int, int]], num_rows: int
    ) -> "_Positives":
        edges = [start for start, _ in bounds] + [stop for _, stop in bounds[-1:]]
        found = torch.searchsorted(ids, ids.new_tensor(edges)).tolist()
        parts = [slice(a, b) for a, b in pairwise(found)]
        return cls(rows, ids, parts, num_rows)

    def sum_by_row(self, values: Tensor) -> Tensor:
        """Sums of ``values [P]`` over the pairs of each row, in the order of the ids, ``[B]``."""
        order = self.rows.argsort(stable=True)
        lengths = self.rows.bincount(minlength=self.num_rows)
        return torch.segment_reduce(values[order], "sum", lengths=lengths, initial=0.0, unsafe=True)
