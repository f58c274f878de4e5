"""above(): all candidates with scores that reach a threshold."""

from numbers import Real
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.operands import Known, Operands
from kgfast.ops import run
from kgfast.ops.checks import check_device, checked_known, checked_operands
from kgfast.ops.lists import CandidateIds
from kgfast.ops.registry import operator
from kgfast.ops.values import refuse_unchecked
from kgfast.text import shown

MAX_RESULTS = 10_000_000


def above(
    queries: Tensor,
    candidates: Tensor,
    threshold: Tensor | float,
    exclude_indptr: Tensor | None = None,
    exclude_indices: Tensor | None = None,
    score: str = "dot",
    *,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: int | None = None,
    candidate_ids: Tensor | None = None,
    candidate_indptr: Tensor | None = None,
    max_results: int = MAX_RESULTS,
) -> tuple[Tensor, Tensor, Tensor]:
    """Find all candidates with scores that reach a query's threshold, without a ``[B, N]`` tensor.

    The result is exact: a candidate is found if the score that :func:`kgfast.ops.topk` returns is
    at least the threshold. So the k-th score as threshold returns the k-th candidate, and every
    backend returns the same ids and scores. Memory beyond the result is at most 64 MiB. The
    operator is not differentiable.

    Parameters
    ----------
    queries, candidates, exclude_indptr, exclude_indices, score, bias, factor
        As :func:`kgfast.ops.topk` takes them; so are ``candidate_ids`` and ``candidate_indptr``.
    threshold : Tensor or float
        ``[B]`` floating point, one for each query, or one number for all. Not NaN; -inf finds all
        candidates.
    dims : int, optional
        Crop width in features.
    max_results : int
        Maximal number of results of all queries together.

    Returns
    -------
    indptr, ids, scores : Tensor
        CSR: ``[B + 1]`` and ``[nnz]`` int64, ids ascending in each row; ``[nnz]`` canonical scores
        rounded once to float32 (float64 for float64 queries).

    Raises
    ------
    ValueError, TypeError
        For a shape, dtype, device, id or number that does not fit, and for more than
        ``max_results`` results; the message names the argument and the first row, or says how many
        results there are.

    Examples
    --------
    >>> weight = torch.tensor([[0.0, 1.0], [2.0, 0.0], [2.0, 1.0], [3.0, 1.0]])
    >>> indptr, ids, scores = above(torch.tensor([[1.0, 0.0]]), weight, 2.0)
    >>> indptr.tolist(), ids.tolist(), scores.tolist()
    ([0, 3], [1, 2, 3], [2.0, 2.0, 3.0])
    """
    crops = None if dims is None else [dims]
    operands = checked_operands(queries, candidates, score, bias, factor, crops)
    known = checked_known(exclude_indptr, exclude_indices, operands)
    listed = CandidateIds(candidate_ids, candidate_indptr)
    listed.check(operands)
    check_max_results(max_results)
    if isinstance(threshold, Tensor) and threshold.ndim:
        check_device("threshold", threshold, candidates)
    thresholds = thresholds_of(threshold, operands.num_queries, candidates.device)
    return _above(operands, thresholds, known, listed, max_results)


def thresholds_of(threshold: Tensor | float, count: int, device: torch.device) -> Tensor:
    """Return thresholds float64 ``[count]`` on a device, after checking type and shape."""
    if not isinstance(threshold, Tensor):
        value: Any = threshold
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(
                f"threshold must be a number, or a tensor of one for each query; got {shown(value)}"
            )
        return torch.full((count,), float(threshold), dtype=torch.float64, device=device)
    if not threshold.is_floating_point():
        raise TypeError(f"threshold must be floating point; got {threshold.dtype}")
    if threshold.ndim and threshold.shape != (count,):
        raise ValueError(
            f"threshold must be one number, or have shape [{count}]; got {list(threshold.shape)}"
        )
    return threshold.detach().to(device, torch.float64).expand(count).clone()


def check_thresholds(thresholds: Tensor) -> None:
    """Check that no threshold is NaN."""
    bad = thresholds.isnan().nonzero()
    if len(bad):
        raise ValueError(f"threshold[{int(bad[0])}] must be a number or an infinity; got nan")


def check_max_results(most: int) -> None:
    """Check a number of results."""
    if isinstance(most, bool) or not isinstance(most, int):
        raise TypeError(f"max_results must be an int; got {shown(most)}")
    if most < 1:
        raise ValueError(f"max_results must be at least 1; got {most}")


def too_many(count: int, most: int) -> ValueError:
    """Make the error for more results than a call may return."""
    return ValueError(
        f"max_results must be at least the number of results, {count:,}; got {most:,} (a higher "
        f"threshold finds fewer)"
    )


@operator("above", waits=True)
def _above(
    operands: Operands,
    thresholds: Tensor,
    known: Known | None,
    listed: CandidateIds,
    max_results: int,
) -> tuple[Tensor, Tensor, Tensor]:
    check_thresholds(thresholds)
    refuse_unchecked("above")
    checks = run.checks_for(operands.table.device)
    operands, lists = listed.prepared(operands, checks)
    result = run.above(operands, thresholds, known, checks, max_results, lists)
    if isinstance(result, int):
        raise too_many(result, max_results)
    return result.indptr, result.ids, result.scores


@_above.fake
def _(operands: Operands) -> tuple[Tensor, Tensor, Tensor]:
    count, queries = torch.library.get_ctx().new_dynamic_size(), operands.queries
    indptr = queries.new_empty(len(queries) + 1, dtype=torch.int64)
    return indptr, indptr.new_empty(count), queries.new_empty(count)
