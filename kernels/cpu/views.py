"""Tensors as the extension sees them."""

import torch
from torch import Tensor

from ..scores import Score

_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
_SCORES = {"dot": 0, "l1": 1, "l2": 2, "rotate": 3, "rotate_interleaved": 3}

View = tuple[int, int, int, list[int], int]


def score_code(score: Score) -> int:
    """The extension's number for a score; layouts are in the views."""
    return _SCORES[score.name]


def view_of(rows: Tensor, score: Score) -> View:
    """Pointer, dtype, row stride, column of each plane and column step of ``rows [R, G]``."""
    starts, step = score.columns(rows.shape[1])
    row_stride, column_stride = rows.stride()
    return (
        rows.data_ptr(),
        _DTYPES[rows.dtype],
        row_stride,
        [start * column_stride for start in starts],
        step * column_stride,
    )


def address(tensor: Tensor | None) -> int:
    """The data pointer, 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()
