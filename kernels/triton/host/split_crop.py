"""Crop with a sweep on tensor cores; all else is as in any crop."""

from collections.abc import Sequence

from torch import Tensor

from ..device.sweep import Tally
from . import configs, split
from .batch import SharedOperands
from .crop import Crop, PairBlock, Scratch
from .layout import Described, Selection


class SplitCrop(Crop):
    """:class:`Crop` of dot products of rows that are split in two."""

    def pack_queries(self, block: PairBlock, tile: configs.CropTile) -> bool:
        """Split the queries of a block and make thresholds; return False if done already."""
        if self._packed[:2] == block[:2]:
            return False
        self._packed = PairBlock(*block[:2], *self._packed[2:])
        first, count = block[:2]
        positions = self.order[first : first + count]
        self._queries = split.pack_queries(
            self.batch.operands,
            Selection(count, positions),
            self.dim,
            tile.queries,
            out=self.packed_queries,
        )
        self.packed_thresholds = split.tiled_thresholds(
            self._facts(tile).bound,
            self.target_scores[positions],
            self._queries,
            self.batch.bias_magnitude,
        )
        return True

    def pack_candidates(
        self, block: PairBlock, tile: configs.CropTile, described: Described | None = None
    ) -> None:
        """Split the candidates of a block, unless done already; norms are always made."""
        assert described is None, "crops of split rows do not share a sweep"
        if self._packed[2:] == block[2:]:
            return
        self._packed = PairBlock(*self._packed[:2], *block[2:])
        self._candidates = split.pack_candidates(
            self.batch.operands,
            self._selection(block),
            self.dim,
            tile.candidates,
            out=self.packed_panels,
            status=None if self.batch.allows_nan else self.status.rows[1:2],
        )

    def sweep(self, block: PairBlock, cursor: Tensor, greater: Tensor) -> None:
        """Count pairs that certainly beat the target; append open pairs to the band."""
        assert self.plan is not None
        tile = self.plan.tile
        self.pack_queries(block, tile)
        self.pack_candidates(block, tile)
        split.launch_sweep(
            self._queries,
            self._candidates,
            self.packed_thresholds,
            Tally(greater, self.band, cursor, self.capacity, block.first_candidate),
            block.num_candidates,
            self._facts(tile),
        )

    def _facts(self, tile: configs.CropTile) -> split.SweepFacts:
        return split.SweepFacts(self.batch.operands, self.dim, tile, split.split_bound(self.dim))


def crop_of(
    batch: SharedOperands,
    dim: int,
    counts: Tensor,
    plan: configs.CropPlan | None,
    scratch: Scratch,
    ends: Sequence[int] = (),
) -> Crop:
    kind = SplitCrop if plan is not None and plan.is_split else Crop
    return kind(batch, dim, counts, plan, scratch, ends)
