"""Chunks of candidates: scores that a loss reduces, and slopes that become gradients.

Distances are packed and swept like all_scores, and pulled like pairwise.py, except that sums of
queries wait for the last chunk. Products are read in place and multiplied on tensor cores, forward
and backward.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..labels import LossNeed
from ..operands import Operands
from .device.arguments import SweepTile, TileShape
from .device.finish import STRIPE_COLUMNS, SUMMED, Splits
from .device.fused_losses import (
    Factors,
    GradTile,
    Product,
    Weighted,
    distance_losses,
    multiply_slopes,
    product_losses,
)
from .device.losses import RowLabels, TileLoss, TileResults, Variant
from .device.negatives import RowInputs
from .device.pull import Striped, Stripes
from .device.score_tiles import ScorePanels
from .host import configs
from .host import launch as launcher
from .host.gradients import TOTAL_BYTES
from .host.layout import Selection, pack_candidates, pack_stored_queries
from .host.pull import QuerySums, RowSums, SlopeFactors, blocks_of, pull
from .host.views import form_of, packed_planes, plane_of, vector_of

CHUNK_BYTES = 40 << 20  # bytes of slopes, and of packed candidates without other memory
PANEL_BYTES = 24 << 20  # bytes of packed candidates without slopes
QUERY_BYTES = 2 << 20  # bytes of packed queries; at least a tile
PARTIAL_BYTES = 8 << 20  # bytes of gradients of queries, of splits of the candidates
PRODUCT_PROGRAMS = 512  # programs that fill a machine
LOSS_REGISTERS = 128  # registers of a thread, for 16 warps per multiprocessor
ROOT_REGISTERS = 168  # if slopes are divided by the root, which lives as long as the slopes
PRODUCT_REGISTERS, GRAD_REGISTERS = 240, 168  # uncapped, ptxas spills scalars
MASKED_REGISTERS = 255  # for 8 warps, or negatives with masks: as many warps as with 168
UNEVEN_REGISTERS = 200  # for a sum over rows that are not read in fours, before Hopper
DEPTH = 32  # features, or rows of gradients, that are multiplied at a time
BF16_MULTIPLE = 8  # features of a rounded row: 16 bytes are read at once
BF16_DEPTH = 64  # for two factors in bfloat16: as many bytes
GRAD_TILE = GradTile(64, 64)


class Owed(NamedTuple):
    """Parts of the gradient of queries, which one launch adds when all chunks were pulled."""

    parts: Splits | Stripes
    num_parts: int
    programs: int
    striped: Striped | None = None


class LossTiles(Protocol):
    """Candidates, chunk by chunk, and the use of their slopes.

    Attributes
    ----------
    tile : TileShape or SweepTile
    width : int
        Candidates of a chunk.
    of_queries, of_table : Tensor or None
        The needed gradients.
    """

    tile: TileShape | SweepTile
    width: int
    of_queries: Tensor | None
    of_table: Tensor | None

    def score(
        self, chunk: slice, labels: RowLabels | RowInputs, result: TileResults, loss: TileLoss
    ) -> None:
        """Compute row sums and slopes of all queries with a chunk."""
        ...

    def pull(self, chunk: slice, slopes: Tensor) -> None:
        """Carry slopes ``[B, n]`` of the chunk scored last to the gradients."""
        ...

    def owed(self) -> Owed | None:
        """Return the parts that must still be added after all chunks, or None."""
        ...

    def settle(self) -> None:
        """Add these parts now."""
        ...


def tiles_of(operands: Operands, arch: int, need: LossNeed) -> LossTiles:
    """Choose the way of a loss over the candidates, by the score."""
    return (Distances if operands.score.monotone else Products)(operands, arch, need)


class Distances:
    """Distances, packed and swept.

    A chunk is packed into its part of the table's gradient, if that is float32: the part has the
    size of the chunk, and is written after the chunk is scored.
    """

    def __init__(self, operands: Operands, arch: int, need: LossNeed) -> None:
        self._operands, count = operands, operands.num_queries
        filled = len(operands.table), arch, launcher.num_multiprocessors(operands.table.device)
        swept = configs.loss_tile(operands.score, count, *filled)
        of_query, of_row = (
            4 * operands.num_features * planes for planes in packed_planes(operands)
        )
        if swept.candidates * of_row > PANEL_BYTES:  # rows of tens of thousands of features
            swept = configs.tile_for(operands.score, 1, arch)
        self._swept = swept
        self.tile: TileShape | SweepTile = swept.shape
        queries, table = operands.queries, operands.table
        self._pulled, self._parts, self._arch = operands.without_bias(), blocks_of(operands), arch
        self.of_table: Tensor | None = None
        self._room: Tensor | None = None
        if need.table and table.dtype == torch.float32:
            self._room = table.new_empty(len(table) + swept.candidates, table.shape[1])
            self.of_table = self._room[: len(table)]
        elif need.table:
            self.of_table = table.new_empty(table.shape)
        if any(need):
            has_totals = need.table and self._room is None and len(self._parts) > 1
            scratch = CHUNK_BYTES - TOTAL_BYTES * has_totals
            width = scratch // (4 * count + (of_row if self._room is None else 0))
            if has_totals:
                width = min(width, TOTAL_BYTES // (4 * table.shape[1]))
        else:
            width = PANEL_BYTES // of_row
        self.width = _whole_tiles(width, swept.candidates)
        height = max(1, QUERY_BYTES // of_query // swept.queries) * swept.queries
        self._blocks = [slice(i, min(i + height, count)) for i in range(0, count, height)]
        self._packed: Tensor | None = None
        of_roots = MASKED_REGISTERS if swept.num_warps > 4 else ROOT_REGISTERS
        most = of_roots if operands.score.root else LOSS_REGISTERS
        self._options = {"maxnreg": most} if arch else {}
        self._sums: QuerySums | None = None
        self.of_queries: Tensor | None = None
        if need.queries:
            make = queries.new_empty if len(self._parts) == 1 else queries.new_zeros
            self.of_queries = make(queries.shape, dtype=torch.float32)

    def score(
        self, chunk: slice, labels: RowLabels | RowInputs, result: TileResults, loss: TileLoss
    ) -> None:
        """Pack the chunk, and the queries once if these fit the scratch; sweep."""
        part, swept = self._operands.of_rows(chunk), self._swept
        dim, count = part.num_features, len(part.table)
        room = None if self._room is None else self._room[chunk.start :].view(-1)
        panels = pack_candidates(part, Selection(count), dim, swept.candidates, out=room)
        bias, options = part.candidates.whole_bias, self._options
        has_more = part.score.root or part.has_factor
        if options and isinstance(labels, RowInputs) and (has_more or labels.mask is not None):
            options = {"maxnreg": MASKED_REGISTERS}
        for rows in self._blocks:
            if self._packed is None or len(self._blocks) > 1:
                block = self._operands.of_queries(rows)
                self._packed = pack_stored_queries(block, dim, swept.queries)
            launcher.launch(
                distance_losses,
                (-(-(rows.stop - rows.start) // swept.queries), -(-count // swept.candidates)),
                {
                    "packed": ScorePanels(
                        self._packed, panels, None if bias is None else vector_of(bias)
                    ),
                    "labels": labels._replace(row=rows.start),
                    "result": result,
                    "num_queries": self._operands.num_queries,
                    "num_candidates": count,
                    "num_features": dim,
                    "VARIANT": Variant(form_of(self._operands), self.tile, loss),
                },
                num_warps=swept.num_warps,
                **options,
            )

    def pull(self, chunk: slice, slopes: Tensor) -> None:
        """Pull in one launch, if queries are one block; slopes were divided if scores are roots."""
        part, is_single = self._pulled.of_rows(chunk), len(self._parts) == 1
        of_rows = None
        if self.of_table is not None:
            of_rows = RowSums(self.of_table[chunk], is_single=is_single)
        for rows in self._parts:
            block, sums = part.of_queries(rows), None
            whole = SlopeFactors(0, block.num_features, slopes[rows])
            if self.of_queries is not None:
                sums = self._sums or QuerySums(block, whole.low, whole.high, self._arch)
                self._sums = sums if is_single else None
            pull(block, whole, sums, (of_rows, None), self._arch, is_first=not rows.start)
            if self.of_queries is not None and sums is not None and not is_single:
                sums.finish(self.of_queries[rows])
        if of_rows is not None:
            of_rows.finish()

    def owed(self) -> Owed | None:
        """Return sums of the pulls' programs, if the queries are one block."""
        sums, self._sums = self._sums, None
        if sums is None or self.of_queries is None:
            return None
        programs = len(self.of_queries) * -(-sums.high // STRIPE_COLUMNS)
        parts = sums.stripes_of(self.of_queries)
        return Owed(parts, sums.stripes, programs, sums.striped)

    def settle(self) -> None:
        """Add the sums of the pulls' programs."""
        if self._sums is not None and self.of_queries is not None:
            self._sums.finish(self.of_queries, adds=False)


class Products:
    """Products, on tensor cores if there are any.

    Operands of precision ``bf16`` are rounded first: the queries once, the table chunk by chunk.
    """

    def __init__(self, operands: Operands, arch: int, need: LossNeed) -> None:
        self._operands, count = operands, operands.num_queries
        queries, table = operands.queries, operands.table
        self.of_table = table.new_empty(table.shape) if need.table else None
        dim, is_rounded = operands.num_features, operands.precision == "bf16"
        is_even = is_rounded or all(
            it.stride(0) % 4 == 0 and it.stride(1) == 1 and it.data_ptr() % 16 == 0
            for it in (queries, table)
        )
        self._grad_multiple = 4 if is_even and dim % 4 == 0 else 1
        multiple = BF16_MULTIPLE if is_rounded else self._grad_multiple
        precision = precision_of(operands, arch)
        depth = BF16_DEPTH if precision == "bf16" else DEPTH
        self._product = Product(depth, precision, multiple)
        self.tile: TileShape | SweepTile
        filled = len(table), arch, launcher.num_multiprocessors(table.device)
        self.tile, self._num_warps = product_tile(count, *filled, is_even=multiple > 1)
        self._has_cores, is_uneven = arch > 0, arch < 90 and multiple == 1
        # One product of bf16 is short beside the reduction of its scores: two programs fit.
        has_room = arch == 90 and precision == "bf16"
        self._score_registers = LOSS_REGISTERS if has_room else PRODUCT_REGISTERS
        # On sm_120 either gradient would spill.
        self._table_registers = UNEVEN_REGISTERS if arch >= 120 else GRAD_REGISTERS
        self._query_registers = UNEVEN_REGISTERS if is_uneven else self._table_registers
        self._queries, of_slope, of_row = queries, 4, 0
        if is_rounded:
            self._queries, of_slope = _room_for(count, queries), 2
            self._queries[:, :dim].copy_(queries)
            is_stored = table.dtype == torch.bfloat16 and table.is_contiguous()
            is_stored &= dim % BF16_MULTIPLE == 0 and table.data_ptr() % 16 == 0
            of_row = 0 if is_stored else 2 * self._queries.shape[1]
        width = len(table)
        if any(need):
            width = CHUNK_BYTES // (of_slope * count + of_row)
        elif of_row:
            width = PANEL_BYTES // of_row
        self.width = _whole_tiles(width, self.tile.lanes)
        self._room: Tensor | None = None
        if of_row:
            self._room = _room_for(min(self.width, len(table)), queries)
        self.of_queries: Tensor | None = None
        self._splits: Splits | None = None
        self._adds = False
        if need.queries:
            tiles = -(-count // GRAD_TILE.rows) * -(-dim // GRAD_TILE.lanes)
            room = PARTIAL_BYTES // (4 * count * dim)
            steps = min(self.width, len(table)) // (4 * depth)
            splits = max(1, min(PRODUCT_PROGRAMS // tiles, room, steps))
            self.of_queries = queries.new_empty(count, dim, dtype=torch.float32)
            self._partial = self.of_queries[None]
            if splits > 1:
                self._partial = queries.new_empty(splits, count, dim, dtype=torch.float32)
                self._splits = Splits(self._partial, self.of_queries, dim)

    def score(
        self, chunk: slice, labels: RowLabels | RowInputs, result: TileResults, loss: TileLoss
    ) -> None:
        """Multiply operands in place, or rounded operands."""
        part, rows = self._operands.of_rows(chunk), self._rows(chunk)
        bias, count = part.candidates.whole_bias, len(part.table)
        if self._room is not None:
            rows[:, : part.num_features].copy_(part.table)
        launcher.launch(
            product_losses,
            (-(-part.num_queries // self.tile.rows), -(-count // self.tile.lanes)),
            {
                "factors": Factors(
                    plane_of(self._queries),
                    plane_of(rows),
                    None if bias is None else vector_of(bias),
                ),
                "labels": labels,
                "result": result,
                "num_queries": part.num_queries,
                "num_candidates": count,
                "num_features": self._queries.shape[1],
                "VARIANT": Variant(form_of(part), self.tile, loss, self._product),
            },
            num_warps=self._num_warps,
            **({"maxnreg": self._score_registers} if self._has_cores else {}),
        )

    def pull(self, chunk: slice, slopes: Tensor) -> None:
        """Multiply the slopes with the table's rows, and with the queries."""
        if self.of_queries is not None:
            rows, splits = self._rows(chunk), len(self._partial)
            self._multiply(slopes, rows, self._partial[0], splits=splits, adds=self._adds)
            self._adds = True
        if self.of_table is not None:
            self._multiply(slopes, self._queries, self.of_table[chunk], splits=0, adds=False)

    def _rows(self, chunk: slice) -> Tensor:
        """Return rows of the chunk in place, or the rows that :meth:`score` rounded."""
        if self._room is None:
            return self._operands.table[chunk]
        return self._room[: chunk.stop - chunk.start]

    def owed(self) -> Owed | None:
        """Return the splits of the sum over candidates."""
        if self._splits is None or self.of_queries is None:
            return None
        numbers = self.of_queries.numel()
        return Owed(self._splits, len(self._partial), -(-numbers // SUMMED))

    def settle(self) -> None:
        """Add the splits."""
        if self._splits is not None and self.of_queries is not None:
            torch.sum(self._partial, 0, out=self.of_queries)

    def _multiply(
        self, slopes: Tensor, others: Tensor, grad: Tensor, *, splits: int, adds: bool
    ) -> None:
        """Multiply slopes; ``splits`` of the sum for queries, or 0 for rows of the table."""
        product = self._product
        if others.dtype == torch.float32 and product.precision in ("bf16x3", "tf32x2"):
            product = product._replace(precision="tf32x3")
        registers = self._query_registers if splits else self._table_registers
        tiles = -(-len(grad) // GRAD_TILE.rows), -(-grad.shape[1] // GRAD_TILE.lanes)
        launcher.launch(
            multiply_slopes,
            (*tiles, max(1, splits)),
            {
                "weighted": Weighted(slopes, slopes.stride(0), plane_of(others), plane_of(grad)),
                "num_rows": len(grad),
                "num_others": len(others),
                "num_features": grad.shape[1],
                "TILE": GRAD_TILE._replace(
                    of_queries=splits > 0, adds=adds, multiple=self._grad_multiple
                ),
                "PRODUCT": product,
            },
            num_warps=4,
            **({"maxnreg": registers} if self._has_cores else {}),
        )


def product_tile(
    num_queries: int, num_candidates: int, arch: int, multiprocessors: int, *, is_even: bool
) -> tuple[TileShape, int]:
    """Return the tile of products for numbers of queries and candidates, and the warps.

    On sm_90 each warp group has its own 64 rows. Two groups that share 64 rows make two products of
    three twice, and pass sums on through shared memory: 18 barriers per step, not 2. ``is_even`` is
    True if rows are read in fours; if not, four warps would spill on small GPUs.
    """
    has_room = arch >= 90 and is_even
    if num_queries <= 16:
        return TileShape(16, 128 if has_room else 64), 4
    if not has_room:
        return TileShape(64, 64), 8 if arch in (86, 89, 120) and not is_even else 4
    if arch == 90:
        is_filled = -(-num_queries // 128) * -(-num_candidates // 64) >= multiprocessors
        has_rows = num_queries > 64 and is_filled
        return (TileShape(128, 64), 8) if has_rows else (TileShape(64, 64), 4)
    return TileShape(64, 128), 8


def _room_for(count: int, queries: Tensor) -> Tensor:
    """Make memory for rows as wide as queries in bfloat16, filled up with zeros."""
    dim = queries.shape[1]
    width = -(-dim // BF16_MULTIPLE) * BF16_MULTIPLE
    room = queries.new_empty(count, width, dtype=torch.bfloat16)
    if width > dim:
        room[:, dim:].zero_()
    return room


def _whole_tiles(width: int, lanes: int) -> int:
    """Return the candidates of a chunk: whole tiles if one fits, at most those of a launch."""
    width = max(1, min(width, configs.MAX_GRID * lanes))
    return width // lanes * lanes or width


def precision_of(operands: Operands, arch: int) -> str:
    """Choose the way of computing products; see device/fused_losses.py."""
    dtype = operands.table.dtype
    if not arch:
        return "ieee"
    if operands.precision == "bf16":
        return "bf16"
    if dtype == torch.bfloat16:
        return "bf16x3"
    if torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return "tf32x2" if dtype == torch.float16 else "tf32x3"
