"""Slopes of blocks of pairs carried back by the symmetric pull (device/pull.py)."""

from typing import NamedTuple

import torch
from torch import Tensor

from ...operands import Operands
from ..device import pull as kernels
from ..device.arguments import RowView
from ..device.pull import PartTile, Pulled, PullTile
from . import launch as launcher
from .configs import MAX_GRID
from .views import form_of, plane_of, queries_of, rows_of, views_of

PARTIAL_BYTES = 14 << 20  # of the least scratch: sums of queries, of all programs
SPLIT_BYTES = 2 << 20  # of the least scratch: sums of rows, if queries are split
WARPS = 8  # of a multiprocessor, with 255 registers per thread
ROWS, RSCF_ROWS, RSCF_PHASE_ROWS = 32, 16, 8  # rows of a lane
FEATURES = 4  # features of a tile of many rows: fewer need less memory, more exchange less
_LEAST_SPLIT = 64  # fewest queries of a split
_COLUMNS = 128  # columns of a program that adds parts


class SlopeFactors(NamedTuple):
    """Range of features, and the factors of the slopes of a block's pairs."""

    low: int
    high: int
    coefficient: Tensor  # one for each pair, of column stride 1 if all pairs are pulled


class RowSums:
    """Gradient of a chunk's rows: written by the first pull, added to by later pulls.

    Rows in half precision have float32 sums, unless a single pull writes the gradient; so have the
    splits of the queries.
    """

    def __init__(self, grad: Tensor, *, is_single: bool) -> None:
        self.splits, self._grad = 0, grad  # splits of the queries, set by the first pull
        self._is_direct = grad.dtype == torch.float32 or is_single
        self._sums = grad[None]

    def target(self, splits: int) -> Tensor:
        """Return ``[R, G]``, the first of the splits."""
        if not self.splits:
            self.splits, self._is_direct = splits, self._is_direct and splits == 1
            if not self._is_direct:
                shape = splits, *self._grad.shape
                self._sums = self._grad.new_zeros(shape, dtype=torch.float32)
        return self._sums[0]

    def finish(self) -> None:
        """Bring the sums into the gradient, in the gradient's dtype."""
        if not self._is_direct:
            self._grad.copy_(self._sums.sum(0) if self.splits > 1 else self._sums[0])


def add_parts(
    parts: Tensor,
    grad: RowView,
    sizes: tuple[int, int, int],
    tile: tuple[int, int],
    *,
    first: Tensor | None = None,
    adds: bool = False,
) -> None:
    """Write the sums of parts into a gradient, or add to the gradient.

    ``sizes`` are those of rows, parts and features; a ``tile`` of the parts has planes and features
    of a row. With ``first``, parts have one row each (device/pull.py).
    """
    rows, count, width = sizes
    launcher.launch(
        kernels.add_parts,
        (rows, -(-width // _COLUMNS)),
        {
            "p_parts": parts,
            "p_first": first,
            "grad": grad,
            "num_parts": count,
            "num_features": width,
            "features": tile[1],
            "TILE": PartTile(tile[0], _COLUMNS, adds),
        },
        num_warps=4,
    )


def blocks_of(operands: Operands) -> list[slice]:
    """Return queries in even blocks that are pulled at once, small enough for many programs."""
    bytes_of_feature = 4 * operands.query_planes
    features = FEATURES
    of_all = bytes_of_feature * -(-operands.num_features // features) * features
    of_programs = bytes_of_feature * features * _programs(operands) * 3 // 4  # no second block
    room = launcher.scratch_of(PARTIAL_BYTES, operands.table.device)
    most = max(1, room // max(of_programs, of_all))
    count = operands.num_queries
    height = -(-count // max(1, -(-count // most)))
    return [slice(i, min(i + height, count)) for i in range(0, count, max(1, height))]


def pull(
    operands: Operands,
    slopes: SlopeFactors,
    grad: Tensor | None,
    rows: tuple[RowSums | None, RowSums | None],
    arch: int,
    *,
    is_first: bool,
    adds: bool,
) -> None:
    """Carry the slopes of a block, without a bias, to queries, and to table and factor.

    The gradient of queries ``[B, F]``, float32, is added to if ``adds``, else written. ``is_first``
    is True if no other block of queries has pulled these rows.
    """
    low, high, coefficient = slopes
    tile, ranges, splits = _cut(operands, low, high, arch)
    count, planes = len(coefficient), operands.query_planes
    tiles = -(-(high - low) // tile.features)
    partial = None
    if grad is not None:
        shape = ranges, tiles, count, planes, tile.features
        partial = coefficient.new_empty(shape, dtype=torch.float32)
    needed = [of_rows for of_rows in rows if of_rows is not None]
    splits = max((of_rows.splits for of_rows in needed), default=0) or splits
    table, factor = (None if of_rows is None else of_rows.target(splits) for of_rows in rows)
    launcher.launch(
        kernels.pull,
        (tiles, ranges, splits),
        {
            "views": views_of(operands),
            "row_of_slopes": coefficient.stride(0),
            "pulled": Pulled(
                coefficient,
                partial,
                None if table is None else rows_of(table, operands.score),
                None if factor is None else plane_of(factor),
            ),
            "num_queries": count,
            "num_rows": len(operands.table),
            "first_feature": low,
            "last_feature": high,
            "FORM": form_of(operands),
            "TILE": tile._replace(of_queries=grad is not None, adds=bool(needed) and not is_first),
        },
        num_warps=1,
        **launcher.capped(255, arch),
    )
    if grad is not None and partial is not None:
        into = queries_of(operands, grad)
        into = into._replace(ptr=grad[:, low * into.step :])
        add_parts(partial, into, (count, ranges, high - low), (planes, tile.features), adds=adds)


def _cut(operands: Operands, low: int, high: int, arch: int) -> tuple[PullTile, int, int]:
    lanes, num_queries, num_rows = 32 if arch else 64, operands.num_queries, len(operands.table)
    # rows that a lane has registers for; Blackwell and AMD compilers take more
    is_complex, rows, features = operands.score.planes == 2, ROWS, FEATURES
    if operands.score.is_rscf:
        rows = RSCF_PHASE_ROWS if is_complex and operands.has_factor else RSCF_ROWS
    elif is_complex and not 80 <= arch < 100:
        rows = ROWS // 2
    pairs = lanes * rows
    while features < lanes and pairs // features >= 2 * num_rows:
        features *= 2
    tile = PullTile(pairs // features, features, of_queries=False, adds=False)
    columns = -(-(high - low) // features)
    tiles = -(-num_rows // tile.rows)
    room = launcher.scratch_of(PARTIAL_BYTES, operands.table.device)
    room //= 4 * operands.query_planes * columns * features * num_queries
    programs = _programs(operands)
    ranges = max(1, min(tiles, room, programs // columns, MAX_GRID))
    splits = 1
    if ranges == tiles:
        width = operands.table.shape[1] + operands.num_features * operands.has_factor
        splits = min(programs // (columns * ranges), num_queries // _LEAST_SPLIT, MAX_GRID)
        room = launcher.scratch_of(SPLIT_BYTES, operands.table.device)
        splits = max(1, min(splits, room // (4 * width * num_rows)))
    return tile, ranges, splits


def _programs(operands: Operands) -> int:
    """Return the programs, of a warp each, that fill the machine."""
    return WARPS * launcher.num_multiprocessors(operands.table.device)
