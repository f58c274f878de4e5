"""Losses over all candidates as they are defined: the shared loop, in float64.

Cost model: pairwise.py's, once forward and three times backward. Memory: ten scratches of
``_SCRATCH`` float64 scores, and the queries' gradient in float64.
"""

import torch
from torch import Tensor

from .. import streamed_losses as streamed
from .pairwise import crop_scores, crops_of, pairwise_backward, result_dtype

_SCRATCH = 1 << 16  # scores: 512 KiB


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
    """The specification of :func:`kgfast.ops.bce`, and sums of the rows' scores, float64."""
    sweep = _Sweep(queries, candidates, bias, score)
    labels = positive_indptr, positive_indices, label_a, label_c
    rows, linear = streamed.bce_rows(sweep, *labels)
    return rows.to(result_dtype(queries)), linear


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
    sweep = _Sweep(queries, candidates, bias, score, need)
    streamed.bce_gradients(
        sweep,
        grad_rows,
        positive_indptr,
        positive_indices,
        label_a,
        label_c,
        sweep.grad_bias,
    )
    return sweep.gradients()


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
    """What :func:`bce` and :func:`bce_backward` return."""
    sweep = _Sweep(queries, candidates, bias, score, need)
    rows, linear = streamed.bce_rows_and_gradients(
        sweep,
        grad_rows,
        positive_indptr,
        positive_indices,
        label_a,
        label_c,
        sweep.grad_bias,
    )
    return rows.to(result_dtype(queries)), linear, sweep.gradients()


def cross_entropy(
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    label_smoothing: float,
    score: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """That of :func:`kgfast.ops.cross_entropy`: row losses, logsumexp, sums of scores."""
    sweep = _Sweep(queries, candidates, bias, score)
    rows, logsumexp, linear = streamed.cross_entropy_rows(sweep, targets, label_smoothing)
    return rows.to(result_dtype(queries)), logsumexp, linear


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
    sweep = _Sweep(queries, candidates, bias, score, need)
    streamed.cross_entropy_gradients(
        sweep, grad_rows, logsumexp, targets, label_smoothing, sweep.grad_bias
    )
    return sweep.gradients()


class _Sweep:
    """Chunks of candidates scored, and gradients summed, in float64."""

    scratch_scores = _SCRATCH

    def __init__(
        self,
        queries: Tensor,
        candidates: Tensor,
        bias: Tensor | None,
        score: str,
        need: tuple[bool, bool, bool] = (False, False, False),
    ) -> None:
        self.queries, self.candidates, self.score = queries, candidates, score
        self.num_queries, self.num_candidates = len(queries), len(candidates)
        self.crops = crops_of(candidates, score, None)
        self.bias = None if bias is None else bias.expand(len(candidates))
        self.grad_queries = self.grad_candidates = self.grad_bias = None  # type: Tensor | None
        device, count = candidates.device, len(candidates)
        if need[0]:
            self.grad_queries = torch.zeros(queries.shape, dtype=torch.float64, device=device)
        if need[1]:
            self.grad_candidates = torch.zeros(
                candidates.shape, dtype=candidates.dtype, device=device
            )
        if need[2]:
            self.grad_bias = torch.zeros(count, dtype=result_dtype(queries), device=device)

    def scores(self, start: int, stop: int) -> Tensor:
        rows = self.candidates[None, start:stop]
        scores = crop_scores(self.queries[:, None], rows, self.score, self.crops)[0]
        return scores if self.bias is None else scores + self.bias[start:stop].double()

    def pull(self, grad: Tensor, start: int, stop: int) -> None:
        need = self.grad_queries is not None, self.grad_candidates is not None, False
        grad_queries, grad_candidates, _ = pairwise_backward(
            grad, self.queries.double(), self.candidates[start:stop], self.score, need=need
        )
        if self.grad_queries is not None and grad_queries is not None:
            self.grad_queries += grad_queries
        if self.grad_candidates is not None and grad_candidates is not None:
            self.grad_candidates[start:stop] = grad_candidates

    def gradients(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        grad_queries = self.grad_queries
        if grad_queries is not None:
            grad_queries = grad_queries.to(self.queries.dtype)
        return grad_queries, self.grad_candidates, self.grad_bias
