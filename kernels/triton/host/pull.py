"""Slopes of blocks of pairs carried back by the symmetric pull (device/pull.py)."""

from typing import NamedTuple

import torch
from torch import Tensor

from ...operands import Operands
from ..device import pull as kernels
from ..device.finish import STRIPE_COLUMNS, Splits
from ..device.pull import Pulled, PullTile, Striped, Stripes
from . import launch as launcher
from .configs import MAX_GRID
from .views import form_of, plane_of, queries_of, rows_of, views_of

PARTIAL_BYTES = 14 << 20  # of the least scratch: sums of queries, of all programs
SPLIT_BYTES = 2 << 20  # of the least scratch: sums of rows, if queries are split
WARPS = 8  # of a multiprocessor, with 255 registers per thread
ROWS, RSCF_ROWS, RSCF_PHASE_ROWS = 32, 16, 8  # rows of a lane
FEATURES = 4  # features of a tile of many rows: fewer need less memory, more exchange less
_LEAST_SPLIT = 64  # fewest queries of a split


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

    def target(self, splits: int, *, is_first: bool) -> tuple[Tensor, bool]:
        """Return ``[R, G]``, the first of the splits, and whether a pull adds to it."""
        if not self.splits:
            self.splits, self._is_direct = splits, self._is_direct and splits == 1
            if not self._is_direct:
                shape = splits, *self._grad.shape
                self._sums = self._grad.new_zeros(shape, dtype=torch.float32)
        return self._sums[0], not is_first

    def finish(self) -> None:
        """Bring the sums into the gradient, in the gradient's dtype."""
        if not self._is_direct:
            self._grad.copy_(self._sums.sum(0) if self.splits > 1 else self._sums[0])


class Owed(NamedTuple):
    """Parts of the gradient of queries, which one launch adds when all chunks were pulled."""

    parts: Splits | Stripes
    num_parts: int
    programs: int
    striped: Striped | None = None


class QuerySums:
    """Partial gradients of a range of features of queries, which programs leave, until added.

    Operands are of one of :func:`blocks_of`, and of the chunk of candidates with most rows. The
    sums go into ``grad [B, F]``, float32, which holds a part if ``adds``.
    """

    def __init__(
        self, operands: Operands, low: int, high: int, arch: int, grad: Tensor, *, adds: bool
    ) -> None:
        self.tile, self.stripes, self.splits = _cut(operands, low, high, arch)
        self.low, self.high, self._grad, self._adds = low, high, grad, adds
        self._striped = Striped(operands.query_planes, self.tile.features)
        self._into = queries_of(operands, grad)
        tiles = -(-(high - low) // self.tile.features)
        count = self.stripes * tiles * self.tile.features
        shape = count * operands.query_planes * operands.num_queries
        self.partial = operands.queries.new_empty(shape, dtype=torch.float32)
        self.has_any = False

    @property
    def owed(self) -> Owed:
        """Return the sums of all features, for a kernel that adds them."""
        parts = Stripes(self.partial, self.high - self.low, self._into)
        programs = len(self._grad) * -(-self.high // STRIPE_COLUMNS)
        return Owed(parts, self.stripes, programs, self._striped)

    def finish(self) -> None:
        """Bring the sums into the gradient."""
        launcher.launch(
            kernels.add_stripes,
            (len(self._grad), -(-(self.high - self.low) // STRIPE_COLUMNS)),
            {
                "stripes": self.owed.parts,
                "num_stripes": self.stripes,
                "first_feature": self.low,
                "STRIPED": self._striped,
                "COLUMNS": STRIPE_COLUMNS,
                "ADDS": self._adds,
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
    sums: QuerySums | None,
    rows: tuple[RowSums | None, RowSums | None],
    arch: int,
    *,
    is_first: bool,
) -> None:
    """Carry the slopes of a block, without a bias, to sums of queries, and to table and factor.

    ``is_first`` is True if no other block of queries has pulled these rows.
    """
    if sums is None:
        tile, stripes, splits = _cut(operands, slopes.low, slopes.high, arch)
    else:
        tile, stripes, splits = sums.tile, sums.stripes, sums.splits
    targets: list[Tensor | None] = [None, None]
    adds = False
    for i, of_rows in enumerate(rows):
        if of_rows is not None:
            splits = of_rows.splits or splits
            targets[i], adds = of_rows.target(splits, is_first=is_first)
    grad, grad_factor = targets
    launcher.launch(
        kernels.pull,
        (-(-(slopes.high - slopes.low) // tile.features), stripes, splits),
        {
            "views": views_of(operands),
            "row_of_slopes": slopes.coefficient.stride(0),
            "pulled": Pulled(
                slopes.coefficient,
                None if sums is None else sums.partial,
                None if grad is None else rows_of(grad, operands.score),
                None if grad_factor is None else plane_of(grad_factor),
            ),
            "num_queries": operands.num_queries,
            "num_rows": len(operands.table),
            "first_feature": slopes.low,
            "last_feature": slopes.high,
            "has_earlier": int(sums is not None and sums.has_any),
            "FORM": form_of(operands),
            "TILE": tile._replace(of_queries=sums is not None, adds=adds),
        },
        num_warps=1,
        **launcher.capped(255, arch),
    )
    if sums is not None:
        sums.has_any = True


def _cut(operands: Operands, low: int, high: int, arch: int) -> tuple[PullTile, int, int]:
    lanes, num_queries, num_rows = 32 if arch else 64, operands.num_queries, len(operands.table)
    pairs = lanes * _rows_of_lane(operands, arch)
    features = FEATURES
    while features < lanes and pairs // features >= 2 * num_rows:
        features *= 2
    tile = PullTile(pairs // features, features, of_queries=False, adds=False)
    columns = -(-(high - low) // features)
    tiles = -(-num_rows // tile.rows)
    room = launcher.scratch_of(PARTIAL_BYTES, operands.table.device)
    room //= 4 * operands.query_planes * columns * features * num_queries
    programs = _programs(operands)
    stripes = max(1, min(tiles, room, programs // columns, MAX_GRID))
    splits = 1
    if stripes == tiles:
        width = operands.table.shape[1] + operands.num_features * operands.has_factor
        splits = min(programs // (columns * stripes), num_queries // _LEAST_SPLIT, MAX_GRID)
        room = launcher.scratch_of(SPLIT_BYTES, operands.table.device)
        splits = max(1, min(splits, room // (4 * width * num_rows)))
    return tile, stripes, splits


def _programs(operands: Operands) -> int:
    """Return the programs, of a warp each, that fill the machine."""
    return WARPS * launcher.num_multiprocessors(operands.table.device)


def _rows_of_lane(operands: Operands, arch: int) -> int:
    """Return the rows that a lane has registers for; Blackwell and AMD compilers take more."""
    if operands.has_factor and operands.score.planes == 2:
        return RSCF_PHASE_ROWS
    if operands.score.is_rscf:
        return RSCF_ROWS
    is_full = operands.score.planes == 2 and not 80 <= arch < 100
    return ROWS // 2 if is_full else ROWS
