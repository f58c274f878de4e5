"""Ranks on the CPU: a float32 sweep with a proven error bound, canonical scores where it is open.

Cost model: engine/sweep.h (per element of the widest crop), engine/canonical.h (per undecided
pair). Memory: at most 24 MiB of panels over all threads and 12 MiB of packed queries.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..scores import get_score
from . import extension, isa, threads
from .crops import Crops
from .views import address, bias_view, factor_view, query_view, raise_nonfinite, score_code, view_of


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
    crops = Crops.of(dims, facts, candidates.shape[1])
    counts = targets.new_empty((len(crops.distinct), 4, len(targets)), dtype=torch.int64)
    targets = targets.contiguous()
    indptr, indices = exclude_indptr.contiguous(), exclude_indices.contiguous()
    ids = None if candidate_ids is None else candidate_ids.contiguous()
    ordered = None if ids is None else ids.sort().values
    bad_rows = extension.rank_counts(
        isa(),
        score_code(facts, factor),
        query_view(queries, facts, factor),
        view_of(candidates, facts),
        factor_view(factor),
        len(queries),
        len(candidates) if ids is None else len(ids),
        crops.distinct,
        facts.term_ulps,
        address(targets),
        address(indptr),
        address(indices),
        bias_view(bias, len(candidates)),
        len(candidates),
        None if ids is None else address(ids),
        address(ordered),
        nan_worst,
        threads.count(),
        address(counts),
    )
    raise_nonfinite(bad_rows)
    greater, equal, greater_excluded, equal_excluded = crops.arrange(counts)
    return greater, equal, greater_excluded, equal_excluded
