"""Sums of parts of a gradient, which programs left in memory: in order, two runs are bit-equal.

Cost model: memory alone. Parts are read once, the gradient is written once.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from .arguments import plane_at
from .pull import narrow
from .sweep import SUM_BLOCK


class PartTile(NamedTuple):
    """Planes of a row, columns of a program, and whether sums are added to the gradient."""

    planes: int
    columns: int
    adds: bool


@triton.jit(do_not_specialize=["num_parts", "num_features", "features"])
def add_parts(
    p_parts,  # float32 [num_parts][tiles of features][rows][planes][features]
    p_first,  # [rows + 1] first part of each row, if parts have one row each; None: all rows
    grad,  # RowView
    num_parts,
    num_features,
    features,  # of a tile
    TILE: tl.constexpr,
):
    """Write the sum of the parts of a row, or add to the row; a row without parts is left alone."""
    PLANES: tl.constexpr = TILE.planes
    COLUMNS: tl.constexpr = TILE.columns
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < num_features
    first = tl.zeros((), tl.int64)
    last = first + num_parts
    place = row
    num_rows = tl.num_programs(0).to(tl.int64)
    if p_first is not None:
        first = tl.load(p_first + row)
        last = tl.load(p_first + row + 1)
        place = row * 0
        num_rows = place + 1
    plane_of_part = features.to(tl.int64)
    numbers = plane_of_part * PLANES  # of a row of a tile
    per_part = tl.cdiv(num_features, features) * num_rows * numbers
    o_tile = (column // features).to(tl.int64) * num_rows + place
    p_columns = p_parts + first * per_part + (o_tile * numbers + column % features)
    p_grad = grad.ptr + row * grad.row + column.to(tl.int64) * grad.step
    if first < last:
        for plane in tl.static_range(PLANES):
            p_part = p_columns + plane * plane_of_part
            total = tl.zeros((COLUMNS,), tl.float32)
            start = first
            while start < last:
                stop = tl.minimum(start + SUM_BLOCK, last)
                block = tl.zeros((COLUMNS,), tl.float32)
                for _ in range(start, stop):
                    block += tl.load(p_part, mask=mask, other=0.0)
                    p_part += per_part
                total += block
                start = stop
            p_plane = p_grad + plane_at(grad, plane)
            if TILE.adds:
                total += tl.load(p_plane, mask=mask, other=0.0).to(tl.float32)
            tl.store(p_plane, narrow(total, grad.ptr.dtype.element_ty), mask=mask)
