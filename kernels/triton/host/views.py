"""Tensors as kernels take them: pointers and strides, and what a score is compiled for."""

import torch
from torch import Tensor

from ...operands import Operands
from ...scores import Moves, Score
from ..device import terms
from ..device.arguments import Form, Norm, Rows, Vector, Views

PRODUCT: int = terms.PRODUCT.value
MAGNITUDE: int = terms.MAGNITUDE.value
SQUARE: int = terms.SQUARE.value
MODULUS: int = terms.MODULUS.value
_TERMS = {  # of a score that is (monotone, a root), by its planes
    ((False, False), 1): PRODUCT,
    ((True, False), 1): MAGNITUDE,
    ((True, True), 1): SQUARE,
    ((True, False), 2): MODULUS,
}
_MOVED = {Moves.SHIFT: (MAGNITUDE, SQUARE), Moves.PHASE: (MODULUS,)}


def term_of(score: Score) -> int:
    """What a feature adds to the sum, of the numbers in device/terms.py.

    Raises
    ------
    ValueError
        If the kernels have no such sum, or no such move of its queries.
    """
    term = _TERMS.get(((score.monotone, score.root), score.planes))
    if term is None or (score.is_rscf and term not in _MOVED.get(score.moves, ())):
        raise ValueError(
            f"score: the triton backend has no kernels for {score.name!r}: {score.equation}. "
            f'Use kgfast.use_backend("reference")'
        )
    return term


def form_of(operands: Operands, norm: Norm = Norm.NONE) -> Form:
    """What kernels are compiled for; layouts are in the strides. ``norm``: that a bound needs."""
    score, has_factor = operands.score, operands.has_factor
    term, has_bias = term_of(score), operands.bias is not None
    return Form(term, score.planes, score.root, score.is_rscf, has_factor, has_bias, norm.value)


def views_of(operands: Operands) -> Views:
    """What pairs are scored from, in place."""
    factor, bias = operands.factor, operands.candidates.whole_bias
    return Views(
        queries_of(operands),
        rows_of(operands.table, operands.score),
        None if factor is None else plane_of(factor),
        None if bias is None else vector_of(bias),
    )


def queries_of(operands: Operands, grad: Tensor | None = None) -> Rows:
    """The queries, or a gradient of them."""
    rows = operands.queries if grad is None else grad
    return rows_of(rows, operands.score, operands.query_planes)


def rows_of(rows: Tensor, score: Score, planes: int | None = None) -> Rows:
    """``rows [R, G]``, candidates or gradients of them; ``planes``: of other rows."""
    starts, step = score.columns(rows.shape[1], planes)
    row, column = rows.stride()
    return Rows(rows, row, starts[min(1, len(starts) - 1)] * column, step * column)


def plane_of(rows: Tensor) -> Rows:
    """``[R, D]`` as rows of one plane: the factor, or coefficients."""
    row, step = rows.stride()
    return Rows(rows, row, 0, step)


def vector_of(values: Tensor) -> Vector:
    """``[N]`` of any stride."""
    return Vector(values, values.stride(0))


def packed_planes(operands: Operands) -> tuple[int, int]:
    """Numbers a feature of a packed query, and of a packed candidate."""
    return operands.query_planes, operands.score.planes + operands.has_factor


def are_rounded(operands: Operands) -> bool:
    """Whether float32 kernels round what is stored."""
    return torch.float64 in (operands.queries.dtype, operands.table.dtype)
