"""Scores of every query with every candidate of a pool, and their gradients."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.scores import get_score
from kgfast.ops import differentiable as common
from kgfast.ops.checks import check_moves, check_operands
from kgfast.ops.finite import check_scores
from kgfast.ops.registry import operator


def pairwise_scores(
    queries: Tensor,
    candidates: Tensor,
    score: str,
    *,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
) -> Tensor:
    """Score every query with every candidate of a pool, without a ``[B, K, D]`` tensor.

    Differentiable in queries, candidates, factor and bias. The backward runs on the backend of the
    forward and recomputes what it needs; where a query equals a candidate, a distance has gradient
    0. Two runs give equal bits. There is no second derivative.

    Parameters
    ----------
    queries : Tensor
        ``[B, F]`` float32; half precision is cast to it. Float64 is computed in float64, by the
        reference backend.
    candidates : Tensor
        ``[K, G]`` float32, float16, bfloat16 or float64, any strides; read in place.
    score : str
        A name from :data:`kgfast.kernels.scores.SCORES`.
    bias : Tensor, optional
        ``[K]`` or ``[1]`` floating point, added to scores last.
    factor : Tensor, optional
        ``[K, D]`` floating point, ``b`` of the ``rscf_*`` scores: then queries hold ``q | w | a``,
        without it ``q | w`` (:mod:`kgfast.kernels.scores`). It may end with the widest crop.
    dims : sequence of int, optional
        Crop widths in features, in any order; all come from one pass over the features.

    Returns
    -------
    Tensor
        ``[B, K]``, or ``[len(dims), B, K]``; float32, float64 for float64 queries.

    Raises
    ------
    ValueError, TypeError
        For a shape, dtype or device that does not fit, and a NaN or an infinity that takes part
        (:mod:`kgfast.ops.finite`); the message names the argument and the first offending row.

    Examples
    --------
    >>> queries = torch.tensor([[0.0, 0.0]], requires_grad=True)
    >>> scores = pairwise_scores(queries, torch.tensor([[3.0, 4.0], [0.0, 1.0]]), "rotate")
    >>> scores.tolist()
    [[-5.0, -1.0]]
    >>> scores.sum().backward()
    >>> queries.grad
    tensor([[0.6000, 1.8000]])
    """
    common.refuse_forward_mode("pairwise_scores", queries, candidates, bias, factor)
    queries = common.full_precision(queries)
    check_operands(queries, candidates, score, bias, factor, dims)
    scores: Tensor = torch.ops.kgfast.pairwise_scores(
        queries,
        candidates,
        score,
        bias,
        factor,
        None if dims is None else list(dims),
        common.chosen_backend(queries),
    )
    return scores


@operator("pairwise_scores")
def _pairwise_scores(
    queries: Tensor,
    candidates: Tensor,
    score: str,
    bias: Tensor | None,
    factor: Tensor | None,
    dims: Sequence[int] | None,
    backend: str,
) -> Tensor:
    if not len(queries) or not len(candidates):
        return common.empty_scores(queries, (len(queries), len(candidates)), dims)
    facts = get_score(score)
    check_moves(queries, factor, facts)
    with common.no_autocast(queries.device):
        scores: Tensor = common.backend_kernel(backend, "pairwise", "pairwise_scores")(
            queries, candidates, score, bias=bias, factor=factor, dims=dims
        )
        check_scores(scores, queries, candidates, bias, factor, facts, dims=dims)
    return scores


@_pairwise_scores.fake
def _(given: SimpleNamespace) -> Tensor:
    shape = len(given.queries), len(given.candidates)
    return common.empty_scores(given.queries, shape, given.dims)


@operator("pairwise_scores_backward")
def _pairwise_scores_backward(
    grad: Tensor,
    queries: Tensor,
    candidates: Tensor,
    score: str,
    bias: Tensor | None,
    factor: Tensor | None,
    dims: Sequence[int] | None,
    backend: str,
    need: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    nothing = [not grad.numel() and needed for needed in need]
    grad_queries, grad_candidates, grad_bias, grad_factor = common.zero_gradients(
        (queries, candidates, bias, factor), nothing
    )
    of_kernel = need[0], need[1], need[3]
    if grad.numel() and any(of_kernel):
        with common.no_autocast(queries.device):
            gradients = common.backend_kernel(backend, "pairwise", "pairwise_backward")(
                grad.contiguous(),
                queries,
                candidates,
                score,
                factor=factor,
                dims=dims,
                need=of_kernel,
            )
        grad_queries = gradients[0] if need[0] else grad_queries
        grad_candidates = gradients[1] if need[1] else grad_candidates
        grad_factor = gradients[2] if need[3] else grad_factor
    if bias is not None and need[2]:
        per_candidate = grad.sum(tuple(range(grad.ndim - 1)), dtype=torch.float64)
        grad_bias = common.bias_gradient(per_candidate, bias)
    return grad_queries, grad_candidates, grad_bias, grad_factor


@_pairwise_scores_backward.fake
def _(given: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tensors = given.queries, given.candidates, given.bias, given.factor
    gradients = common.zero_gradients(tensors, given.need)
    return gradients[0], gradients[1], gradients[2], gradients[3]


def _save(ctx: Any, given: SimpleNamespace, output: Tensor) -> None:
    ctx.save_for_backward(given.queries, given.candidates, given.bias, given.factor)
    ctx.score, ctx.dims, ctx.backend = given.score, given.dims, given.backend


def _backward(ctx: Any, need: list[bool], grad: Tensor) -> tuple[Tensor, ...]:
    queries, candidates, bias, factor = ctx.saved_tensors
    gradients: tuple[Tensor, ...] = torch.ops.kgfast.pairwise_scores_backward(
        grad, queries, candidates, ctx.score, bias, factor, ctx.dims, ctx.backend, need
    )
    return gradients


_pairwise_scores.differentiate(_backward, _save, wrt=("queries", "candidates", "bias", "factor"))
_pairwise_scores_backward.refuse_second_derivative("pairwise_scores")
