"""The sweep of one crop: pairs of some queries and candidates, against a limit of each query.

A scan takes queries, then limits of their scores, and sweeps candidates block by block. A pair that
certainly reaches its limit is counted, and a pair that the sweep cannot decide is appended to a
band. Rows are packed in float32 (device/sweep.py), split for tensor cores (device/split_sweep.py),
or read in place for few queries (device/in_place.py).

A *position* is a place among the queries that were taken, a *lane* a place among all candidates.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...checks import Checks
from ...operands import Known, Operands, Prepared
from ..device.best import NO_LANE
from ..device.canonical import CANONICAL_LANES, Counted, Pairs, decide
from ..device.in_place import Decider, sweep_in_place
from ..device.pack import LaneFacts
from ..device.split_sweep import SplitPanels, sweep_split
from ..device.sweep import SweepPanels, Tally, sweep
from . import bounds, configs, layout, split
from . import launch as launcher
from .layout import Selection
from .status import Status
from .views import bias_of, form_of, views_of

NO_PAIR = 2**63 - 1  # after all pairs


class Crop:
    """The first ``dim`` features of a batch, and the error of their float32 sweep."""

    def __init__(self, operands: Operands, dim: int, arch: int, *, allows_nan: bool) -> None:
        """Prepare checked operands.

        Raises
        ------
        ValueError
            If there are more rows than a band can name.
        """
        rows = ("queries", operands.queries, 31), ("candidates", operands.table, 32)
        for name, operand, limit in rows:
            if len(operand) >= 2**limit:
                raise ValueError(f"{name}: the triton backend takes fewer than 2**{limit} rows")
        self.operands, self.dim, self.arch, self.allows_nan = operands, dim, arch, allows_nan
        self.device = operands.table.device
        is_rounded = torch.float64 in (operands.queries.dtype, operands.table.dtype)
        self.bound = bounds.error_bound(operands.score, dim, is_rounded, operands.has_factor)
        self.rel = self.bound.rel * bounds.ROUND_UP
        self.form = form_of(operands, self.bound.norm)

    def plan(self, **options: int) -> configs.CropPlan:
        """Cut the pairs into passes and chunks; ``options`` are those of :func:`configs.plan`."""
        operands = self.operands
        sizes = operands.num_queries, operands.candidates.num_candidates
        return configs.plan(
            operands.score, sizes, self.dim, self.arch, operands.has_factor, **options
        )

    def decide(self, band: Pairs, counted: Counted | None = None) -> None:
        """Score pairs canonically, and count them."""
        capacity = len(band.scores if band.pairs is None else band.pairs)
        programs, excluded = -(-capacity // CANONICAL_LANES), band.excluded
        if counted is not None:
            programs = min(programs, 32 * launcher.num_multiprocessors(self.device))
        arguments = {
            "views": views_of(self.operands),
            "band": band,
            "counted": counted,
            "capacity": capacity,
            "num_excluded": 0 if excluded is None else len(excluded),
            "num_features": self.dim,
            "FORM": form_of(self.operands),
        }
        launcher.launch(decide, (programs,), arguments, num_warps=1, enable_fp_fusion=False)

    @cached_property
    def _norms(self) -> Tensor | None:
        every = Selection(self.operands.num_queries)
        return layout.query_norms(self.operands, every, self.dim, self.bound.norm)

    @cached_property
    def _sizes(self) -> Tensor | None:
        return layout.query_sizes(self.operands, self.dim)

    def thresholds(self, limits: Tensor, queries: Tensor | None = None) -> Tensor:
        """Return the thresholds of limits ``[b]`` of some queries, or of all: bounds.thresholds."""
        norms, sizes = self._norms, self._sizes
        if queries is not None:
            norms = None if norms is None else norms[queries]
            sizes = None if sizes is None else sizes[:, queries]
        magnitude = self.operands.candidates.bias_magnitude
        return bounds.thresholds(self.bound, limits, norms, magnitude, sizes)


class Scan:
    """Sweep by packed rows, and the parts that other sweeps replace."""

    kernel: Any = sweep

    def __init__(self, crop: Crop, plan: configs.CropPlan, ids: Tensor | None) -> None:
        """Make a sweep by a plan; ``ids`` are those of the lanes, None for all rows."""
        self.crop, self.operands, self.dim = crop, crop.operands, crop.dim
        self._num_lanes = crop.operands.candidates.num_candidates
        self.tile, self._chunk, self._ids = plan.tile, plan.candidates_per_chunk, ids
        self.release()

    def release(self) -> None:
        """Free the packed rows."""
        self._queries: Any = None
        self._panels: Any = None
        self._swept = (0, 0)

    def take(self, queries: Tensor, status: Tensor | None) -> None:
        """Pack queries ``[b]``; ``status [3]`` notes bad rows of queries, candidates and factor."""
        self._queries, self._taken, self._status = None, queries, status
        self._of_rows = None if status is None else status[1:]
        self._queries = self._packed_queries(Selection(len(queries), queries))

    def limit(self, limits: Tensor, thresholds: Tensor | None = None) -> None:
        """Set the limits ``[b]``, float64; ``thresholds`` are those of all queries, if known."""
        self._thresholds = bounds.tiled(self._rows(limits, thresholds), self.tile.queries)

    def counts(self) -> Tensor:
        """Return zeros, int32, a count for each position; the last tile may be ragged."""
        size = -(-len(self._taken) // self.tile.queries) * self.tile.queries
        return torch.zeros(size, dtype=torch.int32, device=self.crop.device)

    def sweep(
        self,
        lanes: tuple[int, int],
        greater: Tensor | None,
        band: Tensor,
        cursor: Tensor,
        capacity: int,
    ) -> None:
        """Sweep lanes ``first .. stop - 1``; count certain pairs, append open pairs to the band.

        Without ``greater``, every pair is appended that may reach its limit. ``cursor [1]`` counts
        the appended pairs.
        """
        first, stop = lanes
        for start in range(first, stop, self._chunk):
            size = min(self._chunk, stop - start)
            if self._swept != (start, size):
                self._panels, ids = None, None if self._ids is None else self._ids[start:]
                self._panels = self._packed_candidates(Selection(size, ids, start))
                self._swept = start, size
            self._launch(size, Tally(greater, band, cursor, capacity, start))

    def pieces(self, band: Tensor, status: Status, checks: Checks) -> Iterator[int]:
        """Sweep all lanes in pieces with pairs that fit a band; yield the number of these pairs.

        The host waits for every piece, and sweeps a piece with more pairs again, narrower. The
        least piece always fits.
        """
        end, unit, capacity = self._num_lanes, self.tile.candidates, len(band)
        least = capacity // len(self._taken) // unit * unit
        cursor, first, width = status.cursor(0), 0, end
        while first < end:
            stop = min(first + max(width, least), end)
            self.sweep((first, stop), None, band.fill_(NO_PAIR), cursor.zero_(), capacity)
            report = status.read(checks)
            report.raise_if_bad()
            if report.sizes[0] > capacity and stop - first > least:
                width = (stop - first) * capacity // report.sizes[0] // 2 // unit * unit
                continue
            self._panels, self._swept = None, (0, 0)  # frees memory for the caller
            yield report.sizes[0]
            first, width = stop, 2 * (stop - first)

    def _rows(self, limits: Tensor, thresholds: Tensor | None) -> Tensor:
        if thresholds is None:
            return self.crop.thresholds(limits, self._taken)
        return thresholds[:, self._taken]

    def _packed_queries(self, selection: Selection) -> Any:
        return layout.pack_queries(
            self.operands, selection, self.dim, self.tile.queries, status=self._status
        )

    def _packed_candidates(self, selection: Selection) -> Any:
        operands, width = self.operands, self.tile.candidates
        room = layout.room_for_facts(operands, selection.size, width)
        described = LaneFacts(room, bias_of(operands)), self.crop.bound.norm
        panels = layout.pack_candidates(
            operands, selection, self.dim, width, status=self._of_rows, described=described
        )
        return panels, room

    def _arguments(self) -> dict[str, Any]:
        panels, lanes = self._panels
        rows = self._queries, panels, self._thresholds, lanes, self.crop.rel
        return {"packed": SweepPanels(*rows)}

    def _launch(self, size: int, tally: Tally) -> None:
        arguments = {**self._arguments(), "tally": tally, "FORM": self.crop.form}
        sizes = {"num_candidates": size, "num_features": self.dim}
        kernel, count, shape = type(self).kernel, len(self._taken), self.tile.shape
        self.tile.launch(kernel, count, sizes, **arguments, TILE=shape)


class SplitScan(Scan):
    """Sweep of dot products by tensor cores."""

    kernel = sweep_split

    def limit(self, limits: Tensor, thresholds: Tensor | None = None) -> None:
        rows = split.thresholds(
            split.split_bound(self.dim),
            limits,
            split.norms_of(self._queries, len(limits)),
            self.operands.candidates.bias_magnitude,
        )
        self._thresholds = bounds.tiled(rows, self.tile.queries)

    def _packed_queries(self, selection: Selection) -> Any:
        rows, width = self.operands.queries, self.tile.queries
        return split.pack(rows, selection, self.dim, width, status=self._status, is_negated=True)

    def _packed_candidates(self, selection: Selection) -> Any:
        rows, width, bias = self.operands.table, self.tile.candidates, bias_of(self.operands)
        return split.pack(rows, selection, self.dim, width, status=self._of_rows, bias=bias)

    def _arguments(self) -> dict[str, Any]:
        rel = split.split_bound(self.dim).rel * bounds.ROUND_UP
        return {"packed": SplitPanels(self._queries, self._panels, self._thresholds, rel)}


class ScanInPlace(Scan):
    """Sweep of few queries, which packs nothing."""

    kernel = sweep_in_place

    def _packed_queries(self, selection: Selection) -> Any:
        return views_of(self.operands.of_queries(self._taken))

    def _packed_candidates(self, selection: Selection) -> Any:
        return selection.ids, selection.first, self._status

    def limit(self, limits: Tensor, thresholds: Tensor | None = None) -> None:
        self._thresholds = bounds.tiled(self._rows(limits, thresholds)[:3], self.tile.queries)

    def _arguments(self) -> dict[str, Any]:
        decider = Decider(self._thresholds, self.crop.rel, float(len(self._taken)), *self._panels)
        return {"views": self._queries, "decider": decider}


def keys_of(known: Known) -> Tensor:
    """Return known answers as ``query << 32 | id``, in the order of the index."""
    ids = known.indices
    rows = torch.repeat_interleave(known.indptr.diff(), output_size=len(ids))
    return (rows << 32) | ids


def excluded_keys(candidates: Prepared, known: Known | None) -> Tensor | None:
    """Return known answers as ``query << 32 | lane``, rising."""
    if known is None or not len(known.indices):
        return None
    keys, subset = keys_of(known), candidates.sorted_ids
    if subset is not None:
        places = torch.searchsorted(subset, known.indices).clamp_(max=len(subset) - 1)
        keys += torch.where(subset[places] == known.indices, places, NO_LANE) - known.indices
    return keys.sort().values


def scan_of(crop: Crop, plan: configs.CropPlan, ids: Tensor | None) -> Scan:
    """Make the sweep that a plan calls for."""
    kinds = {"packed": Scan, "split": SplitScan, "in place": ScanInPlace}
    return kinds[plan.rows](crop, plan, ids)
