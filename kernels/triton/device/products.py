"""Products on tensor cores: scores of ``dot``, and slopes of scores times rows.

Operands are read in place, ``DEPTH`` features (or rows, of gradients) at a time. Numbers are
multiplied as three products of their tf32 parts (``tf32x3``), which errs by about 2**-21 of ``|q|
|c|``, as float32 does; or as one product if the caller allows that (``tf32``). With ``bf16``,
queries, table and slopes were rounded to bfloat16 before, and are multiplied as stored. Without
such units, or where they save nothing (:func:`precision_of` in host/matmul.py), precision is
``ieee``. Tensor cores add in their own fixed order, so two runs are
bit-equal. No library is used that chooses algorithms at run time.

Cost model (sm_90): a 128 x 64 tile by 8 warps, 64 x 64 by 4 of gradients; tf32x3 issues three
tensor core instructions where tf32 issues one, bf16 half of one. No spills; 80 KiB of shared
memory. ``ieee`` on GeForce: at most 1.7 slots a product, the tile of the scores 1.2.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import RowView, Vector, widen
from .pull import put


class Product(NamedTuple):
    """Way of computing products; a constant."""

    depth: int  # numbers that are multiplied at a time
    precision: str  # ieee, tf32, tf32x3, bf16
    multiple: int  # divisor of strides and of the number of features


class Factors(NamedTuple):
    """Operands of a product, in place, and the biases of the candidates."""

    queries: RowView
    table: RowView
    bias: Vector | None


class Weighted(NamedTuple):
    """Slopes ``[B][row]``, the factors of their product, and the target of the result."""

    slopes: Any
    row: int
    others: RowView
    grad: RowView  # for queries: ``num_rows`` rows of a split after the rows of the last split


class GradTile(NamedTuple):
    """Rows and features of a program that multiplies slopes, and the use of the product."""

    rows: int
    lanes: int
    of_queries: bool = False  # the gradient of queries; else of the table
    adds: bool = False  # adds to the present values
    multiple: int = 1  # divisor of the gradient's stride and number of features
    of_slopes: int = 16  # divisor of the stride of slopes


@triton.jit
def aligned(number, MULTIPLE: tl.constexpr):
    """Return a multiple of ``MULTIPLE``, in a form that the compiler recognises."""
    return number // MULTIPLE * MULTIPLE


@triton.jit
def load_factor(pointer, mask, AS_STORED: tl.constexpr):
    """Load numbers as stored, in bfloat16, or else as float32."""
    values = tl.load(pointer, mask=mask, other=0.0)
    return values if AS_STORED else widen(values).to(tl.float32)


@triton.jit
def add_product(total, a, b, PRECISION: tl.constexpr):
    """Add the product of ``a`` and ``b``, loaded by :func:`load_factor`, to ``total``."""
    if PRECISION == "bf16":
        total = tl.dot(a, b, total)
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def multiply(factors, sizes, num_features, TILE: tl.constexpr, PRODUCT: tl.constexpr):
    """Return the products of a tile; ``sizes`` are the numbers of queries and of candidates."""
    # Separate names, since Triton 3.6 loses members of constants in a loop.
    DEPTH: tl.constexpr = PRODUCT.depth
    PRECISION: tl.constexpr = PRODUCT.precision
    AS_STORED: tl.constexpr = PRECISION == "bf16"
    num_queries, num_candidates = sizes
    queries = factors.queries
    table = factors.table
    query = tl.program_id(0) * TILE.rows + tl.arange(0, TILE.rows)
    candidate = tl.program_id(1) * TILE.lanes + tl.arange(0, TILE.lanes)
    query = tl.minimum(query, num_queries - 1).to(tl.int64)
    candidate = tl.minimum(candidate, num_candidates - 1).to(tl.int64)
    p_q = queries.ptr + query[:, None] * aligned(queries.row, PRODUCT.multiple)
    p_c = table.ptr + candidate[:, None] * aligned(table.row, PRODUCT.multiple)
    query_step = queries.step
    table_step = table.step
    stop = aligned(num_features, PRODUCT.multiple)
    total = tl.zeros(TILE, tl.float32)
    for feature in range(0, stop, DEPTH):
        k = feature + tl.arange(0, DEPTH)[None, :]
        mask = k < stop
        k = k.to(tl.int64)
        q = load_factor(p_q + k * query_step, mask, AS_STORED)
        c = load_factor(p_c + k * table_step, mask, AS_STORED)
        total = add_product(total, q, tl.trans(c), PRECISION)
    return total


@triton.jit(do_not_specialize=["num_rows", "num_others", "num_features"])
def multiply_slopes(
    weighted,
    num_rows,
    num_others,
    num_features,
    TILE: tl.constexpr,  # GradTile
    PRODUCT: tl.constexpr,
):
    """Compute a tile of the gradient of queries, of one split of the candidates; or of a table."""
    M: tl.constexpr = TILE.rows
    N: tl.constexpr = TILE.lanes
    OF_QUERIES: tl.constexpr = TILE.of_queries
    DEPTH: tl.constexpr = PRODUCT.depth
    PRECISION: tl.constexpr = PRODUCT.precision
    AS_STORED: tl.constexpr = PRECISION == "bf16"
    others = weighted.others
    grad = weighted.grad
    row = tl.program_id(0) * TILE.rows + tl.arange(0, TILE.rows)
    m_row = row < num_rows
    feature = tl.program_id(1) * TILE.lanes + tl.arange(0, TILE.lanes)
    m_padded = feature < tl.cdiv(num_features, PRODUCT.multiple) * PRODUCT.multiple
    slope_row = aligned(weighted.row, TILE.of_slopes)
    if OF_QUERIES:
        p_slopes = weighted.slopes + row.to(tl.int64)[:, None] * slope_row
    else:
        p_slopes = weighted.slopes + row.to(tl.int64)[None, :]
    other_row = aligned(others.row, PRODUCT.multiple)
    p_others = others.ptr + (feature.to(tl.int64) * others.step)[None, :]
    steps = tl.cdiv(tl.cdiv(num_others, DEPTH), tl.num_programs(2))
    first = tl.program_id(2) * steps * DEPTH
    last = tl.minimum(first + steps * DEPTH, num_others)
    padded = last if OF_QUERIES else num_rows
    if AS_STORED:  # reads 8 at once: numbers beside the candidates are multiplied by 0
        padded = tl.cdiv(padded, 16) * 16
    total = tl.zeros((M, N), tl.float32)
    for other in range(first, last, DEPTH):
        o = other + tl.arange(0, DEPTH)
        m_other = o < last
        if OF_QUERIES:
            mask = m_row[:, None] & (o < padded)[None, :]
            slopes = load_factor(p_slopes + o[None, :], mask, AS_STORED)
        else:
            mask = m_other[:, None] & (row < padded)[None, :]
            p_tile = p_slopes + o.to(tl.int64)[:, None] * slope_row
            slopes = tl.trans(load_factor(p_tile, mask, AS_STORED))
        p_tile = p_others + o.to(tl.int64)[:, None] * other_row
        mask = m_other[:, None] & m_padded[None, :]
        factor = load_factor(p_tile, mask, AS_STORED)
        total = add_product(total, slopes, factor, PRECISION)
    row = row.to(tl.int64) + tl.program_id(2).to(tl.int64) * num_rows
    m_feature = feature < aligned(num_features, TILE.multiple)
    p_grad = grad.ptr + row[:, None] * aligned(grad.row, TILE.multiple)
    p_grad += feature.to(tl.int64)[None, :] * grad.step
    mask = m_row[:, None] & m_feature[None, :]
    put(p_grad, total, mask, TILE.adds)
