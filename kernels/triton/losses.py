"""Losses over all candidates on a GPU: the shared loop over chunks of scores.

Scores of a chunk are swept (``dot``: multiplied) into 8 MiB of scratch, which stays in the L2
cache while the loop of ``streamed_losses`` turns it into row sums or slopes; slopes are pulled back
as those of ``pairwise_scores`` are.

Cost model (rotate, d features, sm_90): 7.0 d issue slots a pair forward; 7.0 d and twice 9.2 d
backward; about ten passes over the scratch beside that. Memory: pairwise.py's and three scratches.
"""

from torch import Tensor

from .. import streamed_losses as streamed
from ..backend import Into
from ..operands import Need, Operands, Prepared
from ..scores import get_score
from .host import launch as launcher
from .host.gradients import zero_gradient
from .pairwise import BLOCK_PAIRS, backward_of_all, score_all


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
    with launcher.serving(candidates.device):
        sweep = _Sweep(queries, candidates, bias, score)
        labels = positive_indptr, positive_indices, label_a, label_c
        rows, linear = streamed.bce_rows(sweep, *labels)
    return rows.float(), linear


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
    with launcher.serving(candidates.device):
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
    return sweep.grad_queries, sweep.grad_candidates, sweep.grad_bias


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
    with launcher.serving(candidates.device):
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
    return rows.float(), linear, (sweep.grad_queries, sweep.grad_candidates, sweep.grad_bias)


def cross_entropy(
    queries: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    label_smoothing: float,
    score: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The contract of :func:`kgfast.ops.cross_entropy`: row losses, logsumexp, sums of scores."""
    with launcher.serving(candidates.device):
        sweep = _Sweep(queries, candidates, bias, score)
        rows, logsumexp, linear = streamed.cross_entropy_rows(sweep, targets, label_smoothing)
    return rows.float(), logsumexp, linear


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
    with launcher.serving(candidates.device):
        sweep = _Sweep(queries, candidates, bias, score, need)
        streamed.cross_entropy_gradients(
            sweep, grad_rows, logsumexp, targets, label_smoothing, sweep.grad_bias
        )
    return sweep.grad_queries, sweep.grad_candidates, sweep.grad_bias


class _Sweep:
    """Chunks of candidates scored, and gradients summed, by the kernels of pairwise.py."""

    scratch_scores = BLOCK_PAIRS

    def __init__(
        self,
        queries: Tensor,
        candidates: Tensor,
        bias: Tensor | None,
        score: str,
        need: tuple[bool, bool, bool] = (False, False, False),
    ) -> None:
        self.operands = Operands(queries, Prepared(candidates, get_score(score), bias))
        self.need = need
        self.num_queries, self.num_candidates = len(queries), len(candidates)
        self.grad_queries = zero_gradient(queries, need[0])
        self.grad_candidates = zero_gradient(candidates, need[1])
        self.grad_bias = queries.new_zeros(len(candidates)) if need[2] else None

    def scores(self, start: int, stop: int) -> Tensor:
        out = self.operands.queries.new_empty(self.num_queries, stop - start)
        return score_all(self.operands.of_rows(slice(start, stop)), out)

    def pull(self, grad: Tensor, start: int, stop: int) -> None:
        of_table = None if self.grad_candidates is None else self.grad_candidates[start:stop]
        backward_of_all(
            self.operands.of_rows(slice(start, stop)),
            grad,
            Need(*self.need[:2]),
            Into(self.grad_queries, of_table),
        )
