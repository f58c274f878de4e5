"""Pairwise scores and their gradients on the CPU.

Cost model: csrc/pairwise_sweep.h and csrc/pull.h. Memory beyond operands and results: forward at
most 12 MiB of packed queries and 24 MiB of panels, backward 24 MiB of feature blocks and 16 MiB of
the stripes' partial gradients; for ``l2`` 8 MiB of norms, once more.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..scores import Score, get_score
from . import extension, isa
from .crops import Crops
from .views import address, score_code, view_of

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
    out = torch.empty(len(crops.given), len(queries), len(candidates))
    if bias is not None:
        bias = bias.float().expand(len(candidates)).contiguous()
    score_into(out, queries, candidates, score, bias, crops)
    return crops.finish(out)


def score_into(
    out: Tensor, queries: Tensor, candidates: Tensor, score: str, bias: Tensor | None, crops: Crops
) -> None:
    """Fill ``out [C, B, K]`` at the first place of every distinct width; ``bias`` float32."""
    facts = get_score(score)
    extension.pairwise_scores(
        isa(),
        score_code(facts),
        view_of(queries, facts),
        view_of(candidates, facts),
        len(queries),
        len(candidates),
        crops.distinct,
        crops.slots,
        address(bias),
        torch.get_num_threads(),
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
    """Gradients of ``queries`` and ``candidates`` where the scores' is ``grad``."""
    crops = Crops.of(dims, get_score(score), candidates.shape[1])
    grad = (grad if crops.has_axis else grad[None]).float()  # [C, B, K]
    grad_queries = crops.gradient_like(queries) if need[0] else None
    grad_candidates = crops.gradient_like(candidates) if need[1] else None
    if any(need):
        pull_into(grad_queries, grad_candidates, grad, queries, candidates, score, crops)
    return grad_queries, grad_candidates, None


def pull_into(
    grad_queries: Tensor | None,
    grad_candidates: Tensor | None,
    grad: Tensor,
    queries: Tensor,
    candidates: Tensor,
    score: str,
    crops: Crops,
    add: bool = False,
) -> None:
    """Fill the gradients that are wanted, as far as a crop reaches, from ``grad [C, B, K]``.

    ``add``: to what ``grad_candidates``, float32, holds already.
    """
    facts, norms = get_score(score), score == "l2"
    for place, columns in enumerate(_columns(grad, candidates, norms)):
        part = grad_queries if place == 0 or grad_queries is None else crops.gradient_like(queries)
        block, pool = grad[:, :, columns], candidates[columns]
        if norms:
            block = over_norms(block, pairwise_scores(queries, pool, score, dims=crops.given))
        target = None if grad_candidates is None else grad_candidates[columns]
        _pull(block, queries, pool, facts, crops.given, part, target, add)
        if place and grad_queries is not None and part is not None:
            grad_queries += part


def over_norms(grad: Tensor, scores: Tensor) -> Tensor:
    """``l2``: the gradient of the scores over their norms, 0 where a norm is 0."""
    return torch.where(scores == 0, 0.0, -grad / scores)


def _columns(grad: Tensor, candidates: Tensor, norms: bool) -> Iterator[slice]:
    """Candidates that are served at once: all, unless norms or a float32 copy must stay small."""
    count, step = len(candidates), max(1, len(candidates))
    if norms:
        step = min(step, max(64, _NORM_BYTES // (4 * grad[..., :1].numel() or 1) // 64 * 64))
    if grad.shape[1] > _ROWS and candidates.dtype != torch.float32:
        step = min(step, max(64, _NORM_BYTES // (4 * candidates.shape[1]) // 64 * 64))
    for first in range(0, max(1, count), step):
        yield slice(first, first + step)


def _pull(
    grad: Tensor,
    queries: Tensor,
    candidates: Tensor,
    facts: Score,
    widths: list[int],
    grad_queries: Tensor | None,
    grad_candidates: Tensor | None,
    add: bool,
) -> None:
    """Fill both gradients; of more than ``_ROWS`` queries, part by part."""
    target = grad_candidates
    if target is not None and target.dtype != torch.float32 and len(queries) > _ROWS:
        target = torch.zeros_like(target, dtype=torch.float32)
    for first in range(0, max(1, len(queries)), _ROWS):
        rows = slice(first, first + _ROWS)
        block = grad[:, rows]
        extension.pairwise_backward(
            isa(),
            score_code(facts),
            (address(block), *block.stride()),
            view_of(queries[rows], facts),
            view_of(candidates, facts),
            len(queries[rows]),
            len(candidates),
            widths,
            None if grad_queries is None else view_of(grad_queries[rows], facts),
            None if target is None else view_of(target, facts),
            add or first > 0,
            torch.get_num_threads(),
        )
    if grad_candidates is not None and target is not None and target is not grad_candidates:
        grad_candidates.copy_(target)
