"""Losses of tiles of scores: of packed distances, and of products on tensor cores.

The reduction of a tile of scores stands in losses.py, and for a pool of negatives in negatives.py.
Gradients of products are here, too; gradients of distances are pulled (pull.py).

Operands of products are read in place, ``DEPTH`` features (or rows, of gradients) at a time.
Float32 numbers are multiplied as three products of their tf32 parts (``tf32x3``), which errs by
about 2**-21 of ``|q| |c|``, as float32 does; or as one product if the caller allows that
(``tf32``). Every float16 is a tf32, so that two such products, of the parts of the other factor,
are as exact (``tf32x2``). A table of bfloat16 is multiplied without conversion, with float32
numbers in three parts of bfloat16 each (``bf16x3``). With ``bf16``, queries, table and slopes were
rounded to bfloat16 before, and are multiplied as stored. Without such units, precision is ``ieee``.
Tensor cores add in their own fixed order, so two runs are bit-equal. No library is used that
chooses algorithms at run time.

Cost model (sm_90): a 128 x 64 tile by 8 warps, 64 x 64 by 4 of gradients; tf32x3 issues three
tensor core instructions where tf32 issues one, tf32x2 two, bf16 half of one. No spills; 80 KiB of
shared memory.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .arguments import RowView, Vector, load_as, widen
from .losses import reduce_tile
from .negatives import reduce_negatives
from .pull import narrow
from .score_tiles import sum_packed
from .terms import score_of


class Product(NamedTuple):
    """Way of computing products; a constant."""

    depth: int  # numbers that are multiplied at a time
    precision: str  # ieee, tf32, tf32x2, tf32x3, bf16x3, bf16
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


@triton.jit
def reduce_scores(raw, bias, labels, result, sizes, VARIANT: tl.constexpr):
    """Reduce a tile of scores ``raw`` before the bias."""
    LOSS: tl.constexpr = VARIANT.loss
    if LOSS.formula == "":
        reduce_tile(raw, bias, labels, result, sizes, VARIANT)
    else:
        reduce_negatives(raw, bias, labels, result, sizes, VARIANT)


@triton.jit(do_not_specialize=["num_queries", "num_candidates", "num_features"])
def distance_losses(
    packed,  # ScorePanels
    labels,  # RowLabels; for a pool of negatives RowInputs
    result,
    num_queries,
    num_candidates,
    num_features,
    VARIANT: tl.constexpr,
):
    """Reduce one tile of a chunk; packed operands are those of score_tiles.py."""
    FORM: tl.constexpr = VARIANT.form
    TILE: tl.constexpr = VARIANT.tile
    sizes = num_queries, num_candidates
    total = sum_packed(packed.queries, packed.panels, num_features, FORM, TILE)
    reduce_scores(score_of(total, FORM), packed.bias, labels, result, sizes, VARIANT)


@triton.jit
def aligned(number, MULTIPLE: tl.constexpr):
    """Return a multiple of ``MULTIPLE``, in a form that the compiler recognises."""
    return number // MULTIPLE * MULTIPLE


@triton.jit
def load_factor(pointer, mask, AS_STORED: tl.constexpr):
    """Load numbers as stored, in bfloat16, or else as float32."""
    if AS_STORED:
        values = tl.load(pointer, mask=mask, other=0.0)
    else:
        values = load_as(pointer, mask, tl.float32)
    return values


@triton.jit
def add_product(total, a, b, PRECISION: tl.constexpr):
    """Add the product of ``a`` and ``b``, loaded by :func:`load_factor`, to ``total``."""
    if PRECISION == "bf16":
        total = tl.dot(a, b, total)
    elif PRECISION == "bf16x3":
        high = a.to(tl.bfloat16)
        rest = a - widen(high)
        middle = rest.to(tl.bfloat16)
        low = (rest - widen(middle)).to(tl.bfloat16)
        total = tl.dot(low, b, total)
        total = tl.dot(middle, b, total)
        total = tl.dot(high, b, total)
    elif PRECISION == "tf32x2":
        high = (a.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)  # 11 bits
        total = tl.dot(a - high, b, total, input_precision="tf32")
        total = tl.dot(high, b, total, input_precision="tf32")
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit(do_not_specialize=["num_queries", "num_candidates", "num_features"])
def product_losses(
    factors,
    labels,
    result,
    num_queries,
    num_candidates,
    num_features,
    VARIANT: tl.constexpr,
):
    """Reduce one tile of a chunk, like :func:`distance_losses`."""
    TILE: tl.constexpr = VARIANT.tile
    PRODUCT: tl.constexpr = VARIANT.product
    # Separate names, since Triton 3.6 loses members of constants in a loop.
    DEPTH: tl.constexpr = PRODUCT.depth
    PRECISION: tl.constexpr = PRODUCT.precision
    BOTH_STORED: tl.constexpr = PRECISION == "bf16"
    TABLE_STORED: tl.constexpr = BOTH_STORED or PRECISION == "bf16x3"
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
        q = load_factor(p_q + k * query_step, k < stop, BOTH_STORED)
        c = load_factor(p_c + k * table_step, k < stop, TABLE_STORED)
        total = add_product(total, q, tl.trans(c), PRECISION)
    sizes = num_queries, num_candidates
    reduce_scores(total, factors.bias, labels, result, sizes, VARIANT)


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
    BOTH_STORED: tl.constexpr = PRECISION == "bf16"
    OTHERS_STORED: tl.constexpr = BOTH_STORED or PRECISION == "bf16x3"
    others = weighted.others
    grad = weighted.grad
    row = tl.program_id(0) * TILE.rows + tl.arange(0, TILE.rows)
    m_row = row < num_rows
    feature = tl.program_id(1) * TILE.lanes + tl.arange(0, TILE.lanes)
    m_padded = feature < tl.cdiv(num_features, PRODUCT.multiple) * PRODUCT.multiple
    slope_row = aligned(weighted.row, 16)
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
    if BOTH_STORED:  # reads 8 at once: numbers beside the candidates are multiplied by 0
        padded = tl.cdiv(padded, 16) * 16
    total = tl.zeros((M, N), tl.float32)
    for other in range(first, last, DEPTH):
        o = other + tl.arange(0, DEPTH)
        m_other = o < last
        if OF_QUERIES:
            mask = m_row[:, None] & (o < padded)[None, :]
            slopes = load_factor(p_slopes + o[None, :], mask, BOTH_STORED)
        else:
            mask = m_other[:, None] & (row < padded)[None, :]
            p_tile = p_slopes + o.to(tl.int64)[:, None] * slope_row
            slopes = tl.trans(load_factor(p_tile, mask, BOTH_STORED))
        p_tile = p_others + o.to(tl.int64)[:, None] * other_row
        mask = m_other[:, None] & m_padded[None, :]
        factor = load_factor(p_tile, mask, OTHERS_STORED)
        total = add_product(total, slopes, factor, PRECISION)
    row = row.to(tl.int64) + tl.program_id(2).to(tl.int64) * num_rows
    m_feature = feature < aligned(num_features, TILE.multiple)
    p_grad = grad.ptr + row[:, None] * aligned(grad.row, TILE.multiple)
    p_grad += feature[None, :] * grad.step
    mask = m_row[:, None] & m_feature[None, :]
    if TILE.adds:
        total += tl.load(p_grad, mask=mask, other=0.0)
    tl.store(p_grad, narrow(total, grad.ptr.dtype.element_ty), mask=mask)
