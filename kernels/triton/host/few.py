"""Crops of a few queries as one: swept in place, without packing (device/in_place.py)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...scores import Score
from ..device.arguments import Form, TileShape, Views
from ..device.in_place import Decider, sweep_in_place
from ..device.sweep import Tally
from . import configs
from . import launch as launcher
from .batch import SharedOperands
from .crop import Crop, PairBlock, Scratch
from .layout import Selection
from .nest import Nest
from .views import views_of
from .widths import filled

_REGISTERS = 255  # all registers there are; with a lower cap ptxas spills scalars


def few_plan(batch: SharedOperands, num_crops: int = 1) -> configs.CropPlan | None:
    """Plan a sweep of few queries, which needs no scratch; None for many queries."""
    if batch.num_queries > configs.FEW_QUERIES:
        return None
    tile = tile_for(batch.operands.score, batch.num_queries, batch.arch, num_crops)
    return configs.CropPlan(tile, configs.FEW_QUERIES, configs.MAX_GRID * tile.candidates)


def tile_for(score: Score, num_queries: int, arch: int, num_crops: int = 1) -> configs.CropTile:
    """Return a tile with sums that stay in registers: 8 to 64 per thread.

    Queries of rscf scores, which are limited by arithmetic, share a tile in groups of four, or
    eight with crops: the next group finds the rows in the cache. Four queries have half the
    candidates for complex rows on Blackwell, where the compiler takes more registers, and with
    crops, where counts take registers.
    """
    most = 4 if score.is_rscf else 8 if num_crops > 1 else configs.FEW_QUERIES
    queries = min(1 << (num_queries - 1).bit_length(), most)
    few = 2 if num_crops > 1 or (arch >= 100 and score.planes == 2) else 4
    return configs.CropTile(queries, 16 if queries <= few else 8, 4, _REGISTERS if arch else None)


class FewCrop(Crop):
    """Crop of few queries, whose positions are queries."""

    def _take_room(self, scratch: Scratch) -> None:
        """Do nothing: no rows are packed."""

    def score_targets(self) -> None:
        super().score_targets()
        count = self.batch.num_queries
        self.order = torch.arange(count, dtype=torch.int64, device=self.batch.device)

    def sweep(self, block: PairBlock, cursor: Tensor, greater: Tensor) -> None:
        """Count pairs that certainly beat the target; append open pairs to the band."""
        tally = Tally(greater, self.band, cursor, self.capacity, block.first_candidate)
        _sweep([self], block, tally, 0)


class Few(Nest):
    """Crops of rising widths of few queries."""

    def _make_room(self) -> None:
        """Do nothing: no rows are packed."""

    def score_targets(self) -> None:
        for crop in self.crops:
            crop.score_targets()

    def sweep(self, block: PairBlock, tally: Tally, apart: int) -> None:
        """Count certain pairs; the cursors of two crops lie ``apart`` words from each other."""
        _sweep(self.crops, block, tally, apart)


def _sweep(crops: Sequence[Crop], block: PairBlock, tally: Tally, apart: int) -> None:
    widest = crops[-1]
    batch, device = widest.batch, widest.batch.device
    rels = torch.empty(len(crops), dtype=torch.float32, device=device)
    for rel, crop in zip(rels, crops, strict=True):
        rel.fill_(crop.rel)
    queries = slice(block.first_query, block.first_query + block.num_queries)
    thresholds = torch.stack([crop.thresholds[:3, queries] for crop in crops])
    widths = filled([crop.dim for crop in crops], device)
    decider = Decider(thresholds, rels, widths, len(crops), block.num_queries, apart)
    ids = None if batch.ids is None else batch.ids[block.first_candidate :]
    selection = Selection(block.num_candidates, ids, block.first_candidate)
    status = None if batch.allows_nan else widest.status.rows
    views = views_of(batch.operands.of_queries(queries))
    assert widest.plan is not None
    launch_in_place(widest.form, views, selection, decider, tally, status, widest.plan.tile)


def launch_in_place(
    form: Form,
    views: Views,
    selection: Selection,
    decider: Decider,
    tally: Tally,
    status: Tensor | None,
    tile: configs.CropTile,
) -> None:
    """Sweep the rows of a selection, at most ``MAX_GRID`` tiles at a time."""
    launcher.launch(
        sweep_in_place,
        (-(-decider.queries // tile.queries), -(-selection.size // tile.candidates)),
        {
            "views": views,
            "lanes": selection.of(views.table, status),
            "decider": decider,
            "tally": tally,
            "num_candidates": selection.size,
            "FORM": form,
            "TILE": TileShape(tile.queries, tile.candidates),
        },
        num_warps=tile.num_warps,
        **({"maxnreg": tile.max_registers} if tile.max_registers else {}),
    )
