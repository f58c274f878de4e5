"""Ranks on the CPU: a float32 sweep with a proven error bound, canonical scores where it is open.

Cost model: csrc/sweep.h (per element), csrc/canonical.h (per undecided pair). Memory: at most
24 MiB of panels over all threads and 12 MiB of packed queries.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..checks import nonfinite_error
from ..scores import Score, get_score
from . import extension, isa
from .views import address, score_code, view_of


def rank_counts(
    queries: Tensor,
    candidates: Tensor,
    targets: Tensor,
    exclude_indptr: Tensor,
    exclude_indices: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    candidate_ids: Tensor | None = None,
    nan_worst: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The contract of :func:`kgfast.ops.rank_counts`; see there."""
    facts = get_score(score)
    crops = [facts.num_features(candidates.shape[1])] if dims is None else list(dims)
    counts = torch.empty(len(crops), 4, len(targets), dtype=torch.int64)
    bias = None if bias is None else bias.double().expand(len(candidates)).contiguous()
    index = [
        targets.contiguous(),
        exclude_indptr.contiguous(),
        exclude_indices.contiguous(),
        None if candidate_ids is None else candidate_ids.contiguous(),
    ]
    for dim, crop_counts in zip(crops, counts, strict=True):
        _count(queries, candidates, index, facts, dim, bias, nan_worst, crop_counts)
    columns = counts[0] if dims is None else counts.transpose(0, 1)  # [4, B] or [4, C, B]
    greater, equal, greater_excluded, equal_excluded = (column.clone() for column in columns)
    return greater, equal, greater_excluded, equal_excluded


def _count(
    queries: Tensor,
    candidates: Tensor,
    index: list[Tensor | None],
    facts: Score,
    dim: int,
    bias: Tensor | None,
    nan_worst: bool,
    counts: Tensor,
) -> None:
    """One crop: fills ``counts [4, B]``."""
    targets, indptr, indices, ids = index
    num_candidates = len(candidates) if ids is None else len(ids)
    bias32 = None if bias is None else bias.float()
    ordered = None if ids is None else ids.sort().values
    bad_query, bad_candidate = extension.rank_counts(
        isa(),
        score_code(facts),
        view_of(queries, facts),
        view_of(candidates, facts),
        len(queries),
        num_candidates,
        dim,
        facts.term_ulps,
        address(targets),
        address(indptr),
        address(indices),
        address(bias32),
        address(bias),
        0.0 if bias is None or not len(bias) else float(bias.max()),
        0.0 if bias is None or not len(bias) else float(bias.abs().max()),
        address(ids),
        address(ordered),
        nan_worst,
        torch.get_num_threads(),
        [address(row) for row in counts],
    )
    if bad_query >= 0:
        raise nonfinite_error("queries", bad_query)
    if bad_candidate >= 0:
        raise nonfinite_error("candidates", bad_candidate)
