"""One crop of a batch: its scratch, its thresholds, and one method per kernel that it launches."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..device.canonical import decide, score_targets
from ..device.known import count_known
from ..device.operands import factor_args, query_args, view_args, view_of_factor
from ..device.pack import PACK_FEATURES, PACK_ROWS, describe, pack
from ..device.sweep import sweep
from ..device.terms import score_code
from . import bounds, configs
from .batch import Batch, Known
from .launch import launch, num_multiprocessors
from .moved_queries import describe_moves, fold
from .status import Status

EXACT = {"enable_fp_fusion": False}  # of every kernel of canonical.py
CANONICAL_LANES = 32
KNOWN_PAIRS, KNOWN_FEATURES = 8, 64


class Block(NamedTuple):
    """Positions ``first_query ..`` against lanes ``first_candidate ..``."""

    first_query: int
    num_queries: int
    first_candidate: int
    num_candidates: int


def _row_floats(batch: Batch, dim: int) -> tuple[int, int]:
    """Floats of a packed query and of a packed candidate."""
    of_query, of_candidate = batch.packed_planes
    return dim * of_query, dim * of_candidate


class Scratch:
    """What the crops of a batch use in turn: packed rows, and a band of open pairs.

    Kernels of a stream run in order, so the crops need not wait for each other.
    """

    def __init__(
        self, batch: Batch, plans: Sequence[configs.Plan | None], dims: Sequence[int]
    ) -> None:
        sizes = [
            0 if plan is None else sum(plan.scratch(*_row_floats(batch, dim)))
            for plan, dim in zip(plans, dims, strict=True)
        ]
        device = batch.candidates.device
        self.packed = torch.empty(max(sizes, default=0), dtype=torch.float32, device=device)
        self.band = torch.empty(configs.BAND_PAIRS, dtype=torch.int64, device=device)


class Crop:
    """The first ``dim`` features of a batch. Adds to ``counts [4, B]``.

    A *position* is a query in the order of the targets' scores, so that queries whose target lies
    close, which stop early, share tiles. A *lane* is a candidate.
    """

    def __init__(
        self,
        batch: Batch,
        dim: int,
        counts: Tensor,
        plan: configs.Plan | None,
        scratch: Scratch,
        status: Status,
        ends: Sequence[int] = (),
    ) -> None:
        """``ends``: of the crops that are swept with this one."""
        self.batch, self.dim, self.counts = batch, dim, counts
        self.plan, self.status = plan, status
        self.device, self.planes = batch.candidates.device, batch.facts.planes
        self.bound = bounds.error_bound(
            batch.facts, dim, batch.rounds_inputs, ends, batch.has_factor
        )
        self.rel = self.bound.rel * bounds.ROUND_UP
        self.band, self.capacity = scratch.band, len(scratch.band)
        has_bias = batch.bias is not None
        bias_stride = 0 if batch.bias is None else batch.bias.stride(0)
        self._score: dict[str, Any] = {
            "SCORE": score_code(batch.facts),
            "PLANES": self.planes,
            "HAS_BIAS": has_bias,
        }
        self._bias = {"p_bias": batch.bias, "bias_stride": bias_stride}
        self._pair: dict[str, Any] = {
            **query_args(batch.queries, batch.facts, batch.factor),
            **view_args(batch.candidates, batch.facts, "p_table", "c_"),
            **factor_args(batch.factor),
            **self._bias,
            "num_features": dim,
        }
        self.forget_packed()
        if plan is not None:
            sizes = plan.scratch(*_row_floats(batch, dim))
            parts = scratch.packed[: sum(sizes)].split(sizes)
            self.packed_queries, self.packed_panels, self.lanes = parts

    def forget_packed(self) -> None:
        """To be called where another crop has used the scratch."""
        self._packed = Block(0, 0, 0, 0)

    def score_targets(self) -> None:
        """Canonical scores of the targets, then the thresholds and the order that they give."""
        batch = self.batch
        self.target_scores = torch.empty_like(batch.targets, dtype=torch.float64)
        launch(
            score_targets,
            (-(-batch.num_queries // CANONICAL_LANES),),
            {
                **self._pair,
                "p_targets": batch.targets,
                "p_scores": self.target_scores,
                "p_status": self.status.rows,
                "count": batch.num_queries,
                **self._score,
                "CHECK": not batch.nan_worst,
                "LANES": CANONICAL_LANES,
            },
            num_warps=1,
            **EXACT,
        )
        self.thresholds = bounds.thresholds(
            self.bound,
            self.target_scores,
            None if batch.facts.filters else self._query_norms(),
            batch.bias_magnitude,
            self._query_sizes() if batch.facts.filters else None,
        )
        self.order = self.target_scores.sort(descending=True, stable=True).indices

    def _query_norms(self) -> Tensor | None:
        if not self.bound.norm:
            return None
        count = self.batch.num_queries
        blocks = -(-count // PACK_ROWS)
        lanes = torch.empty(blocks, 2, PACK_ROWS, dtype=torch.float32, device=self.device)
        rows = {**view_args(self.batch.queries, self.batch.facts), "p_ids": None, "first_row": 0}
        self._describe({**rows, "p_bias": None, "bias_stride": 0}, count, lanes, PACK_ROWS)
        return lanes[:, 1].flatten()[:count]

    def _query_sizes(self) -> Tensor:
        sizes = torch.empty(4, self.batch.num_queries, dtype=torch.float64, device=self.device)
        describe_moves(
            launch, self.batch.queries, self.batch.facts, self.batch.factor, self.dim, sizes
        )
        return sizes

    def _register_cap(self, registers: int | None) -> dict[str, int]:
        """An option for NVIDIA: ptxas, left to itself, sometimes spills a scalar to save more."""
        return {"maxnreg": registers} if registers and self.batch.arch else {}

    def _describe(self, rows: dict[str, Any], count: int, out: Tensor, width: int) -> None:
        launch(
            describe,
            (-(-count // width) * (width // PACK_ROWS),),
            {
                **rows,
                "count": count,
                "num_features": self.dim,
                "p_lane": out,
                "PLANES": 1 if self.batch.has_factor else self.planes,
                "LANES": width,
                "HAS_IDS": rows["p_ids"] is not None,
                "HAS_BIAS": rows["p_bias"] is not None,
                "NORM": self.bound.norm,
                "ROWS": PACK_ROWS,
                "FEATURES": PACK_FEATURES,
            },
            num_warps=4,
        )

    def _pack(
        self,
        rows: dict[str, Any],
        count: int,
        out: Tensor,
        width: int,
        planes: int,
        *,
        is_query: bool = False,
        first_plane: int = 0,
    ) -> None:
        """Pack rows of ``planes`` planes; a factor (``first_plane > 0``) less 1."""
        status = self.status.rows[1:] if first_plane else self.status.rows
        launch(
            pack,
            (-(-count // width) * (width // PACK_ROWS), -(-self.dim // PACK_FEATURES)),
            {
                **rows,
                "count": count,
                "num_features": self.dim,
                "p_out": out,
                "p_status": status,
                "PLANES": planes,
                "FIRST": first_plane,
                "TOTAL": self.batch.packed_planes[0 if is_query else 1],
                "LESS": first_plane > 0,
                "LANES": width,
                "HAS_IDS": rows["p_ids"] is not None,
                "NEGATE": is_query and self.batch.facts.name == "dot",
                "CHECK": not is_query and not self.batch.nan_worst,  # queries are checked already
                "ROWS": PACK_ROWS,
                "FEATURES": PACK_FEATURES,
            },
            num_warps=4,
        )

    def pack_queries(self, block: Block, tile: configs.Tile) -> bool:
        """Pack the queries of a block and their thresholds; False if they are."""
        if self._packed[:2] == block[:2]:
            return False
        self._packed = Block(*block[:2], *self._packed[2:])
        positions = self.order[block.first_query : block.first_query + block.num_queries]
        batch, count, out = self.batch, block.num_queries, self.packed_queries
        if batch.facts.filters:
            operands = batch.queries, batch.facts, batch.factor, self.dim
            fold(launch, *operands, positions, tile.queries, out)
        else:
            view = view_args(batch.queries, batch.facts)
            rows = {**view, "p_ids": positions, "first_row": 0}
            self._pack(rows, count, out, tile.queries, self.planes, is_query=True)
        padding = -block.num_queries % tile.queries
        of_position = self.thresholds[:, positions]
        of_position = torch.nn.functional.pad(of_position, (0, padding))
        of_position[0, count:] = torch.nan
        self.packed_thresholds = bounds.tiled(of_position, tile.queries)
        return True

    def pack_candidates(self, block: Block, tile: configs.Tile) -> bool:
        """Pack the candidates of a block and describe them; False if they are."""
        if self._packed[2:] == block[2:]:
            return False
        self._packed = Block(*self._packed[:2], *block[2:])
        batch, lanes = self.batch, self._lane_rows(block.first_candidate)
        shape = block.num_candidates, self.packed_panels, tile.candidates
        rows = {**view_args(batch.candidates, batch.facts), **lanes}
        self._pack(rows, *shape, self.planes)
        if batch.factor is not None:
            rows = {**view_of_factor(batch.factor), **lanes}
            self._pack(rows, *shape, 1, first_plane=self.planes)
        if self.bound.norm or self.batch.bias is not None:
            self.describe_candidates(block, tile, self.lanes)
        return True

    def describe_candidates(self, block: Block, tile: configs.Tile, lanes: Tensor) -> None:
        """Write the biases and the norms of a block."""
        batch = self.batch
        view = view_args(batch.candidates, batch.facts)
        if batch.factor is not None:  # its norm is what counts
            view = view_of_factor(batch.factor)
        rows = {**view, **self._lane_rows(block.first_candidate), **self._bias}
        self._describe(rows, block.num_candidates, lanes, tile.candidates)

    def _lane_rows(self, first: int) -> dict[str, Any]:
        """The table's row of each lane from ``first`` on."""
        if self.batch.ids is None:
            return {"p_ids": None, "first_row": first}
        return {"p_ids": self.batch.ids[first:], "first_row": 0}

    def sweep(self, block: Block, cursor: Tensor, *, count_certain: bool = True) -> None:
        """Count what beats its target for certain; the open pairs become the band."""
        assert self.plan is not None
        tile = self.plan.tile
        self.pack_queries(block, tile)
        self.pack_candidates(block, tile)
        tiles = -(-block.num_queries // tile.queries)
        greater = torch.zeros(tiles * tile.queries, dtype=torch.int32, device=self.device)
        self.launch_sweep(
            sweep,
            block,
            {
                "p_threshold": self.packed_thresholds,
                "p_lane": self.lanes,
                "p_greater": greater,
                "p_band": self.band,
                "p_cursor": cursor,
                "capacity": self.capacity,
                "rel": self.rel,
                "HAS_FACTOR": self.batch.has_factor,
            },
        )
        if count_certain:
            self.count_certain(block, greater)

    def launch_sweep(self, kernel: Any, block: Block, args: dict[str, Any]) -> None:
        """Launch a sweep of what is packed."""
        assert self.plan is not None
        tile = self.plan.tile
        launch(
            kernel,
            (
                -(-block.num_queries // tile.queries),
                -(-block.num_candidates // tile.candidates),
            ),
            {
                "p_query": self.packed_queries,
                "p_panel": self.packed_panels,
                **args,
                "num_candidates": block.num_candidates,
                "num_features": self.dim,
                **self._score,
                "HAS_NORM": self.bound.norm > 0,
                "BLOCK_M": tile.queries,
                "BLOCK_N": tile.candidates,
            },
            num_warps=tile.num_warps,
            **self._register_cap(tile.max_registers),
        )

    def count_certain(self, block: Block, greater: Tensor) -> None:
        """Add what a sweep counted for each position."""
        queries = self.order[block.first_query : block.first_query + block.num_queries]
        self.counts[0].index_add_(0, queries, greater[: block.num_queries].long())

    def decide(self, block: Block, cursor: Tensor, band: Tensor | None = None) -> None:
        """Decide a sweep's band, unless it overflowed."""
        order = self.order[block.first_query :]
        lanes = self._lane_rows(block.first_candidate)
        self._decide(cursor, self.counts[:2], order, lanes, band=band)

    def decide_all(self, first: int, count: int, cursor: Tensor) -> None:
        """Decide ``count`` pairs without a sweep, in the order of the whole score matrix."""
        pairs = torch.arange(first, first + count, dtype=torch.int64, device=self.device)
        queries = pairs.div(self.batch.num_candidates, rounding_mode="floor")
        lanes = pairs - queries * self.batch.num_candidates
        torch.add(queries << 32, lanes, out=self.band[:count])
        cursor.fill_(count)
        check = not self.batch.nan_worst
        self._decide(cursor, self.counts[:2], None, self._lane_rows(0), check=check)

    def _decide(
        self,
        cursor: Tensor,
        counts: Tensor,
        order: Tensor | None,
        lane_rows: dict[str, Any],
        *,
        check: bool = False,
        band: Tensor | None = None,
    ) -> None:
        band = self.band if band is None else band
        most = -(-len(band) // CANONICAL_LANES)
        launch(
            decide,
            (min(most, 32 * num_multiprocessors(self.device)),),
            {
                **self._pair,
                "p_targets": self.batch.targets,
                "p_scores": self.target_scores,
                "p_greater": counts[0],
                "p_equal": counts[1],
                "p_band": band,
                "p_cursor": cursor,
                "capacity": len(band),
                "p_order": order,
                **lane_rows,
                "p_status": self.status.rows,
                **self._score,
                "HAS_ORDER": order is not None,
                "HAS_IDS": lane_rows["p_ids"] is not None,
                "CHECK": check,
                "LANES": CANONICAL_LANES,
            },
            num_warps=1,
            **EXACT,
        )

    def count_known(self, known: Known, start: int, stop: int, cursor: Tensor) -> None:
        """The excluded counts of entries ``start .. stop - 1``: no more than a band holds."""
        batch = self.batch
        subset = batch.sorted_ids
        num_subset = 0 if subset is None else len(subset)
        launch(
            count_known,
            (-(-(stop - start) // KNOWN_PAIRS),),
            {
                **self._pair,
                "p_indptr": known.indptr,
                "p_indices": known.indices,
                "p_targets": batch.targets,
                "p_subset": subset,
                "p_threshold": self.thresholds,
                "p_greater": self.counts[2],
                "p_band": self.band,
                "p_cursor": cursor,
                "p_unsorted": self.status.unsorted,
                "start": start,
                "stop": stop,
                "num_queries": batch.num_queries,
                "num_subset": num_subset,
                "search_steps": max(batch.num_queries + 1, num_subset).bit_length(),
                "rel": self.rel,
                **self._score,
                "NORM": self.bound.norm,
                "HAS_SUBSET": subset is not None,
                "PAIRS": KNOWN_PAIRS,
                "FEATURES": KNOWN_FEATURES,
            },
            num_warps=4,
            **self._register_cap(configs.FILTER_REGISTERS if batch.facts.filters else 128),
        )
        self._decide(cursor, self.counts[2:], None, {"p_ids": None, "first_row": 0})

    def place_unscored(self) -> None:
        """A target whose score is NaN ranks below every other candidate."""
        batch, greater = self.batch, self.counts[0]
        others = torch.full_like(greater, batch.num_candidates)
        if batch.sorted_ids is None:
            others -= 1
        elif len(batch.sorted_ids):
            last = len(batch.sorted_ids) - 1
            place = torch.searchsorted(batch.sorted_ids, batch.targets).clamp_(max=last)
            others -= (batch.sorted_ids[place] == batch.targets).long()
        greater.copy_(torch.where(self.target_scores.isnan(), others, greater))
