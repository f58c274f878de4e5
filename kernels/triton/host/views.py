"""Tensors as kernels take them: pointers and strides, and what a score is compiled for."""

from torch import Tensor

from ...scores import Score
from ..device import terms
from ..device.operands import Form, Operands, Rows, Vector

_TERMS = {
    "dot": terms.PRODUCT,
    "l1": terms.MAGNITUDE,
    "l2": terms.SQUARE,
    "rotate": terms.MODULUS,
    "rotate_interleaved": terms.MODULUS,
    "rscf_rotate": terms.MODULUS,
    "rscf_l1": terms.MAGNITUDE,
    "rscf_l2": terms.SQUARE,
}


def form_of(score: Score, has_factor: bool, has_bias: bool = False, norm: int = 0) -> Form:
    """What kernels are compiled for; layouts are in the strides.

    Raises
    ------
    ValueError
        If the kernels do not know the score.
    """
    if score.name not in _TERMS:
        raise ValueError(
            f"score: the triton backend knows {', '.join(_TERMS)}; got {score.name!r}. "
            f'Use kgfast.use_backend("reference")'
        )
    term = _TERMS[score.name].value
    return Form(term, score.planes, takes_root(score), score.is_rscf, has_factor, has_bias, norm)


def takes_root(score: Score) -> bool:
    """Whether the score is the root of the sum of its terms."""
    return score.name in ("l2", "rscf_l2")


def rows_of(rows: Tensor, score: Score, planes: int | None = None) -> Rows:
    """``rows [R, G]``, candidates or gradients of them; ``planes``: of other rows."""
    starts, step = score.columns(rows.shape[1], planes)
    row, column = rows.stride()
    return Rows(rows, row, starts[min(1, len(starts) - 1)] * column, step * column)


def queries_of(queries: Tensor, score: Score, factor: Tensor | None) -> Rows:
    """Queries, or gradients of them, beside a factor."""
    return rows_of(queries, score, score.query_planes(factor is not None))


def plane_of(rows: Tensor) -> Rows:
    """``[R, D]`` as rows of one plane: the factor, or coefficients."""
    row, step = rows.stride()
    return Rows(rows, row, 0, step)


def operands_of(
    queries: Tensor,
    table: Tensor,
    score: Score,
    factor: Tensor | None = None,
    bias: Tensor | None = None,
) -> Operands:
    """What pairs are scored from; ``bias [N]``."""
    return Operands(
        queries_of(queries, score, factor),
        rows_of(table, score),
        None if factor is None else plane_of(factor),
        None if bias is None else vector_of(bias),
    )


def vector_of(values: Tensor) -> Vector:
    """``[N]`` of any stride."""
    return Vector(values, values.stride(0))
