"""Pairwise scores and their gradients on the CPU.

Cost model: engine/pairwise_sweep.h (of the rscf scores engine/indexed_rows.h) and
engine/pairwise_backward.h. Memory beyond operands and results: forward at most 12 MiB of packed
queries and 24 MiB of panels, backward 24 MiB of feature blocks and 16 MiB of the stripes' partial
gradients; for ``l2`` 8 MiB of norms, once more.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..scores import Score, get_score
from . import extension, isa, threads
from .crops import Crops
from .views import address, factor_view, query_view, score_code, view_of

_NORM_BYTES = 2 << 20
_ROWS = 4096  # queries whose feature blocks a worker holds at once


def pairwise_scores(
    queries: Tensor,
    candidates: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
) -> Tensor:
    """The contract of :func:`kgfast.ops.pairwise_scores`; see there."""
    crops = Crops.of(dims, get_score(score), candidates.shape[1])
    shape = (len(crops.given), len(queries), len(candidates))
    out = queries.new_empty(shape, dtype=torch.float32)
    if bias is not None:
        bias = bias.float().expand(len(candidates)).contiguous()
    score_into(out, queries, candidates, score, bias, crops, factor)
    return crops.finish(out)


def score_into(
    out: Tensor,
    queries: Tensor,
    candidates: Tensor,
    score: str,
    bias: Tensor | None,
    crops: Crops,
    factor: Tensor | None = None,
) -> None:
    """Fill ``out [C, B, K]`` at the first place of every distinct width; ``bias`` float32."""
    facts = get_score(score)
    extension.pairwise_scores(
        isa(),
        score_code(facts, factor),
        query_view(queries, facts, factor),
        view_of(candidates, facts),
        factor_view(factor),
        len(queries),
        len(candidates),
        crops.distinct,
        crops.slots,
        address(bias),
        threads.count(),
        address(out),
    )


def pairwise_backward(
    grad: Tensor,
    queries: Tensor,
    candidates: Tensor,
    score: str,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    need: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of ``queries``, ``candidates`` and ``factor`` where the scores' is ``grad``."""
    crops = Crops.of(dims, get_score(score), candidates.shape[1])
    grad = (grad if crops.has_axis else grad[None]).float()  # [C, B, K]
    of_queries, of_candidates, of_factor = (
        crops.gradient_like(rows) if needed and rows is not None else None
        for rows, needed in zip((queries, candidates, factor), need, strict=True)
    )
    if any(it is not None for it in (of_queries, of_candidates, of_factor)):
        operands = queries, candidates, score, crops
        pull_into(of_queries, of_candidates, grad, *operands, factor=factor, grad_factor=of_factor)
    return of_queries, of_candidates, of_factor


def pull_into(
    grad_queries: Tensor | None,
    grad_candidates: Tensor | None,
    grad: Tensor,
    queries: Tensor,
    candidates: Tensor,
    score: str,
    crops: Crops,
    add: bool = False,
    factor: Tensor | None = None,
    grad_factor: Tensor | None = None,
) -> None:
    """Fill the gradients that are wanted, as far as a crop reaches, from ``grad [C, B, K]``.

    ``add``: to what those of candidates and factor, float32, hold already.
    """
    facts, norms = get_score(score), has_norms(score)
    for place, columns in enumerate(_columns(grad, candidates, factor, norms)):
        part = grad_queries if place == 0 or grad_queries is None else crops.gradient_like(queries)
        block = grad[:, :, columns]
        pool = candidates[columns], None if factor is None else factor[columns]
        if norms:
            scores = pairwise_scores(queries, pool[0], score, factor=pool[1], dims=crops.given)
            block = over_norms(block, scores)
        targets = (
            None if grad_candidates is None else grad_candidates[columns],
            None if grad_factor is None else grad_factor[columns],
        )
        _pull(block, queries, pool, facts, crops.given, part, targets, add)
        if place and grad_queries is not None and part is not None:
            grad_queries += part


def has_norms(score: str) -> bool:
    """Whether a root follows the sum."""
    return score in ("l2", "rscf_l2")


def over_norms(grad: Tensor, scores: Tensor) -> Tensor:
    """The gradient of scores over their norms, 0 where a norm is 0."""
    return torch.where(scores == 0, 0.0, -grad / scores)


def _columns(
    grad: Tensor, candidates: Tensor, factor: Tensor | None, norms: bool
) -> Iterator[slice]:
    """Candidates that are served at once: all, unless norms or a float32 copy must stay small."""
    count, step = len(candidates), max(1, len(candidates))
    if norms:
        step = min(step, max(64, _NORM_BYTES // (4 * grad[..., :1].numel() or 1) // 64 * 64))
    if grad.shape[1] > _ROWS and _is_summed_apart(candidates, factor):
        width = candidates.shape[1] + (0 if factor is None else factor.shape[1])
        step = min(step, max(64, _NORM_BYTES // (4 * width) // 64 * 64))
    for first in range(0, max(1, count), step):
        yield slice(first, first + step)


def _is_summed_apart(*rows: Tensor | None) -> bool:
    """Whether gradients of parts cannot be added where they belong."""
    return any(it is not None and it.dtype != torch.float32 for it in rows)


def _pull(
    grad: Tensor,
    queries: Tensor,
    pool: tuple[Tensor, Tensor | None],
    facts: Score,
    widths: list[int],
    grad_queries: Tensor | None,
    grad_pool: tuple[Tensor | None, Tensor | None],
    add: bool,
) -> None:
    """Fill the gradients; of more than ``_ROWS`` queries, part by part."""
    candidates, factor = pool
    targets = grad_pool
    if _is_summed_apart(*grad_pool) and len(queries) > _ROWS:
        targets = _zeros_for(grad_pool[0]), _zeros_for(grad_pool[1])
    for first in range(0, max(1, len(queries)), _ROWS):
        rows = slice(first, first + _ROWS)
        block = grad[:, rows]
        extension.pairwise_backward(
            isa(),
            score_code(facts, factor),
            (address(block), *block.stride()),
            query_view(queries[rows], facts, factor),
            view_of(candidates, facts),
            factor_view(factor),
            len(queries[rows]),
            len(candidates),
            widths,
            None if grad_queries is None else query_view(grad_queries[rows], facts, factor),
            None if targets[0] is None else view_of(targets[0], facts),
            factor_view(targets[1]),
            add or first > 0,
            threads.count(),
        )
    if targets is not grad_pool:
        for gradient, target in zip(grad_pool, targets, strict=True):
            if gradient is not None and target is not None:
                gradient.copy_(target)


def _zeros_for(gradient: Tensor | None) -> Tensor | None:
    """Float32 that a gradient is summed in."""
    return None if gradient is None else torch.zeros_like(gradient, dtype=torch.float32)
