"""Tensors in the kernels' form: pointers and strides, and the constants of a score."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...operands import Operands
from ...scores import Score, Term
from ..device import terms
from ..device.arguments import Form, Norm, RowView, Vector, Views


def term_of(score: Score) -> Term:
    """Return the term that a feature adds to the sum.

    Raises
    ------
    ValueError
        If no kernel has the term.
    """
    if score.term not in terms.WRITTEN:
        raise ValueError(
            f"score: the triton backend has no kernels for {score.name!r}: {score.equation}. "
            f'Use kgfast.use_backend("reference")'
        )
    return score.term


def form_of(operands: Operands, norm: Norm = Norm.NONE) -> Form:
    """Return the form for which kernels are compiled, with the ``norm`` that a bound needs."""
    score, has_factor = operands.score, operands.has_factor
    term, has_bias = term_of(score), operands.bias is not None
    facts = term.number, term.planes, term.root, score.is_rscf
    return Form(*facts, has_factor, has_bias, norm.value)


def views_of(operands: Operands) -> Views:
    """Return the tensors from which pairs are scored, in place."""
    factor = None if operands.factor is None else plane_of(operands.factor)
    table = rows_of(operands.table, operands.score)
    return Views(queries_of(operands), table, factor, bias_of(operands))


def queries_of(operands: Operands, grad: Tensor | None = None) -> RowView:
    rows = operands.queries if grad is None else grad
    return rows_of(rows, operands.score, operands.query_planes)


def rows_of(rows: Tensor, score: Score, planes: int | None = None) -> RowView:
    """View ``rows [R, G]``, candidates or gradients; ``planes`` for other rows."""
    starts, step = score.columns(rows.shape[1], planes)
    row, column = rows.stride()
    return RowView(rows, row, starts[min(1, len(starts) - 1)] * column, step * column)


def plane_of(rows: Tensor) -> RowView:
    """View ``[R, D]`` as rows of one plane: the factor, or coefficients."""
    row, step = rows.stride()
    return RowView(rows, row, 0, step)


def bias_of(operands: Operands) -> Vector | None:
    """View the biases ``[N]`` of the table's rows, if there are any."""
    bias = operands.candidates.whole_bias
    return None if bias is None else Vector(bias, bias.stride(0))


def crop_order(crops: Sequence[int], out: Tensor) -> Tensor:
    """Return the widths and the start of each in ``out [C, ...]``, ``[C, 2]``, without waits."""
    order = torch.empty(len(crops), 2, dtype=torch.int64, device=out.device)
    for place, row in enumerate(order):
        row[0].fill_(crops[place])
        row[1].fill_(place * out.stride(0))
    return order


def packed_planes(operands: Operands) -> tuple[int, int]:
    """Return numbers per feature of a packed query, and of a packed candidate."""
    return operands.query_planes, operands.score.planes + operands.has_factor
