"""Scores of each query with rows of a table that are its own, and their gradients."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.scores import get_score
from kgfast.ops import differentiable as common
from kgfast.ops.checks import check_device, check_moves, check_operands, check_tensor
from kgfast.ops.finite import check_scores
from kgfast.ops.registry import operator


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
) -> Tensor:
    """Score each query with rows of a table that are its own, gathered inside the kernel.

    As :func:`kgfast.ops.pairwise_scores`, with a list of candidates per query. Ids may repeat:
    their gradients are summed in a fixed order.

    Parameters
    ----------
    queries : Tensor
        ``[B, F]``, as in :func:`kgfast.ops.pairwise_scores`.
    table : Tensor
        ``[N, G]`` float32, float16, bfloat16 or float64, any strides; read in place.
    index : Tensor
        ``[B, K]`` int64 in ``0 .. N-1``: the candidates of each query.
    factor : Tensor, optional
        ``[N, D]``, as in :func:`kgfast.ops.pairwise_scores`; its gradient is dense.
    score, dims
        As in :func:`kgfast.ops.pairwise_scores`.
    bias : Tensor, optional
        ``[N]`` or ``[1]`` floating point, added to scores last.
    sparse : bool
        Give the table a ``torch.sparse_coo`` gradient that holds only the rows named by the index
        (coalesced: each once, ascending), instead of a dense one. Not under ``torch.compile``.

    Returns
    -------
    Tensor
        ``[B, K]``, or ``[len(dims), B, K]``; float32, float64 for float64 queries.

    Raises
    ------
    ValueError, TypeError
        For a shape, dtype, device or id that does not fit, and a NaN or an infinity that takes
        part (:mod:`kgfast.ops.finite`); the message names the argument and the first offending
        place.
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
    _check_index(index, queries, table)
    if sparse and torch.compiler.is_compiling():
        raise RuntimeError(
            "indexed_scores: sparse=True gives a gradient whose size depends on the values of the "
            "index, so it is eager only; use sparse=False under torch.compile"
        )
    scores: Tensor = torch.ops.kgfast.indexed_scores(
        queries,
        table,
        index,
        score,
        bias,
        factor,
        None if dims is None else list(dims),
        sparse,
        common.chosen_backend(queries),
    )
    return scores


def _check_index(index: Tensor, queries: Tensor, table: Tensor) -> None:
    check_tensor("index", index)
    if index.dtype != torch.int64:
        raise TypeError(f"index must be int64; got {index.dtype}")
    if index.ndim != 2 or len(index) != len(queries):
        raise ValueError(
            f"index must have shape [{len(queries)}, K], a row per query; got {list(index.shape)}"
        )
    check_device("index", index, table, "the rows of the table")


def _check_range(index: Tensor, count: int) -> None:
    if not index.numel():
        return
    low, high = torch.aminmax(index)
    if int(low) < 0 or int(high) >= count:
        row, column = ((index < 0) | (index >= count)).nonzero()[0].tolist()
        allowed = f"0 .. {count - 1}" if count else "empty: the table has no rows"
        raise ValueError(
            f"index[{row}, {column}] must be in {allowed}; got {int(index[row, column])}"
        )


@operator("indexed_scores")
def _indexed_scores(
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    bias: Tensor | None,
    factor: Tensor | None,
    dims: Sequence[int] | None,
    sparse: bool,
    backend: str,
) -> Tensor:
    _check_range(index, len(table))
    if not index.numel():
        return common.empty_scores(queries, index.shape, dims)
    facts = get_score(score)
    check_moves(queries, factor, facts)
    with common.no_autocast(queries.device):
        scores: Tensor = common.backend_kernel(backend, "indexed", "indexed_scores")(
            queries, table, index.contiguous(), score, bias=bias, factor=factor, dims=dims
        )
        operands = queries, table, bias, factor, facts
        check_scores(scores, *operands, dims=dims, index=index, table_name="table")
    return scores


@_indexed_scores.fake
def _(given: SimpleNamespace) -> Tensor:
    return common.empty_scores(given.queries, given.index.shape, given.dims)


# Two backwards: one whose results have known sizes, so that it compiles, and one that returns the
# rows that the index names, as ids [U] and gradients [U, G].


@operator("indexed_scores_backward")
def _indexed_scores_backward(
    grad: Tensor,
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    bias: Tensor | None,
    factor: Tensor | None,
    dims: Sequence[int] | None,
    backend: str,
    need: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    arguments = (grad, queries, table, index, score, bias, factor, dims, backend)
    if backend == "cpu" and grad.numel() and (need[1] or need[3]):
        return _dense_gradients(*arguments, need)
    grad_queries, ids, rows, grad_bias, factor_rows = _gradients(*arguments, need)
    wanted = [False, need[1], False, need[3]]
    _, grad_table, _, grad_factor = common.zero_gradients((queries, table, bias, factor), wanted)
    if need[1]:
        grad_table.index_copy_(0, ids, rows)
    if need[3]:
        grad_factor.index_copy_(0, ids, factor_rows)
    return grad_queries, grad_table, grad_bias, grad_factor


@_indexed_scores_backward.fake
def _(given: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tensors = given.queries, given.table, given.bias, given.factor
    gradients = common.zero_gradients(tensors, given.need)
    return gradients[0], gradients[1], gradients[2], gradients[3]


@operator("indexed_scores_backward_rows")
def _indexed_scores_backward_rows(
    grad: Tensor,
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    bias: Tensor | None,
    factor: Tensor | None,
    dims: Sequence[int] | None,
    backend: str,
    need: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_queries, ids, rows, grad_bias, factor_rows = _gradients(
        grad, queries, table, index, score, bias, factor, dims, backend, need
    )
    wanted = [False, False, False, need[3]]
    _, _, _, grad_factor = common.zero_gradients((queries, table, bias, factor), wanted)
    if need[3]:
        grad_factor.index_copy_(0, ids, factor_rows)
    if not need[1]:
        ids, rows = ids[:0].clone(), rows[:0].clone()
    return grad_queries, ids, rows, grad_bias, grad_factor


@_indexed_scores_backward_rows.fake
def _(given: SimpleNamespace) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grad_queries, _, grad_bias, grad_factor = common.zero_gradients(
        (given.queries, given.table, given.bias, given.factor), given.need
    )
    count = torch.library.get_ctx().new_dynamic_size()
    rows = given.table.new_empty(count, given.table.shape[1])
    return grad_queries, given.index.new_empty(count), rows, grad_bias, grad_factor


def _gradients(
    grad: Tensor,
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    bias: Tensor | None,
    factor: Tensor | None,
    dims: Sequence[int] | None,
    backend: str,
    need: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, of the rows that the index names (ids and rows), of bias and factor.

    The factor's are rows for the same ids.
    """
    nothing = not grad.numel()
    grad_queries, _, grad_bias = common.zero_gradients(
        (queries, table, bias), [nothing and need[0], False, nothing and need[2]]
    )
    ids, rows = index.new_empty(0), table.new_empty(0, table.shape[1])
    factor_rows = rows if factor is None else factor.new_empty(0, factor.shape[1])
    index = index.contiguous()
    of_kernel = need[0], need[1] or need[3], need[3]
    if not nothing and any(of_kernel):
        with common.no_autocast(queries.device):
            for_queries, for_rows, for_factor = common.backend_kernel(
                backend, "indexed", "indexed_backward"
            )(
                grad.contiguous(),
                queries,
                table,
                index,
                score,
                factor=factor,
                dims=dims,
                need=of_kernel,
            )
        if need[0]:
            grad_queries = for_queries
        if of_kernel[1]:
            ids, rows = for_rows
        if need[3]:
            factor_rows = for_factor
    if bias is not None and need[2] and not nothing:
        grad_bias = _bias_gradient(grad, index, bias)
    return grad_queries, ids, rows, grad_bias, factor_rows


def _dense_gradients(
    grad: Tensor,
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    bias: Tensor | None,
    factor: Tensor | None,
    dims: Sequence[int] | None,
    backend: str,
    need: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same where a backend writes rows to their places in the whole table's gradient."""
    nothing, _, _, grad_bias, _ = _gradients(
        *(grad, queries, table, index, score, bias, factor, dims, backend),
        (False, False, need[2], False),
    )
    with common.no_autocast(queries.device):
        gradients = common.backend_kernel(backend, "indexed", "indexed_backward_dense")(
            grad.contiguous(),
            queries,
            table,
            index,
            score,
            factor=factor,
            dims=dims,
            need=(need[0], need[1], need[3]),
        )
    of_queries, of_table, of_factor = (
        gradient if needed else nothing.clone()
        for gradient, needed in zip(gradients, (need[0], need[1], need[3]), strict=True)
    )
    return of_queries, of_table, grad_bias, of_factor


def _bias_gradient(grad: Tensor, index: Tensor, bias: Tensor) -> Tensor:
    """Gradient of a bias ``[N]`` or ``[1]``, in the order of the index."""
    per_pair = grad.double().reshape(-1, index.numel()).sum(0)  # [B * K]
    if len(bias) == 1:
        return common.bias_gradient(per_pair, bias)
    ids, owner = index.flatten().unique(return_inverse=True)
    # Unlike index_add_, this sums in a fixed order on every device.
    sums = per_pair.new_zeros(len(ids)).index_put_((owner,), per_pair, accumulate=True)
    zeros = torch.zeros(bias.shape, dtype=bias.dtype, device=bias.device)
    return zeros.index_copy_(0, ids, sums.to(bias.dtype))


def _save(ctx: Any, given: SimpleNamespace, output: Tensor) -> None:
    ctx.save_for_backward(given.queries, given.table, given.index, given.bias, given.factor)
    ctx.score, ctx.dims = given.score, given.dims
    ctx.sparse, ctx.backend = given.sparse, given.backend


def _backward(ctx: Any, need: list[bool], grad: Tensor) -> tuple[Tensor, ...]:
    queries, table, index, bias, factor = ctx.saved_tensors
    arguments = grad, queries, table, index, ctx.score, bias, factor, ctx.dims, ctx.backend, need
    if ctx.sparse:
        grad_queries, ids, rows, grad_bias, grad_factor = (
            torch.ops.kgfast.indexed_scores_backward_rows(*arguments)
        )
        grad_table = torch.sparse_coo_tensor(
            ids[None],
            rows,
            table.shape,
            device=rows.device,
            check_invariants=False,
            is_coalesced=True,
        )
    else:
        grad_queries, grad_table, grad_bias, grad_factor = torch.ops.kgfast.indexed_scores_backward(
            *arguments
        )
    return grad_queries, grad_table, grad_bias, grad_factor


_indexed_scores.differentiate(_backward, _save, wrt=("queries", "table", "bias", "factor"))
_indexed_scores_backward.refuse_second_derivative("indexed_scores")
_indexed_scores_backward_rows.refuse_second_derivative("indexed_scores")
