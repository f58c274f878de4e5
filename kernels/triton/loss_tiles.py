"""Chunks of candidates: scores that a loss reduces, and slopes that become gradients.

Distances are packed and swept like all_scores. Products are read in place and multiplied on tensor
cores. Slopes become gradients as in pairwise.py.
"""

import torch
from torch import Tensor

from ..labels import LossNeed
from ..operands import Operands, Prepared
from .device.losses import RowLabels, TileResults, Variant, tile_losses
from .device.score_tiles import ScorePanels
from .host import configs
from .host.layout import Selection, pack_candidates, pack_queries
from .host.matmul import BF16_MULTIPLE, Products, precision_of
from .host.pull import blocks_of
from .host.views import bias_of, form_of, packed_planes
from .pairwise import TOTAL_BYTES

CHUNK_BYTES = 40 << 20  # bytes of slopes, and of packed candidates without other memory
PANEL_BYTES = 24 << 20  # bytes of packed candidates without slopes
QUERY_BYTES = 2 << 20  # bytes of packed queries; at least a tile
LOSS_REGISTERS = 128  # registers of a thread, for 16 warps per multiprocessor
ROOT_REGISTERS = 168  # if slopes are divided by the root, which lives as long as the slopes
LARGE_REGISTERS = 255  # for 8 warps: as many warps as with 168


class Distances:
    """Distances, packed and swept; slopes are pulled in ``blocks`` of queries.

    A chunk is packed into its part of the table's gradient, if that is float32: the part has the
    size of the chunk, and is written after the chunk is scored.
    """

    def __init__(self, operands: Operands, arch: int, need: LossNeed) -> None:
        self._operands, count = operands, operands.num_queries
        swept = configs.filled_tile(operands, arch)
        of_query, of_row = (
            4 * operands.num_features * planes for planes in packed_planes(operands)
        )
        if swept.lanes * of_row > PANEL_BYTES:  # rows of tens of thousands of features
            swept = configs.tile_for(operands.score, 1, arch)
        of_roots = LARGE_REGISTERS if swept.num_warps > 4 else ROOT_REGISTERS
        most = of_roots if operands.score.root else LOSS_REGISTERS
        self.tile = swept._replace(max_registers=most if arch else None)
        table = operands.table
        self.blocks = blocks_of(operands)
        self.of_table: Tensor | None = None
        self._room: Tensor | None = None
        if need.table and table.dtype == torch.float32:
            self._room = table.new_empty(len(table) + swept.lanes, table.shape[1])
            self.of_table = self._room[: len(table)]
        elif need.table:
            self.of_table = table.new_empty(table.shape)
        if any(need):
            has_totals = need.table and self._room is None and len(self.blocks) > 1
            scratch = CHUNK_BYTES - TOTAL_BYTES * has_totals
            width = scratch // (4 * count + (of_row if self._room is None else 0))
            if has_totals:
                width = min(width, TOTAL_BYTES // (4 * table.shape[1]))
        else:
            width = PANEL_BYTES // of_row
        self.width = _whole_tiles(width, swept.lanes)
        height = max(1, QUERY_BYTES // of_query // swept.rows) * swept.rows
        self._blocks = [slice(i, min(i + height, count)) for i in range(0, count, height)]
        self._packed: Tensor | None = None

    def score(self, chunk: slice, labels: RowLabels, result: TileResults) -> Operands:
        """Pack the chunk, and the queries once if these fit the scratch; sweep.

        Return the operands that slopes are pulled to. Slopes are divided if scores are roots.
        """
        part, swept = self._operands.of_rows(chunk), self.tile
        dim, count = part.num_features, len(part.table)
        room = None if self._room is None else self._room[chunk.start :].view(-1)
        panels = pack_candidates(part, Selection(count), dim, swept.lanes, out=room)
        for rows in self._blocks:
            if self._packed is None or len(self._blocks) > 1:
                every = Selection(rows.stop - rows.start)
                block = self._operands.of_queries(rows)
                self._packed = pack_queries(block, every, dim, swept.rows, is_stored=True)
            sizes = {"num_queries": part.num_queries, "num_candidates": count}
            swept.launch(
                tile_losses,
                rows.stop - rows.start,
                {**sizes, "num_features": dim},
                rows=ScorePanels(self._packed, panels, bias_of(part)),
                labels=labels._replace(row=rows.start),
                result=result,
                VARIANT=Variant(form_of(self._operands), self.tile),
            )
        return part.without_bias()


class ProductTiles:
    """Products, on tensor cores if there are any.

    Operands of precision ``bf16`` are rounded first: the queries once, the table chunk by chunk.
    """

    def __init__(self, operands: Operands, arch: int, need: LossNeed) -> None:
        self._operands, count = operands, operands.num_queries
        queries, table = operands.queries, operands.table
        self.of_table = table.new_empty(table.shape) if need.table else None
        self.blocks = [slice(0, count)]
        dim, is_rounded = operands.num_features, operands.precision == "bf16"
        of_slope, of_row = 4, 0
        if is_rounded:
            of_slope, rounded = 2, _room_for(count, dim, queries)
            rounded[:, :dim].copy_(queries)
            queries = rounded
            is_stored = table.dtype == torch.bfloat16 and table.is_contiguous()
            is_stored &= dim % BF16_MULTIPLE == 0 and table.data_ptr() % 16 == 0
            of_row = 0 if is_stored else 2 * queries.shape[1]
        self._products = Products(queries, table, precision_of(operands, arch), arch)
        self.tile = self._products.tile
        width = len(table)
        if any(need):
            width = CHUNK_BYTES // (of_slope * count + of_row)
        elif of_row:
            width = PANEL_BYTES // of_row
        self.width = _whole_tiles(width, self.tile.lanes)
        self._room: Tensor | None = None
        if of_row:
            self._room = _room_for(min(self.width, len(table)), dim, queries)

    def score(self, chunk: slice, labels: RowLabels, result: TileResults) -> Operands:
        """Multiply operands in place, or rounded operands; return those."""
        part = self._operands.of_rows(chunk)
        rows = part.table
        if self._room is not None:
            rows = self._room[: len(rows)]
            rows[:, : part.num_features].copy_(part.table)
        variant = Variant(form_of(part), self.tile, self._products.product)
        into = {"labels": labels, "result": result, "VARIANT": variant}
        self._products.launch(tile_losses, rows, bias_of(part), into)
        candidates = Prepared(rows, part.score)
        return Operands(self._products.queries, candidates, None, part.precision)


def _room_for(count: int, dim: int, like: Tensor) -> Tensor:
    """Make memory for rows in bfloat16, filled up with zeros."""
    width = -(-dim // BF16_MULTIPLE) * BF16_MULTIPLE
    room = like.new_empty(count, width, dtype=torch.bfloat16)
    if width > dim:
        room[:, dim:].zero_()
    return room


def _whole_tiles(width: int, lanes: int) -> int:
    """Return the number of candidates in a chunk: whole tiles if one fits, in one launch."""
    width = max(1, min(width, configs.MAX_GRID * lanes))
    return width // lanes * lanes or width
