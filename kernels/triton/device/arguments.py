"""Arguments of kernels: rows read in place, in any dtype, stride, complex layout and crop.

Arguments travel as named tuples of pointers and strides; missing arguments are None. The
:class:`Form` and the tile, for which a kernel is compiled, travel as constants.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import triton
import triton.language as tl


class Norm(IntEnum):
    """Norm of candidates that a bound needs."""

    NONE = 0
    SUM = 1  # sum of magnitudes
    EUCLIDEAN = 2
    FACTOR = 3  # the largest |b - 1| of the factor


NO_NORM: tl.constexpr = tl.constexpr(Norm.NONE.value)
SUM_NORM: tl.constexpr = tl.constexpr(Norm.SUM.value)
EUCLIDEAN_NORM: tl.constexpr = tl.constexpr(Norm.EUCLIDEAN.value)
FACTOR_NORM: tl.constexpr = tl.constexpr(Norm.FACTOR.value)


class RowView(NamedTuple):
    """View: feature ``k`` of plane ``p`` of row ``r`` is ``ptr + r row + p plane + k step``."""

    ptr: Any
    row: int
    plane: int
    step: int


class Vector(NamedTuple):
    """View of a vector: entry ``i`` lies at ``ptr + i step``."""

    ptr: Any
    step: int


class Views(NamedTuple):
    """Tensors from which pairs are scored, in place.

    Kernels make views and lanes anew, since Triton 3.6 loses the members of nested tuples that are
    arguments in a loop or a branch.
    """

    queries: RowView
    table: RowView
    factor: Any  # RowView of one plane; None: there is no factor
    bias: Vector | None


class Lanes(NamedTuple):
    """Rows that lanes stand for: ``ids``, or else ``first ..``."""

    rows: RowView
    ids: Any
    first: int
    status: Any  # least row that is not finite, see note_bad_rows; None: rows are not checked


class Out(NamedTuple):
    """Memory for scores ``[num_crops, queries, candidates]`` of column stride 1."""

    ptr: Any
    row: int
    crops: Any  # [num_crops][2] width, first element in ``ptr``; widths do not fall; None: one crop
    num_crops: int | None  # None: an argument of the kernel


class Form(NamedTuple):
    """Constants for which kernels of a score are compiled; made by :func:`host.views.form_of`."""

    term: int  # terms.PRODUCT, ...
    planes: int  # planes of a candidate
    is_root: bool  # the score is the root of the sum of terms
    is_rscf: bool  # the query brings a scale of the candidate, and may be moved
    has_factor: bool  # the query is moved by a of the query times b of the factor
    has_bias: bool = False
    norm: int = 0  # a value of Norm, which the bound needs


class TileShape(NamedTuple):
    """Rows and lanes, or rows and features, of one program."""

    rows: int
    lanes: int


@triton.constexpr_function
def query_planes(form):
    """Return the planes of a packed query."""
    return 2 * form.planes + form.has_factor if form.is_rscf else form.planes


@triton.constexpr_function
def candidate_planes(form):
    """Return the planes of a packed candidate, with the factor."""
    return form.planes + form.has_factor


@triton.constexpr_function
def num_norms(form):
    """Return the number of norms of a candidate that a bound needs."""
    return int(form.norm != Norm.NONE.value)


@triton.constexpr_function
def threshold_rows(form):
    """Return the number of thresholds of a query, see thresholds.py."""
    return 4 if form.is_rscf else 3


@triton.jit
def widen(values):
    """Return bfloat16 as float32, by bits, so denormals, too, on every target; others unchanged."""
    wide = values
    if values.dtype == tl.bfloat16:
        bits = values.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        wide = bits.to(tl.float32, bitcast=True)
    return wide


@triton.jit
def load_as(pointer, mask, DTYPE: tl.constexpr):
    """Load numbers of a table as float32 or float64; 0 where masked, if there is a mask."""
    values = tl.load(pointer) if mask is None else tl.load(pointer, mask=mask, other=0.0)
    return widen(values).to(DTYPE)


@triton.jit
def plane_at(rows, PLANE: tl.constexpr):
    """Return the offset of a plane, in 64 bits: the stride of transposed rows may be 2**29."""
    return tl.full((), PLANE, tl.int64) * rows.plane


@triton.jit
def is_finite(values):
    """Return False for NaN and infinities."""
    return tl.abs(values) < float("inf")


@triton.jit
def note_bad_rows(p_status, rows, is_bad):
    """Lower ``p_status`` to the least of the bad rows."""
    least = tl.min(tl.where(is_bad, rows, 9223372036854775807), 0)
    if least < 9223372036854775807:
        tl.atomic_min(p_status, least, sem="relaxed")


@triton.jit
def find_last_not_above(p_sorted, count, value):
    """Return the index of the last of ``count`` sorted numbers not above ``value``, else -1."""
    low = tl.zeros_like(value)  # the answer + 1 lies in low .. high
    high = low + count
    width = tl.full((), count, tl.int64)
    while width > 0:
        middle = (low + high + 1) // 2
        fits = (low < high) & (tl.load(p_sorted + middle - 1, mask=middle > 0, other=0) <= value)
        low = tl.where(fits, middle, low)
        high = tl.where((low < high) & (fits == 0), middle - 1, high)
        width = width // 2
    return low - 1
