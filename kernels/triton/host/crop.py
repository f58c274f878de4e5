"""One crop of a batch: scratch, thresholds, and one method per launched kernel."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...operands import Known
from ...reference.canonical import crop as crop_of_rows
from ..device.canonical import CANONICAL_LANES, BandPairs, Targets, rescore, score_targets
from ..device.known import KNOWN_PAIRS, KnownRows, count_known
from ..device.sweep import SweepPanels, Tally, sweep
from . import bounds, configs, layout, split
from . import launch as launcher
from .batch import SharedOperands
from .layout import Described, Selection
from .status import Status
from .views import are_rounded, form_of, packed_planes, views_of

EXACT = {"enable_fp_fusion": False}  # options of every kernel of canonical.py


class PairBlock(NamedTuple):
    """Positions ``first_query ..`` against lanes ``first_candidate ..``.

    A pair is named by the position minus the first, and by the lane.
    """

    first_query: int
    num_queries: int
    first_candidate: int
    num_candidates: int


def _row_floats(batch: SharedOperands, dim: int, plan: configs.CropPlan) -> tuple[int, int]:
    if plan.is_split:
        return split.row_floats(dim), split.row_floats(dim)
    of_query, of_candidate = packed_planes(batch.operands)
    return dim * of_query, dim * of_candidate


class Scratch:
    """Memory that the crops of a batch use in turn: packed rows, a band of open pairs, the status.

    Kernels of a stream run in order, so the crops need not wait for each other.
    """

    def __init__(
        self,
        batch: SharedOperands,
        plans: Sequence[configs.CropPlan | None],
        dims: Sequence[int],
        status: Status,
    ) -> None:
        sizes = [
            0 if plan is None else sum(plan.scratch(*_row_floats(batch, dim, plan)))
            for plan, dim in zip(plans, dims, strict=True)
        ]
        self.status = status
        self.packed = torch.empty(max(sizes, default=0), dtype=torch.float32, device=batch.device)
        self.band = torch.empty(configs.BAND_PAIRS, dtype=torch.int64, device=batch.device)


class Crop:
    """The first ``dim`` features of a batch, with counts added to ``counts [4, B]``.

    A *position* is a query in the order of the targets' scores, so that queries with close targets,
    which stop early, share tiles. A *lane* is a candidate.
    """

    def __init__(
        self,
        batch: SharedOperands,
        dim: int,
        counts: Tensor,
        plan: configs.CropPlan | None,
        scratch: Scratch,
        ends: Sequence[int] = (),
    ) -> None:
        """Make the crop; ``ends`` are those of the crops in the sweep."""
        self.batch, self.dim, self.counts = batch, dim, counts
        self.plan, self.status = plan, scratch.status
        operands = batch.operands
        self.bound = bounds.error_bound(
            operands.score, dim, are_rounded(operands), ends, operands.has_factor
        )
        self.rel = self.bound.rel * bounds.ROUND_UP
        self.form = form_of(operands, self.bound.norm)
        self.band, self.capacity = scratch.band, len(scratch.band)
        self.forget_packed()
        self._take_room(scratch)

    def _take_room(self, scratch: Scratch) -> None:
        if self.plan is not None:
            sizes = self.plan.scratch(*_row_floats(self.batch, self.dim, self.plan))
            parts = scratch.packed[: sum(sizes)].split(sizes)
            self.packed_queries, self.packed_panels, self.lanes = parts

    def forget_packed(self) -> None:
        """Forget packed rows, after another crop has used the scratch."""
        self._packed = PairBlock(0, 0, 0, 0)

    def score_targets(self) -> None:
        """Compute canonical scores of the targets, then thresholds and the order of queries."""
        batch = self.batch
        if batch.target_scores is None:
            self._find_target_scores()
        else:
            self._check_queries()
            self.target_scores = batch.target_scores[batch.operands.crops.index(self.dim)]
        norms = layout.query_norms(
            batch.operands, Selection(batch.num_queries), self.dim, self.bound.norm
        )
        sizes = layout.query_sizes(batch.operands, self.dim)
        self.thresholds = bounds.thresholds(
            self.bound, self.target_scores, norms, batch.bias_magnitude, sizes
        )
        self.order = self.target_scores.sort(descending=True, stable=True).indices

    def _find_target_scores(self) -> None:
        """Score rows that are targets; check queries on the way."""
        batch = self.batch
        self.target_scores = torch.empty_like(batch.targets, dtype=torch.float64)
        launcher.launch(
            score_targets,
            (-(-batch.num_queries // CANONICAL_LANES),),
            {
                "views": views_of(batch.operands),
                "targets": Targets(batch.targets, self.target_scores, None, None),
                "p_status": None if batch.allows_nan else self.status.rows,
                "count": batch.num_queries,
                "num_features": self.dim,
                "FORM": form_of(batch.operands),
            },
            num_warps=1,
            **EXACT,
        )

    def _check_queries(self) -> None:
        """Check queries if target scores are given, as scoring the targets would."""
        batch, operands = self.batch, self.batch.operands
        if batch.allows_nan:
            return
        queries = crop_of_rows(operands.queries, operands.score, self.dim, operands.query_planes)
        is_bad = (~queries.isfinite()).any(1)
        rows = torch.arange(batch.num_queries, dtype=torch.int64, device=batch.device)
        least = rows.where(is_bad, self.status.rows[0]).min()
        self.status.rows[0].clamp_(max=least)

    def register_cap(self, registers: int | None) -> dict[str, int]:
        """Return an option for NVIDIA: ptxas alone sometimes spills a scalar to save registers."""
        return {"maxnreg": registers} if registers and self.batch.arch else {}

    def pack_queries(self, block: PairBlock, tile: configs.CropTile) -> bool:
        """Pack the queries of a block and the thresholds; return False if packed already."""
        if self._packed[:2] == block[:2]:
            return False
        self._packed = PairBlock(*block[:2], *self._packed[2:])
        first, count = block[:2]
        positions = self.order[first : first + count]
        selection, width = Selection(count, positions), tile.queries
        layout.pack_queries(
            self.batch.operands, selection, self.dim, width, out=self.packed_queries
        )
        of_position = self.thresholds[:, positions]
        of_position = torch.nn.functional.pad(of_position, (0, -count % width))
        of_position[0, count:] = torch.nan
        self.packed_thresholds = bounds.tiled(of_position, width)
        return True

    def pack_candidates(
        self, block: PairBlock, tile: configs.CropTile, described: Described | None = None
    ) -> None:
        """Pack the candidates of a block and describe them, unless packed already."""
        if self._packed[2:] == block[2:]:
            return
        self._packed = PairBlock(*self._packed[:2], *block[2:])
        layout.pack_candidates(
            self.batch.operands,
            self._selection(block),
            self.dim,
            tile.candidates,
            out=self.packed_panels,
            status=None if self.batch.allows_nan else self.status.rows[1:],
            described=described or self.described(self.lanes),
        )

    def described(self, lanes: Tensor, widths: Tensor | None = None) -> Described:
        """Return memory for the biases and the norms of a block."""
        bias = self.batch.operands.candidates.whole_bias
        return Described(lanes, self.bound.norm, widths, bias)

    def _selection(self, block: PairBlock) -> Selection:
        first, count = block[2:]
        if self.batch.ids is None:
            return Selection(count, None, first)
        return Selection(count, self.batch.ids[first:])

    def count_pass(self, blocks: Sequence[PairBlock], cursor: Tensor) -> None:
        """Count all candidates of blocks that share queries, and decide open pairs."""
        greater = self.positions(blocks[0])
        for block in blocks:
            self.sweep(block, cursor, greater)
        self.count_certain(blocks[0], greater)
        self.rescore(blocks[0], cursor)

    def positions(self, block: PairBlock) -> Tensor:
        """Return zeros for the positions of a block."""
        assert self.plan is not None
        width = self.plan.tile.queries
        size = -(-block.num_queries // width) * width
        return torch.zeros(size, dtype=torch.int32, device=self.batch.device)

    def sweep(self, block: PairBlock, cursor: Tensor, greater: Tensor) -> None:
        """Count pairs that certainly beat the target; append open pairs to the band."""
        assert self.plan is not None
        tile = self.plan.tile
        self.pack_queries(block, tile)
        self.pack_candidates(block, tile)
        packed = self.packed(self.packed_thresholds, self.lanes)
        tally = Tally(greater, self.band, cursor, self.capacity, block.first_candidate)
        self.launch_sweep(sweep, block, packed=packed, tally=tally)

    def packed(self, thresholds: Tensor, lanes: Tensor) -> SweepPanels:
        """Return the panels that a sweep reads."""
        return SweepPanels(self.packed_queries, self.packed_panels, thresholds, lanes, self.rel)

    def launch_sweep(self, kernel: Any, block: PairBlock, **args: Any) -> None:
        """Launch a sweep of packed rows."""
        assert self.plan is not None
        tile = self.plan.tile
        launcher.launch(
            kernel,
            (
                -(-block.num_queries // tile.queries),
                -(-block.num_candidates // tile.candidates),
            ),
            {
                **args,
                "num_candidates": block.num_candidates,
                "num_features": self.dim,
                "FORM": self.form,
                "TILE": tile.shape,
            },
            num_warps=tile.num_warps,
            **self.register_cap(tile.max_registers),
        )

    def count_certain(self, block: PairBlock, greater: Tensor) -> None:
        """Add the counts of a sweep for each position."""
        queries = self.order[block.first_query : block.first_query + block.num_queries]
        self.counts[0].index_add_(0, queries, greater[: block.num_queries].long())

    def rescore(self, block: PairBlock, cursor: Tensor, pairs: Tensor | None = None) -> None:
        """Decide the band of sweeps of a block's queries, unless the band overflowed."""
        pairs = self.band if pairs is None else pairs
        order = self.order[block.first_query :]
        band = BandPairs(pairs, cursor, len(pairs), order, self.batch.ids)
        self._rescore(band, self.counts[:2])

    def rescore_all(self, first: int, count: int, cursor: Tensor) -> None:
        """Rescore ``count`` pairs without a sweep, in the order of the whole score matrix."""
        device = self.batch.device
        pairs = torch.arange(first, first + count, dtype=torch.int64, device=device)
        queries = pairs.div(self.batch.num_candidates, rounding_mode="floor")
        lanes = pairs - queries * self.batch.num_candidates
        torch.add(queries << 32, lanes, out=self.band[:count])
        cursor.fill_(count)
        band = BandPairs(self.band, cursor, len(self.band), None, self.batch.ids)
        self._rescore(band, self.counts[:2], check=not self.batch.allows_nan)

    def _rescore(self, band: BandPairs, counts: Tensor, *, check: bool = False) -> None:
        batch = self.batch
        most = -(-len(band.pairs) // CANONICAL_LANES)
        launcher.launch(
            rescore,
            (min(most, 32 * launcher.num_multiprocessors(batch.device)),),
            {
                "views": views_of(batch.operands),
                "targets": Targets(batch.targets, self.target_scores, counts[0], counts[1]),
                "band": band,
                "p_status": self.status.rows if check else None,
                "num_features": self.dim,
                "FORM": form_of(batch.operands),
            },
            num_warps=1,
            **EXACT,
        )

    def count_known(self, known: Known, start: int, stop: int, cursor: Tensor) -> None:
        """Count entries ``start .. stop - 1`` of the excluded, at most a band of them."""
        batch, subset = self.batch, self.batch.sorted_ids
        launcher.launch(
            count_known,
            (-(-(stop - start) // KNOWN_PAIRS),),
            {
                "views": views_of(batch.operands),
                "index": KnownRows(
                    known.indptr,
                    known.indices,
                    start,
                    batch.targets,
                    subset,
                    0 if subset is None else len(subset),
                    self.thresholds,
                    self.rel,
                    self.status.unsorted,
                ),
                "tally": Tally(self.counts[2], self.band, cursor, self.capacity, 0),
                "stop": stop,
                "num_queries": batch.num_queries,
                "num_features": self.dim,
                "FORM": self.form,
            },
            num_warps=4,
            **self.register_cap(configs.RSCF_REGISTERS if self.form.is_rscf else 128),
        )
        band = BandPairs(self.band, cursor, len(self.band), None, None)
        self._rescore(band, self.counts[2:])

    def place_unscored(self) -> None:
        """Rank targets that score NaN below every other candidate."""
        batch, greater = self.batch, self.counts[0]
        others = torch.full_like(greater, batch.num_candidates)
        if batch.sorted_ids is None:
            others -= (batch.targets >= 0).long()
        elif len(batch.sorted_ids):
            last = len(batch.sorted_ids) - 1
            place = torch.searchsorted(batch.sorted_ids, batch.targets).clamp_(max=last)
            others -= (batch.sorted_ids[place] == batch.targets).long()
        greater.copy_(torch.where(self.target_scores.isnan(), others, greater))
