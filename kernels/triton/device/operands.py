"""Reading rows in place: any dtype, any row and column stride, either complex layout, any crop.

A kernel takes a table as four arguments, ``p_table, row_stride, plane_stride, step``; the host
makes them with :func:`view_args`.
"""

import triton
import triton.language as tl
from torch import Tensor

from ...scores import Score


def view_args(
    rows: Tensor,
    score: Score,
    pointer: str = "p_table",
    prefix: str = "",
    planes: int | None = None,
) -> dict[str, Tensor | int]:
    """The four arguments that stand for ``rows [R, G]``; strides are in elements.

    ``planes``: of rows that are not candidates.
    """
    starts, step = score.columns(rows.shape[1], planes)
    row_stride, column_stride = rows.stride()
    return {
        pointer: rows,
        f"{prefix}row_stride": row_stride,
        f"{prefix}plane_stride": starts[min(1, len(starts) - 1)] * column_stride,
        f"{prefix}step": step * column_stride,
    }


def query_args(queries: Tensor, score: Score, factor: Tensor | None) -> dict[str, Tensor | int]:
    """As :func:`view_args`, of queries."""
    return view_args(queries, score, "p_query", "q_", score.query_planes(factor is not None))


def view_of_factor(factor: Tensor) -> dict[str, Tensor | int]:
    """The factor ``[N, D]`` as a table of one plane."""
    row_stride, step = factor.stride()
    return {"p_table": factor, "row_stride": row_stride, "plane_stride": 0, "step": step}


def factor_args(factor: Tensor | None) -> dict[str, Tensor | int | bool | None]:
    """The factor's rows ``[N, D]``, read if ``HAS_FACTOR``."""
    row_stride, step = (0, 0) if factor is None else factor.stride()
    return {
        "p_factor": factor,
        "f_row_stride": row_stride,
        "f_step": step,
        "HAS_FACTOR": factor is not None,
    }


@triton.jit
def widen(values):
    """Bfloat16 as float32, by its bits: denormals too, on every target; others as they are."""
    wide = values
    if values.dtype == tl.bfloat16:
        bits = values.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        wide = bits.to(tl.float32, bitcast=True)
    return wide


@triton.jit
def is_finite(values):
    """False for NaN and infinities."""
    return tl.abs(values) < float("inf")


@triton.jit
def note_bad_rows(p_status, rows, is_bad):
    """Lower ``p_status`` to the least of the bad rows."""
    least = tl.min(tl.where(is_bad, rows, 9223372036854775807), 0)
    if least < 9223372036854775807:
        tl.atomic_min(p_status, least, sem="relaxed")


@triton.jit
def find_last_not_above(p_sorted, count, value, steps):
    """Index of the last of ``count`` sorted numbers that is not above ``value``, else -1.

    ``steps`` is at least the number of binary digits of ``count``.
    """
    low = tl.zeros_like(value)  # the answer + 1 lies in low .. high
    high = low + count
    for _ in range(steps):
        middle = (low + high + 1) // 2
        fits = (low < high) & (tl.load(p_sorted + middle - 1, mask=middle > 0, other=0) <= value)
        low = tl.where(fits, middle, low)
        high = tl.where((low < high) & (fits == 0), middle - 1, high)
    return low - 1
