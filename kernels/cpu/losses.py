"""Losses over all candidates on the CPU: the shared loop over pairwise's kernels, fused passes.

Cost model: twice pairwise's forward and once its backward, and one pass of engine/loss_row.h each.
Everything that is large runs on the threads of the extension: after an operator of torch its own
threads spin for a while, on the cores that the next kernel needs.
Memory beyond operands and gradients: one scratch of ``_SCRATCH`` scores, and pairwise's.
"""

import torch
from torch import Tensor

from .. import streamed_losses as streamed
from ..scores import get_score
from . import extension, isa, threads
from .crops import Crops
from .pairwise import pull_into, score_into
from .views import address

_SCRATCH = 1 << 21  # scores: 8 MiB
_LOWEST = torch.finfo(torch.float32).min
_ROWS = 4096  # queries that are swept at once


class _FusedPasses:
    """The passes of the loop, each one walk over the scratch; numbers as in host/losses.h."""

    def bce_sums(self, scores: Tensor, label_c: float) -> tuple[Tensor, Tensor]:
        softplus, linear = _row_sums(scores), _row_sums(scores)
        self._run(0, scores, sums=(softplus, linear, None))
        return softplus - label_c * linear if label_c else softplus, linear

    def bce_slopes(self, scores: Tensor, label_c: float, scale: Tensor) -> None:
        self._run(1, scores, factors=(None, scale, None), constant=label_c)

    def bce_both(self, scores: Tensor, label_c: float, scale: Tensor) -> tuple[Tensor, Tensor]:
        softplus, linear = _row_sums(scores), _row_sums(scores)
        self._run(6, scores, (softplus, linear, None), (None, scale, None), label_c)
        return softplus - label_c * linear if label_c else softplus, linear

    def softmax_sums(self, scores: Tensor, peak: Tensor, mass: Tensor, linear: Tensor) -> None:
        peak.clamp_(min=_LOWEST)  # of scores that are all -inf: a finite peak
        self._run(2, scores, sums=(peak, mass, linear))

    def softmax_slopes(self, scores: Tensor, near: Tensor, scale: Tensor, share: Tensor) -> None:
        self._run(3, scores, factors=(near, scale, share))

    def _run(
        self,
        number: int,
        scores: Tensor,
        sums: tuple[Tensor | None, ...] = (None, None, None),
        factors: tuple[Tensor | None, ...] = (None, None, None),
        constant: float = 0.0,
    ) -> None:
        held = [factor if factor is None else factor.contiguous() for factor in factors]
        extension.loss_pass(
            isa(),
            number,
            address(scores),
            scores.shape[0],
            scores.shape[1],
            [address(row) for row in sums],
            [address(row) for row in held],
            constant,
            threads.count(),
        )


def _row_sums(scores: Tensor) -> Tensor:
    return scores.new_zeros(len(scores), dtype=torch.float64)


_FUSED = _FusedPasses()


def bce(
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    positive_indptr: Tensor,
    positive_indices: Tensor,
    label_a: float,
    label_c: float,
    score: str,
) -> tuple[Tensor, Tensor]:
    """The contract of :func:`kgfast.ops.bce`, and sums of the rows' scores (streamed_losses)."""
    result = queries.new_empty(len(queries), dtype=torch.float32)
    linear = queries.new_empty(len(queries), dtype=torch.float64)
    for rows in _blocks(queries, candidates):
        sweep = _Sweep(queries[rows], candidates, bias, score)
        positives = _positives(positive_indptr, positive_indices, rows)
        result[rows], linear[rows] = streamed.bce_rows(sweep, *positives, label_a, label_c, _FUSED)
    return result, linear


def bce_backward(
    grad_rows: Tensor,
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    positive_indptr: Tensor,
    positive_indices: Tensor,
    label_a: float,
    label_c: float,
    score: str,
    need: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of queries, candidates and an expanded bias ``[N]``, None where not needed."""
    gradients = _Gradients(queries, candidates, need)
    for rows in _blocks(queries, candidates):
        sweep = _Sweep(queries[rows], candidates, bias, score, gradients, rows)
        positives = _positives(positive_indptr, positive_indices, rows)
        streamed.bce_gradients(
            sweep, grad_rows[rows], *positives, label_a, label_c, sweep.grad_bias, _FUSED
        )
        sweep.add_bias()
    return gradients.queries, gradients.candidates, gradients.bias


def bce_with_gradients(
    grad_rows: Tensor,
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    positive_indptr: Tensor,
    positive_indices: Tensor,
    label_a: float,
    label_c: float,
    score: str,
    need: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor, Tensor, tuple[Tensor | None, Tensor | None, Tensor | None]]:
    """What :func:`bce` and :func:`bce_backward` return, of scores that are swept once."""
    result = queries.new_empty(len(queries), dtype=torch.float32)
    linear = queries.new_empty(len(queries), dtype=torch.float64)
    gradients = _Gradients(queries, candidates, need)
    for rows in _blocks(queries, candidates):
        sweep = _Sweep(queries[rows], candidates, bias, score, gradients, rows)
        positives = _positives(positive_indptr, positive_indices, rows)
        found = streamed.bce_rows_and_gradients(
            sweep, grad_rows[rows], *positives, label_a, label_c, sweep.grad_bias, _FUSED
        )
        result[rows], linear[rows] = found
        sweep.add_bias()
    return result, linear, (gradients.queries, gradients.candidates, gradients.bias)


def cross_entropy(
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    label_smoothing: float,
    score: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The contract of :func:`kgfast.ops.cross_entropy`: row losses, logsumexp, sums of scores."""
    result = queries.new_empty(len(queries), dtype=torch.float32)
    linear = queries.new_empty(len(queries), dtype=torch.float64)
    logsumexp = queries.new_empty(len(queries), dtype=torch.float64)
    for rows in _blocks(queries, candidates):
        sweep = _Sweep(queries[rows], candidates, bias, score)
        found = streamed.cross_entropy_rows(sweep, targets[rows], label_smoothing, _FUSED)
        result[rows], logsumexp[rows], linear[rows] = found
    return result, logsumexp, linear


def cross_entropy_backward(
    grad_rows: Tensor,
    logsumexp: Tensor,
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    label_smoothing: float,
    score: str,
    need: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of queries, candidates and an expanded bias ``[N]``, None where not needed."""
    gradients = _Gradients(queries, candidates, need)
    for rows in _blocks(queries, candidates):
        sweep = _Sweep(queries[rows], candidates, bias, score, gradients, rows)
        streamed.cross_entropy_gradients(
            sweep,
            grad_rows[rows],
            logsumexp[rows],
            targets[rows],
            label_smoothing,
            sweep.grad_bias,
            _FUSED,
        )
        sweep.add_bias()
    return gradients.queries, gradients.candidates, gradients.bias


def _blocks(queries: Tensor, candidates: Tensor) -> list[slice]:
    """Queries in blocks, so that chunks of candidates stay wide.

    Later blocks add to the candidates' gradient, so only float32 tables can be served so.
    """
    step = _ROWS if candidates.dtype == torch.float32 else max(1, len(queries))
    return [slice(first, first + step) for first in range(0, len(queries), step)]


def _positives(indptr: Tensor, indices: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
    """The CSR of a block of rows."""
    indptr = indptr[rows.start : rows.stop + 1]
    first, last = int(indptr[0]), int(indptr[-1])
    return indptr - first, indices[first:last]


class _Gradients:
    """Room for the gradients that are needed."""

    def __init__(self, queries: Tensor, candidates: Tensor, need: tuple[bool, bool, bool]) -> None:
        shape, float32 = candidates.shape, torch.float32
        self.queries = queries.new_zeros(queries.shape, dtype=float32) if need[0] else None
        self.candidates = candidates.new_empty(shape) if need[1] else None
        self.bias = candidates.new_zeros(len(candidates), dtype=float32) if need[2] else None


class _Sweep:
    """Chunks of candidates scored into one scratch, and their gradients."""

    scratch_scores = _SCRATCH

    def __init__(
        self,
        queries: Tensor,
        candidates: Tensor,
        bias: Tensor | None,
        score: str,
        gradients: _Gradients | None = None,
        rows: slice = slice(0, None),
    ) -> None:
        self.queries, self.candidates, self.score = queries, candidates, score
        self.num_queries, self.num_candidates = len(queries), len(candidates)
        self.crops = Crops.of(None, get_score(score), candidates.shape[1])
        self.bias = bias if bias is None else bias.expand(len(candidates))
        self.scratch = queries.new_empty(0, dtype=torch.float32)
        self.gradients, self.rows = gradients, rows
        self.grad_bias = None
        if gradients is not None and gradients.bias is not None:
            self.grad_bias = torch.zeros_like(gradients.bias)

    def scores(self, start: int, stop: int) -> Tensor:
        count = self.num_queries * (stop - start)
        if len(self.scratch) < count:
            self.scratch = self.scratch.new_empty(count)
        out = self.scratch[:count].view(1, self.num_queries, stop - start)
        bias = None if self.bias is None else self.bias[start:stop].float().contiguous()
        score_into(out, self.queries, self.candidates[start:stop], self.score, bias, self.crops)
        return out[0]

    def pull(self, grad: Tensor, start: int, stop: int) -> None:
        found = self.gradients
        if found is None or (found.queries is None and found.candidates is None):
            return
        part = None if found.queries is None else torch.empty_like(found.queries[self.rows])
        rows = None if found.candidates is None else found.candidates[start:stop]
        pool, later = self.candidates[start:stop], self.rows.start > 0
        pull_into(part, rows, grad[None], self.queries, pool, self.score, self.crops, later)
        if found.queries is not None and part is not None:
            found.queries[self.rows] += part

    def add_bias(self) -> None:
        """Hand the bias's gradient of these rows on."""
        total = None if self.gradients is None else self.gradients.bias
        if total is not None and self.grad_bias is not None:
            total += self.grad_bias
