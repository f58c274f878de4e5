"""Scores of queries with all candidates, or with each query's own rows; gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kgfast.kernels.checks import inside_of
from kgfast.kernels.operands import Gradients, NamedRows, Need, Operands
from kgfast.ops import differentiable as common
from kgfast.ops.checks import check_index, checked_operands
from kgfast.ops.dispatch import get_backend
from kgfast.ops.registry import operator
from kgfast.ops.values import check_moves, check_scores, safe_ids


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

    Scores are differentiable once in all tensors, on the backend of the forward. If a query equals
    a candidate, a distance has gradient 0. Two runs give equal bits.

    Parameters
    ----------
    queries : Tensor
        ``[B, F]`` float32; half precision is cast to float32. Float64 is computed in float64, by
        the reference backend.
    candidates, score, bias, factor
        As :func:`kgfast.ops.topk` takes them, ``[K, G]``; a bias of -inf makes scores -inf.
    dims : sequence of int, optional
        Increasing crop widths in features; one pass over the features serves all crops.

    Returns
    -------
    Tensor
        ``[B, K]``, or ``[len(dims), B, K]``; float32, float64 for float64 queries.

    Raises
    ------
    ValueError, TypeError
        For a shape, dtype or device that does not fit, and a NaN or an infinity that takes part
        (:mod:`kgfast.ops.values`); the message names the argument and the first offending row.

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
    operands = checked_operands(queries, candidates, score, bias, factor, dims)
    return _scores(operands, None, False, None, common.chosen_backend(operands.queries))


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

    Ids may repeat: the gradients of a row are summed in a fixed order. Errors and all else are as
    in :func:`kgfast.ops.pairwise_scores`.

    Parameters
    ----------
    queries, table, score, bias, factor, dims
        As in :func:`kgfast.ops.pairwise_scores`, with ``N`` rows; the factor's gradient is dense.
    index : Tensor
        ``[B, K]`` int64 in ``0 .. N-1``: the candidates of each query.
    sparse : bool
        Make a ``torch.sparse_coo`` gradient of only the rows in the index: see
        :class:`kgfast.RowGradients`. Not available under ``torch.compile``.
    besides : Tensor, optional
        int64 ``[*]``: more rows of a sparse gradient, so that gradients can be added in place.

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
    operands = checked_operands(queries, table, score, bias, factor, dims, table_name="table")
    check_index("index", index, (operands.num_queries, None), table, "the rows of the table")
    if sparse:
        common.refuse_sparse("indexed_scores")
    if besides is not None:
        check_index("besides", besides, (None,), table)
    return _scores(operands, index, sparse, besides, common.chosen_backend(operands.queries))


@operator("scores", waits=True)
def _scores(
    operands: Operands, index: Tensor | None, sparse: bool, besides: Tensor | None, backend: str
) -> Tensor:
    if index is not None:
        index = safe_ids("index", index, len(operands.table)).contiguous()
    check_moves(operands)
    values = get_backend(backend).scores(operands, index)
    check_scores(values, operands, index, "candidates" if index is None else "table")
    return values


@_scores.fake
def _(operands: Operands, index: Tensor | None) -> Tensor:
    pairs = (operands.num_queries, len(operands.table)) if index is None else index.shape
    crops = () if operands.dims is None else (len(operands.dims),)
    return operands.queries.new_empty(*crops, *pairs)


@_scores.gradient(*("queries", "table", "bias", "factor"), rows=True)
def _backward(
    grad: Tensor,
    operands: Operands,
    index: Tensor | None,
    sparse: bool,
    besides: Tensor | None,
    backend: str,
    need: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    if index is not None:  # the forward may have been unchecked, which a backward cannot know
        index = inside_of(index, len(operands.table)).contiguous()
    needed, of_bias, grad = Need(need[0], need[1], need[3]), None, grad.resolve_neg().contiguous()
    if need[2] and operands.bias is not None:
        of_bias = bias_gradient_of(grad, index, operands.bias)
    gradients, nothing = Gradients(), torch.empty(0, dtype=torch.int64, device=grad.device)
    if any(needed):
        rows = NamedRows(besides) if sparse else None
        gradients = get_backend(backend).backward(operands, grad, index, need=needed, rows=rows)
    ids = nothing if gradients.ids is None or not need[1] else gradients.ids
    return gradients.queries, gradients.table, of_bias, whole_factor(gradients, operands), ids


def whole_factor(gradients: Gradients, operands: Operands) -> Tensor | None:
    """Return the gradient of the whole factor, if the gradients are row gradients."""
    if gradients.ids is None:
        return gradients.factor
    return gradients.spread(operands, Need(False, False, gradients.factor is not None)).factor


def bias_gradient_of(grad: Tensor, index: Tensor | None, bias: Tensor) -> Tensor:
    """Return the gradient of a bias ``[N]`` or ``[1]``, summed in a fixed order."""
    if not grad.numel():
        return torch.zeros(bias.shape, dtype=bias.dtype, device=bias.device)
    if index is None:
        per_candidate = grad.sum(tuple(range(grad.ndim - 1)), dtype=torch.float64)
        return common.bias_gradient(per_candidate, bias)
    per_pair = grad.double().reshape(-1, index.numel()).sum(0)  # [B * K]
    if len(bias) == 1:
        return common.bias_gradient(per_pair, bias)
    # unlike index_add_, index_put_ sums in a fixed order on every device
    sums = per_pair.new_zeros(len(bias)).index_put_((index.flatten(),), per_pair, accumulate=True)
    return sums.to(bias.dtype)
