"""Crops of a batch as one: packed once, swept once, each with its own thresholds and band."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..device.crop_sweep import CropWidths, sweep_crops
from ..device.sweep import Tally
from . import configs
from .crop import Crop, PairBlock
from .widths import filled


def band_of_each(plan: configs.CropPlan, num_crops: int) -> int:
    """Return the pairs of one crop's band: a share of two bands' room, at least a tile."""
    share = 2 * configs.BAND_PAIRS // num_crops
    return max(share // 16 * 16, plan.tile.queries * plan.tile.candidates)


class Nest:
    """Crops of rising widths, made with the plan of the widest.

    Positions are queries in the order of the widest crop's targets, for all crops.
    """

    def __init__(self, crops: Sequence[Crop], plan: configs.CropPlan, capacity: int) -> None:
        self.crops, self.plan, self.widest = crops, plan, crops[-1]
        self.capacity = capacity
        device = self.widest.batch.device
        self.bands = torch.empty(len(crops), self.capacity, dtype=torch.int64, device=device)
        self.widths = filled([crop.dim for crop in crops], device)
        self._make_room()

    def _make_room(self) -> None:
        """Make memory for biases and norms of lanes, of each crop if the bound needs these."""
        self.lanes = self.widest.lanes.expand(len(self.crops), -1)
        if self.widest.bound.norm:
            self.lanes = torch.empty_like(self.lanes, memory_format=torch.contiguous_format)

    def score_targets(self) -> None:
        """Compute canonical scores of the targets at every crop."""
        for crop in self.crops:
            crop.score_targets()
        for crop in self.crops:
            crop.order = self.widest.order

    def count_pass(self, blocks: Sequence[PairBlock], cursors: Sequence[Tensor]) -> None:
        """Do ``Crop.count_pass`` for every crop; ``cursors`` lie evenly apart."""
        greater = torch.stack([crop.positions(blocks[0]) for crop in self.crops])
        for block in blocks:
            tally = Tally(greater, self.bands, cursors[0], self.capacity, block.first_candidate)
            self.sweep(block, tally, distance_between(cursors))
        for crop, of_crop, band, cursor in zip(
            self.crops, greater, self.bands, cursors, strict=True
        ):
            crop.count_certain(blocks[0], of_crop)
            crop.rescore(blocks[0], cursor, band)

    def sweep(self, block: PairBlock, tally: Tally, apart: int) -> None:
        """Count certain pairs; the cursors of two crops lie ``apart`` words from each other."""
        widest, tile = self.widest, self.plan.tile
        if widest.pack_queries(block, tile):
            self._pack_thresholds(block)
        described = None
        if widest.bound.norm:
            described = widest.described(self.lanes, self.widths)
        widest.pack_candidates(block, tile, described)
        widest.launch_sweep(
            sweep_crops,
            block,
            packed=widest.packed(self.thresholds, self.lanes),
            crops=CropWidths(self.widths, len(self.crops), self.lanes.stride(0), apart),
            tally=tally,
        )

    def _pack_thresholds(self, block: PairBlock) -> None:
        tile, (first, count, *_) = self.plan.tile, block
        positions = self.widest.order[first : first + count]
        tiles = -(-count // tile.queries)
        shape = (len(self.crops), 3, tiles * tile.queries)
        rows = torch.zeros(shape, dtype=torch.float32, device=self.widest.batch.device)
        rows[:, 0, count:] = torch.nan
        for crop, of_crop in zip(self.crops, rows, strict=True):
            of_crop[:, :count] = crop.thresholds[:, positions]
        rows = nested_thresholds(rows, [crop.rel for crop in self.crops])
        rows = rows.view(len(self.crops), -1, tiles, tile.queries)
        self.thresholds = rows.permute(2, 0, 1, 3).contiguous()


def distance_between(cursors: Sequence[Tensor]) -> int:
    """Return the words between each cursor and the next."""
    if len(cursors) == 1:
        return 0
    return int(cursors[1].storage_offset() - cursors[0].storage_offset())


def nested_thresholds(of_crop: Tensor, rels: Sequence[float]) -> Tensor:
    """Make thresholds, ``[C, 6, b]``: each crop's own ``[C, 3, b]``, rel, and two to stop by.

    ``limit + (1 + 2 rel) bias + 2 slope norm`` is at least ``tau + 2 err`` of this and every later
    crop. Half of twice the error is left for rounding the limit.
    """
    tau, base, slope = of_crop.double().unbind(1)
    rel = torch.empty_like(tau)
    for row, value in zip(rel, rels, strict=True):
        row.fill_(value)
    limit = tau + 2.0 * (rel * tau.abs() + base)
    limit = limit.masked_fill_(limit.isnan(), -torch.inf)  # no target: nothing to wait for
    to_come = [part.flip(0).cummax(0).values.flip(0) for part in (limit, slope)]
    return torch.cat([of_crop, torch.stack([rel, *to_come], 1).float()], 1)
