"""Scores of queries with all candidates, or with each query's own rows; gradients."""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from kgfast.kernels.checks import inside_of
from kgfast.kernels.operands import Gradients, NamedRows, Need, Operands
from kgfast.ops import differentiable as common
from kgfast.ops import run
from kgfast.ops.checks import check_device, check_index, check_operands, check_tensor, safe_rows
from kgfast.ops.registry import call, operator


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

    Scores are differentiable in queries, candidates, factor and bias. The backward runs on the
    backend of the forward and computes again what is not stored. If a query equals a candidate, a
    distance has gradient 0. Two runs give equal bits. There is no second derivative.

    Parameters
    ----------
    queries : Tensor
        ``[B, F]`` float32; half precision is cast to float32. Float64 is computed in float64, by
        the reference backend.
    candidates : Tensor
        ``[K, G]`` float32, float16, bfloat16 or float64, any strides; read in place.
    score : str
        ``dot``, ``l1``, ``l2``, ``rotate``, ``rotate_interleaved``, or a score of RSCF.
    bias : Tensor, optional
        ``[K]`` or ``[1]`` floating point, added to scores last.
    factor : Tensor, optional
        ``[K, D]`` floating point, ``b`` of the ``rscf_*`` scores: queries hold ``q | w | a`` with a
        factor, and ``q | w`` without (:mod:`kgfast.kernels.scores`). The factor may end with the
        widest crop.
    dims : sequence of int, optional
        Crop widths in features, in any order; one pass over the features serves all crops.

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
    scores: Tensor = call(
        "pairwise_scores",
        queries,
        candidates,
        score,
        bias,
        factor,
        None if dims is None else list(dims),
        common.chosen_backend(queries),
    )
    return scores


def indexed_scores(
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    *,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    sparse: bool = False,
    besides: Tensor | None = None,
) -> Tensor:
    """Score each query with its own rows of a table, gathered inside the kernel.

    The function is :func:`kgfast.ops.pairwise_scores` with a list of candidates per query. Ids may
    repeat: the gradients of a row are summed in a fixed order.

    Parameters
    ----------
    queries : Tensor
        ``[B, F]``, as in :func:`kgfast.ops.pairwise_scores`.
    table : Tensor
        ``[N, G]`` float32, float16, bfloat16 or float64, any strides; read in place.
    index : Tensor
        ``[B, K]`` int64 in ``0 .. N-1``: the candidates of each query.
    factor : Tensor, optional
        ``[N, D]``, as in :func:`kgfast.ops.pairwise_scores`; the gradient is dense.
    score, dims
        As in :func:`kgfast.ops.pairwise_scores`.
    bias : Tensor, optional
        ``[N]`` or ``[1]`` floating point, added to scores last.
    sparse : bool
        Make a ``torch.sparse_coo`` gradient of only the rows in the index, instead of a dense
        gradient; see :class:`kgfast.RowGradients`. The gradient is coalesced: each row once,
        ascending. On a GPU ids may repeat, with rows of zeros. Not available under
        ``torch.compile``.
    besides : Tensor, optional
        int64 ``[*]``: with ``sparse``, more rows of the gradient. Other gradients of these rows can
        then be added in place.

    Returns
    -------
    Tensor
        ``[B, K]``, or ``[len(dims), B, K]``; float32, float64 for float64 queries.

    Raises
    ------
    ValueError, TypeError
        For a shape, dtype, device or id that does not fit, and a NaN or an infinity that takes part
        (:mod:`kgfast.ops.finite`); the message names the argument and the first offending position.
    RuntimeError
        For ``sparse=True`` under ``torch.compile``.

    Examples
    --------
    >>> table = torch.tensor([[0.0], [1.0], [5.0]], requires_grad=True)
    >>> scores = indexed_scores(torch.tensor([[2.0]]), table, torch.tensor([[2, 1]]), "l1")
    >>> scores.tolist()
    [[-3.0, -1.0]]
    >>> scores.sum().backward()
    >>> table.grad.flatten().tolist()
    [0.0, 1.0, -1.0]
    """
    common.refuse_forward_mode("indexed_scores", queries, table, bias, factor)
    queries = common.full_precision(queries)
    check_operands(queries, table, score, bias, factor, dims, table_name="table")
    check_row_index(index, queries, table)
    if sparse:
        common.refuse_sparse("indexed_scores")
    if besides is not None:
        check_index("besides", besides, (None,), table)
    scores: Tensor = call(
        "indexed_scores",
        queries,
        table,
        index,
        score,
        bias,
        factor,
        None if dims is None else list(dims),
        sparse,
        besides,
        common.chosen_backend(queries),
    )
    return scores


def check_row_index(index: Tensor, queries: Tensor, table: Tensor) -> None:
    """Check that an index is int64 ``[B, K]``, on the device of the table."""
    check_tensor("index", index)
    if index.dtype != torch.int64:
        raise TypeError(f"index must be int64; got {index.dtype}")
    if index.ndim != 2 or len(index) != len(queries):
        raise ValueError(
            f"index must have shape [{len(queries)}, K], a row per query; got {list(index.shape)}"
        )
    check_device("index", index, table, "the rows of the table")


@operator("pairwise_scores", waits=True)
def _pairwise_scores(
    queries: Tensor,
    candidates: Tensor,
    score: str,
    bias: Tensor | None,
    factor: Tensor | None,
    dims: Sequence[int] | None,
    backend: str,
) -> Tensor:
    operands = run.operands_of(queries, candidates, score, bias, factor, dims)
    return run.scores(operands, backend=backend)


@_pairwise_scores.fake
def _(args: SimpleNamespace) -> Tensor:
    shape = len(args.queries), len(args.candidates)
    return common.empty_scores(args.queries, shape, args.dims)


@operator("indexed_scores", waits=True)
def _indexed_scores(
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    bias: Tensor | None,
    factor: Tensor | None,
    dims: Sequence[int] | None,
    sparse: bool,
    besides: Tensor | None,
    backend: str,
) -> Tensor:
    index = safe_rows(index, len(table))
    operands = run.operands_of(queries, table, score, bias, factor, dims)
    return run.scores(operands, index.contiguous(), backend=backend, table_name="table")


@_indexed_scores.fake
def _(args: SimpleNamespace) -> Tensor:
    return common.empty_scores(args.queries, args.index.shape, args.dims)


@_pairwise_scores.gradient(
    "queries", "candidates", "bias", "factor", of="pairwise_scores", grads=("grad",)
)
def _pairwise_backward(args: SimpleNamespace) -> tuple[Tensor | None, ...]:
    operands = run.operands_of(
        args.queries, args.candidates, args.score, None, args.factor, args.dims
    )
    need = Need(args.need[0], args.need[1], args.need[3])
    made = run.backward(operands, args.grad, need=need, backend=args.backend)
    of_bias = bias_gradient_of(args.grad, None, args.bias) if args.need[2] else None
    return made.queries, made.table, of_bias, made.factor


@_indexed_scores.gradient(
    "queries",
    "table",
    "bias",
    "factor",
    of="indexed_scores",
    grads=("grad",),
    rows="table",
    named="index",
)
def _indexed_backward(args: SimpleNamespace) -> tuple[Tensor | None, ...]:
    operands = run.operands_of(args.queries, args.table, args.score, None, args.factor, args.dims)
    # The forward may have been unchecked, which a backward cannot know: clamp the index again.
    index = inside_of(args.index, len(args.table)).contiguous()
    need = Need(args.need[0], args.need[1], args.need[3])
    rows = NamedRows(args.besides) if args.sparse else None
    made = run.backward(operands, args.grad, index, need=need, rows=rows, backend=args.backend)
    of_bias = bias_gradient_of(args.grad, index, args.bias) if args.need[2] else None
    return (
        made.queries,
        made.table,
        of_bias,
        whole_factor(made, operands),
        made.ids if args.need[1] else None,
    )


def whole_factor(gradients: Gradients, operands: Operands) -> Tensor | None:
    """Return the gradient of the whole factor, if the gradients are row gradients."""
    if gradients.ids is None:
        return gradients.factor
    return gradients.spread(operands, Need(False, False, gradients.factor is not None)).factor


def bias_gradient_of(grad: Tensor, index: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Return the gradient of a bias ``[N]`` or ``[1]``, summed in a fixed order."""
    if bias is None:
        return None
    if not grad.numel():
        return torch.zeros(bias.shape, dtype=bias.dtype, device=bias.device)
    if index is None:
        per_candidate = grad.sum(tuple(range(grad.ndim - 1)), dtype=torch.float64)
        return common.bias_gradient(per_candidate, bias)
    per_pair = grad.double().reshape(-1, index.numel()).sum(0)  # [B * K]
    if len(bias) == 1:
        return common.bias_gradient(per_pair, bias)
    ids, owner = index.flatten().unique(return_inverse=True)
    # Unlike index_add_, this sums in a fixed order on every device.
    sums = per_pair.new_zeros(len(ids)).index_put_((owner,), per_pair, accumulate=True)
    zeros = torch.zeros(bias.shape, dtype=bias.dtype, device=bias.device)
    return zeros.index_copy_(0, ids, sums.to(bias.dtype))
