"""The best k candidates on the CPU: the sweep of ranks, with limits that fall as it goes.

A pair survives unless the float32 sweep proves that k others are better; canonical scores order
what is left (host/topk.h). Cost model: the sweep (engine/sweep.h), and k canonical scores a query.
Memory: panels and packed queries as for ranks, at most 24 MiB of survivors over all threads. Where
k is about as large as the table, or too large for those, all pairs get canonical scores, at some
16 k bytes a thread.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..scores import Score, get_score
from . import extension, isa, threads
from .views import address, bias_view, factor_view, query_view, raise_nonfinite, score_code, view_of


def topk(
    queries: Tensor,
    candidates: Tensor,
    k: int,
    exclude_indptr: Tensor | None = None,
    exclude_indices: Tensor | None = None,
    score: str = "dot",
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    candidate_ids: Tensor | None = None,
    nan_worst: bool = False,
) -> tuple[Tensor, Tensor]:
    """The contract of :func:`kgfast.kernels.reference.topk.topk`."""
    facts = get_score(score)
    crops = [facts.num_features(candidates.shape[1])] if dims is None else list(dims)
    scores = queries.new_empty(len(crops), len(queries), k)
    ids = queries.new_empty(scores.shape, dtype=torch.int64)
    index = [
        None if it is None else it.contiguous()
        for it in (exclude_indptr, exclude_indices, candidate_ids)
    ]
    for dim, crop_scores, crop_ids in zip(crops, scores, ids, strict=True):
        operands = queries, candidates, factor
        _topk_crop(operands, facts, dim, bias, index, nan_worst, crop_scores, crop_ids)
    return (scores[0], ids[0]) if dims is None else (scores, ids)


def _topk_crop(
    operands: tuple[Tensor, Tensor, Tensor | None],
    facts: Score,
    dim: int,
    bias: Tensor | None,
    index: list[Tensor | None],
    nan_worst: bool,
    scores: Tensor,
    ids: Tensor,
) -> None:
    """One crop: fills ``scores`` and ``ids``, ``[B, k]``."""
    queries, candidates, factor = operands
    indptr, indices, subset = index
    bad_rows = extension.topk(
        isa(),
        score_code(facts, factor),
        query_view(queries, facts, factor),
        view_of(candidates, facts),
        factor_view(factor),
        len(queries),
        len(candidates) if subset is None else len(subset),
        dim,
        facts.term_ulps,
        ids.shape[1],
        address(indptr),
        address(indices),
        bias_view(bias, len(candidates)),
        len(candidates),
        address(subset),
        nan_worst,
        threads.count(),
        queries.dtype == torch.float64,
        address(scores),
        address(ids),
    )
    raise_nonfinite(bad_rows)
