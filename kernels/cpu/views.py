"""Tensors as the extension sees them."""

import torch
from torch import Tensor

from ..checks import nonfinite_error
from ..scores import Score

_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
_SCORES = {"dot": 0, "l1": 1, "l2": 2, "rotate": 3, "rotate_interleaved": 3}
_FILTERS = {"rscf_rotate": 4, "rscf_l1": 5, "rscf_l2": 6}  # without a factor: 3 more

View = tuple[int, int, int, list[int], int]


def score_code(score: Score, factor: Tensor | None = None) -> int:
    """The extension's number for a score; layouts are in the views."""
    if score.is_rscf:
        return _FILTERS[score.name] + (3 if factor is None else 0)
    return _SCORES[score.name]


def view_of(rows: Tensor, score: Score, planes: int | None = None) -> View:
    """Pointer, dtype, row stride, column of each plane and column step of ``rows [R, G]``.

    ``planes``: of a row of so many; those of a candidate by default.
    """
    starts, step = score.columns(rows.shape[1], planes)
    row_stride, column_stride = rows.stride()
    return (
        rows.data_ptr(),
        _DTYPES[rows.dtype],
        row_stride,
        [start * column_stride for start in starts],
        step * column_stride,
    )


def query_view(queries: Tensor, score: Score, factor: Tensor | None) -> View:
    """The view of ``queries [B, F]``, which have planes of their own."""
    return view_of(queries, score, score.query_planes(factor is not None))


def factor_view(factor: Tensor | None) -> View | None:
    """The view of a ``factor [R, D]``."""
    if factor is None:
        return None
    row_stride, column_stride = factor.stride()
    return factor.data_ptr(), _DTYPES[factor.dtype], row_stride, [0], column_stride


def bias_view(bias: Tensor | None, count: int) -> View | None:
    """The view of a ``bias [N]`` or ``[1]`` of ``count`` candidates, as one row."""
    return None if bias is None else factor_view(bias.expand(count)[None])


def address(tensor: Tensor | None) -> int:
    """The data pointer, 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def raise_nonfinite(rows: tuple[int, int, int]) -> None:
    """Raise for the first of the rows of queries, candidates and factor that is not -1."""
    for name, row in zip(("queries", "candidates", "factor"), rows, strict=True):
        if row >= 0:
            raise nonfinite_error(name, row)
