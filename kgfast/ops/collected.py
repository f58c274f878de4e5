"""Scores of rows of a table whose gradient is handed on as those rows, not held as a table's.

What trains a table by its rows takes ids and gradients. Autograd could carry them only as a
``torch.sparse_coo`` tensor, which would be made to be taken apart again.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from kgfast.kernels.operands import Need, Operands
from kgfast.ops import run
from kgfast.ops.checks import check_operands, safe_rows
from kgfast.ops.differentiable import chosen_backend, full_precision
from kgfast.ops.scores import bias_gradient_of, check_row_index

Collect = Callable[[Tensor, Tensor], None]


def collected_scores(operands: Operands, index: Tensor, collect: Collect) -> Tensor:
    """Scores as of :func:`kgfast.ops.indexed_scores`, whose backward hands on the table's rows.

    Parameters
    ----------
    operands : Operands
        Without a factor. Autograd carries the gradients of queries and bias.
    index : Tensor
        int64 ``[B, K]``.
    collect : callable
        Takes, in each backward, the ids int64 ``[U]`` that the index names, ascending and each
        once, and the gradients ``[U, G]`` of their rows.

    Returns
    -------
    Tensor
        ``[B, K]``, or with a leading axis of crops. Its gradient has no gradient.

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.ops.indexed_scores`.
    """
    queries, table = full_precision(operands.queries), operands.table
    bias, dims = operands.bias, operands.dims
    check_operands(queries, table, operands.score.name, bias, None, dims, table_name="table")
    check_row_index(index, queries, table)
    arguments = queries, bias, operands, index, collect
    scores: Tensor = _CollectedScores.apply(*arguments)  # type: ignore[no-untyped-call]
    return scores


class _CollectedScores(Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        bias: Tensor | None,
        operands: Operands,
        index: Tensor,
        collect: Collect,
    ) -> Tensor:
        index = safe_rows(index, operands.candidates.num_rows)
        ctx.save_for_backward(queries, operands.table, bias, index)
        ctx.score, ctx.dims, ctx.collect = operands.score.name, operands.dims, collect
        ctx.backend = chosen_backend(queries)
        operands = replace(operands, queries=queries)
        return run.scores(operands, index, backend=ctx.backend, table_name="table")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, table, bias, index = ctx.saved_tensors
        of_queries, of_bias = ctx.needs_input_grad[:2]
        operands = run.operands_of(queries, table, ctx.score, dims=ctx.dims)
        gradients = run.backward(
            operands, grad, index, need=Need(of_queries, True), rows_only=True, backend=ctx.backend
        )
        assert gradients.ids is not None
        assert gradients.table is not None
        ctx.collect(gradients.ids, gradients.table)
        grad_bias = bias_gradient_of(grad, index, bias) if of_bias else None
        return gradients.queries, grad_bias, None, None, None
