"""topk(): the best k candidates of each query."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kgfast.kernels.operands import Known, Operands
from kgfast.ops import run
from kgfast.ops.checks import checked_known, checked_operands
from kgfast.ops.registry import operator
from kgfast.ops.values import refuse_unchecked

LARGEST_K = 2**31 - 1


def topk(
    queries: Tensor,
    candidates: Tensor,
    k: int,
    exclude_indptr: Tensor | None = None,
    exclude_indices: Tensor | None = None,
    score: str = "dot",
    *,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    candidate_ids: Tensor | None = None,
    pad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Find the ``k`` best-scoring candidates of each query, without a ``[B, N]`` tensor.

    The result is exact: candidates are ordered by canonical float64 scores
    (:mod:`kgfast.kernels.scores`), and equal scores by the lowest id. So every backend returns the
    same ids and scores. Any output head can be searched: ``topk(hidden, weight, k=1)`` is greedy
    decoding.

    Parameters
    ----------
    queries : Tensor
        ``[B, F]`` float32 or float64; half precision is cast to float32.
    candidates : Tensor
        ``[N, G]`` float32, float16, bfloat16 or float64, any strides; read in place.
    k : int
        Number of answers, from 1 to 2^31 - 1; without ``pad`` at most the number of candidates.
    exclude_indptr, exclude_indices : Tensor, optional
        ``[B + 1]`` and ``[nnz]`` int64, CSR: ids that are no candidates of a query, in any order.
    score : str
        ``dot``, ``l1``, ``l2``, ``rotate``, ``rotate_interleaved``, or a score of RSCF.
    bias : Tensor, optional
        ``[N]`` or ``[1]`` floating point, added to scores last; finite, like all numbers that take
        part (:mod:`kgfast.ops.values`).
    factor : Tensor, optional
        ``[N, D]``, or as wide as the widest crop: ``b`` of the ``rscf_*`` scores, whose queries
        hold ``q | w | a`` with a factor, and ``q | w`` without (:mod:`kgfast.kernels.scores`).
    dims : sequence of int, optional
        Increasing crop widths in features. Results get a leading axis ``[len(dims)]``.
    candidate_ids : Tensor, optional
        ``[M]`` int64, unique: only these rows are candidates. Ids stay ids of the full table.
    pad : bool
        Fill answers that a query lacks with the id -1 and the score -inf, and raise no error.

    Returns
    -------
    scores, ids : Tensor
        ``[B, k]``, or ``[len(dims), B, k]``, from best to worst. Scores are canonical scores
        rounded once to float32 (float64 for float64 queries); ids are int64.

    Raises
    ------
    ValueError, TypeError
        For a shape, dtype, device, id or number that does not fit, and without ``pad`` for a query
        with fewer than ``k`` candidates; the message names the argument and the first row.

    Examples
    --------
    >>> weight = torch.tensor([[0.0, 1.0], [2.0, 0.0], [2.0, 1.0], [2.0, 1.0]])
    >>> scores, ids = topk(torch.tensor([[1.0, 0.0]]), weight, k=2)
    >>> scores.tolist(), ids.tolist()
    ([[2.0, 2.0]], [[1, 2]])
    """
    operands = checked_operands(queries, candidates, score, bias, factor, dims, candidate_ids)
    known = checked_known(exclude_indptr, exclude_indices, operands)
    check_k(k, operands.candidates.num_candidates if len(queries) and not pad else None)
    return _topk(operands, k, known, pad)


def check_k(k: int, count: int | None) -> None:
    """Check that k is a number of answers, at most ``count`` if given."""
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"k must be an int; got {k!r}")
    if k < 1:
        raise ValueError(f"k must be at least 1; got {k}")
    if count is not None and k > count:
        raise ValueError(
            f"k must be at most the number of candidates, {count}; got {k} (pad=True fills the "
            f"rest with id -1)"
        )
    if k > LARGEST_K:
        raise ValueError(f"k must be at most {LARGEST_K}; got {k}")


@operator("topk", waits=True)
def _topk(operands: Operands, k: int, known: Known | None, pad: bool) -> tuple[Tensor, Tensor]:
    refuse_unchecked("topk")
    checks = run.checks_for(operands.table.device)
    operands = replace(operands, candidates=run.prepare(operands.candidates, checks))
    known = None if known is None else run.rising(known, checks)
    scores, ids = run.topk(operands, k, known, checks)
    known_answers = 0 if known is None else len(known.indices)
    if not pad and k > operands.candidates.num_candidates - known_answers:
        rows = ids if ids.ndim == 2 else ids[0]  # crops agree
        short = (rows[:, -1] < 0).nonzero()
        if len(short):
            row = int(short[0])
            raise ValueError(
                f"k must be at most the number of candidates left to each query: queries[{row}] "
                f"has {int((rows[row] >= 0).sum())}, k is {k} (pad=True fills the rest with id -1)"
            )
    return scores, ids


@_topk.fake
def _(operands: Operands, k: int) -> tuple[Tensor, Tensor]:
    crops = () if operands.dims is None else (len(operands.dims),)
    scores = operands.queries.new_empty(*crops, operands.num_queries, k)
    return scores, scores.new_empty(scores.shape, dtype=torch.int64)
