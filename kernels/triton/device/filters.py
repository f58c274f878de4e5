"""Filters of RSCF: products of rows over their norm, plus one, of each crop; and gradients.

Cost model: memory alone. A number is read and written once each way, and read once more backward;
a program holds whole rows.
"""

from typing import NamedTuple

import triton
import triton.language as tl

SMALLEST_NORM: tl.constexpr = tl.constexpr(1e-12)


class FilterShape(NamedTuple):
    """Shape of filters ``[crops, rows, columns]``, and features of each plane of columns."""

    rows: int
    columns: int
    features: int
    widths: tuple[int, ...]  # features of each crop, in the order in which it is read


@triton.jit
def places_of(shape, TILE: tl.constexpr):
    """Return rows of a program, features within planes, places in a crop, and a mask."""
    ROWS: tl.constexpr = TILE.rows
    COLUMNS: tl.constexpr = TILE.lanes
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    there = (row < shape.rows)[:, None] & (column < shape.columns)[None, :]
    return row, (column % shape.features)[None, :], row[:, None] * shape.columns + column, there


@triton.jit
def make_filters(p_filters, p_norms, shape, CROPS: tl.constexpr, TILE: tl.constexpr):
    """Turn products into filters in place, 0 beyond each crop, and write norms."""
    row, feature, place, there = places_of(shape, TILE)
    p_crop = p_filters + place
    p_norm = p_norms + row
    for i in tl.static_range(CROPS):
        mask = there & (feature < shape.widths[i])
        products = tl.load(p_crop, mask, 0.0)
        norm = tl.maximum(tl.sqrt(tl.sum(products * products, 1)), SMALLEST_NORM)
        tl.store(p_crop, tl.where(mask, products / norm[:, None] + 1.0, 0.0), there)
        tl.store(p_norm, norm, row < shape.rows)
        p_crop += tl.cast(shape.rows, tl.int64) * shape.columns
        p_norm += shape.rows


@triton.jit
def filter_slopes(
    p_slopes,
    p_grad,
    p_filters,
    p_norms,
    shape,  # the widest crop first
    CROPS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write, for each crop, the gradient of its own and wider crops' part of products."""
    row, feature, place, there = places_of(shape, TILE)
    total = tl.zeros(there.shape, tl.float32)
    for i in tl.static_range(CROPS):
        crop = tl.cast(shape.rows, tl.int64) * (CROPS - 1 - i)
        at = place + crop * shape.columns
        mask = there & (feature < shape.widths[i])
        unit = tl.load(p_filters + at, mask, 1.0) - 1.0
        grad = tl.load(p_grad + at, mask, 0.0)
        norm = tl.load(p_norms + crop + row, row < shape.rows, 1.0)
        along = tl.where(norm > SMALLEST_NORM, tl.sum(grad * unit, 1), 0.0)
        total += (grad - unit * along[:, None]) / norm[:, None]
        tl.store(p_slopes + at, total, there)
