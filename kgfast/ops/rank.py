"""rank_counts(): the number of candidates that score above the target of a query."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from kgfast.kernels.operands import Counts, Known, Operands
from kgfast.ops import run
from kgfast.ops.checks import check_index, checked_known, checked_operands
from kgfast.ops.registry import operator
from kgfast.ops.values import refuse_unchecked


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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Count, per query, the candidates above the target and the candidates equal to it.

    Pairs are compared by canonical float64 scores (:mod:`kgfast.kernels.scores`): every backend
    returns the same integers. Filtered counts are ``greater - greater_excluded`` and ``equal -
    equal_excluded``.

    Parameters
    ----------
    queries, candidates, score, bias, factor, dims, candidate_ids
        As :func:`kgfast.ops.topk` takes them.
    targets : Tensor
        ``[B]`` int64 in ``0 .. N-1``: the true entity of each query. The target itself never
        counts. A target outside ``candidate_ids`` is ranked against these.
    exclude_indptr, exclude_indices : Tensor
        ``[B + 1]`` and ``[nnz]`` int64, CSR: ids known to be true per query, in any order;
        duplicates count once, and the target is ignored.

    Returns
    -------
    greater, equal, greater_excluded, equal_excluded : Tensor
        int64 ``[B]``, or ``[len(dims), B]``.

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.ops.topk`; nothing is computed.

    Examples
    --------
    >>> import torch
    >>> table = torch.tensor([[0.0], [1.0], [2.0], [2.0]])
    >>> none = torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    >>> greater, equal, *_ = rank_counts(
    ...     torch.tensor([[2.0]]), table, torch.tensor([2]), *none, "l1")
    >>> greater.item(), equal.item()
    (0, 1)
    """
    operands = checked_operands(queries, candidates, score, bias, factor, dims, candidate_ids)
    check_index("targets", targets, (len(queries),), candidates)
    known = checked_known(exclude_indptr, exclude_indices, operands)
    assert known is not None
    return Counts(*_rank_counts(operands, targets, known))


@operator("rank_counts", waits=True)
def _rank_counts(operands: Operands, targets: Tensor, known: Known) -> Counts:
    refuse_unchecked("rank_counts")
    checks = run.checks_for(targets.device)
    operands = replace(operands, candidates=run.prepare(operands.candidates, checks))
    return run.rank_counts(operands, targets, run.rising(known, checks), checks)


@_rank_counts.fake
def _(operands: Operands, targets: Tensor) -> tuple[Tensor, ...]:
    crops = () if operands.dims is None else (len(operands.dims),)
    return tuple(targets.new_empty(*crops, len(targets)) for _ in Counts._fields)
