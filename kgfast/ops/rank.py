"""rank_counts(): the number of candidates that score above the target of a query."""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from kgfast.kernels.checks import Checks
from kgfast.kernels.operands import Known, Lists, Operands, Prepared
from kgfast.kernels.scores import get_score
from kgfast.ops import run
from kgfast.ops.checks import check_index, check_operands
from kgfast.ops.lists import check_lists, lists_of
from kgfast.ops.registry import operator


def rank_counts(
    queries: Tensor,
    candidates: Tensor,
    targets: Tensor,
    exclude_indptr: Tensor,
    exclude_indices: Tensor,
    score: str,
    *,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    candidate_ids: Tensor | None = None,
    candidate_indptr: Tensor | None = None,
    nan_worst: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Count, per query, the candidates above the target and the candidates equal to it.

    The counts are exact: pairs are compared by their canonical float64 scores
    (:mod:`kgfast.kernels.scores`), so every backend returns the same integers. Filtered counts are
    ``greater - greater_excluded`` and ``equal - equal_excluded``.

    Parameters
    ----------
    queries : Tensor
        ``[B, F]`` float32 or float64.
    candidates : Tensor
        ``[N, G]`` float32, float16, bfloat16 or float64, any strides; read in place.
    targets : Tensor
        ``[B]`` int64 in ``0 .. N-1``: the true entity of each query. The target itself never
        counts.
    exclude_indptr, exclude_indices : Tensor
        ``[B + 1]`` and ``[nnz]`` int64, CSR: ids known to be true per query, in any order;
        duplicates count once, and the target is ignored.
    score : str
        ``dot``, ``l1``, ``l2``, ``rotate``, ``rotate_interleaved``, or a score of RSCF.
    bias : Tensor, optional
        ``[N]`` or ``[1]`` floating point, added to scores last; finite, like all numbers that take
        part (:mod:`kgfast.ops.finite`).
    factor : Tensor, optional
        ``[N, D]`` floating point, ``b`` of the ``rscf_*`` scores: queries hold ``q | w | a`` with a
        factor, and ``q | w`` without (:mod:`kgfast.kernels.scores`). The factor may end with the
        widest crop.
    dims : sequence of int, optional
        Crop widths in features. Results get a leading axis ``[len(dims)]``.
    candidate_ids : Tensor, optional
        ``[M]`` int64, unique: only these rows are candidates. Targets and excluded ids stay ids of
        the full table; a target outside the subset is ranked against the subset. ``[B, K]``: the
        candidates of each query, distinct except -1, which is none; no ``[B, K, G]`` tensor is
        made.
    candidate_indptr : Tensor, optional
        ``[B + 1]`` int64: ``candidate_ids [nnz]`` are the candidates of each query in turn, CSR.
    nan_worst : bool
        Accept NaN and infinities: a target whose score is NaN ranks below every other candidate,
        a candidate whose score is NaN below every target.

    Returns
    -------
    greater, equal, greater_excluded, equal_excluded : Tensor
        int64 ``[B]``, or ``[len(dims), B]``.

    Raises
    ------
    ValueError, TypeError
        For a shape, dtype, device, id or number that does not fit; the message names the argument,
        the first offending row and the allowed range. Nothing is computed.

    Examples
    --------
    >>> table = torch.tensor([[0.0], [1.0], [2.0], [2.0]])
    >>> none = torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    >>> greater, equal, *_ = rank_counts(
    ...     torch.tensor([[2.0]]), table, torch.tensor([2]), *none, "l1")
    >>> greater.item(), equal.item()
    (0, 1)
    """
    check_operands(queries, candidates, score, bias, factor, dims)
    check_index("targets", targets, (len(queries),), candidates)
    check_index("exclude_indptr", exclude_indptr, (len(queries) + 1,), candidates)
    check_index("exclude_indices", exclude_indices, (None,), candidates)
    check_candidate_ids(candidate_ids, candidate_indptr, len(queries), candidates)
    result: tuple[Tensor, Tensor, Tensor, Tensor] = torch.ops.kgfast.rank_counts(
        queries.detach(),
        candidates.detach(),
        targets,
        exclude_indptr,
        exclude_indices,
        score,
        None if bias is None else bias.detach(),
        None if factor is None else factor.detach(),
        None if dims is None else list(dims),
        candidate_ids,
        candidate_indptr,
        nan_worst,
    )
    return result


def check_candidate_ids(
    ids: Tensor | None, indptr: Tensor | None, num_queries: int, candidates: Tensor
) -> None:
    """Check shapes, dtypes and devices of one list for all queries, or of a list for each."""
    if ids is None:
        if indptr is not None:
            raise ValueError("candidate_indptr must be given together with candidate_ids")
    elif is_listed(ids, indptr):
        check_lists(ids, indptr, num_queries, candidates)
    else:
        check_index("candidate_ids", ids, (None,), candidates)


def is_listed(ids: Tensor | None, indptr: Tensor | None) -> bool:
    """Return whether each query has its own candidates."""
    return indptr is not None or getattr(ids, "ndim", 1) == 2


def operands_of(
    queries: Tensor,
    table: tuple[Tensor, str, Tensor | None, Tensor | None],
    dims: Sequence[int] | None,
    ids: Tensor | None,
    indptr: Tensor | None,
    checks: Checks,
) -> tuple[Operands, Lists | None]:
    """Make operands of candidates, score, bias and factor, and the lists of queries, checked."""
    candidates, score, bias, factor = table
    lists = None
    if ids is not None and is_listed(ids, indptr):
        lists, ids = lists_of(ids, indptr, len(candidates)), None
    pool = run.prepare(Prepared(candidates, get_score(score), bias, factor, ids), checks)
    return Operands(queries, pool, None if dims is None else tuple(dims)), lists


@operator("rank_counts", waits=True)
def _rank_counts(
    queries: Tensor,
    candidates: Tensor,
    targets: Tensor,
    exclude_indptr: Tensor,
    exclude_indices: Tensor,
    score: str,
    bias: Tensor | None,
    factor: Tensor | None,
    dims: Sequence[int] | None,
    candidate_ids: Tensor | None,
    candidate_indptr: Tensor | None,
    nan_worst: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    checks = run.checks_for(candidates.device, allows_nan=nan_worst)
    table = candidates, score, bias, factor
    operands, lists = operands_of(queries, table, dims, candidate_ids, candidate_indptr, checks)
    known = Known(exclude_indptr, exclude_indices)
    return run.rank_counts(operands, targets, known, checks, lists)


@_rank_counts.fake
def _(args: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = args.targets.shape if args.dims is None else (len(args.dims), *args.targets.shape)
    greater, equal, greater_excluded, equal_excluded = (
        args.targets.new_empty(shape) for _ in range(4)
    )
    return greater, equal, greater_excluded, equal_excluded
