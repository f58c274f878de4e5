"""The sweep of one crop: pairs of some queries and candidates, against a limit of each query.

A scan takes queries, then limits of their scores, and sweeps candidates block by block; a tally
says what becomes of the pairs. Ranks count pairs that certainly reach their limit, and a band holds
those that the sweep cannot decide. The best k, whose limits rise, and results above a threshold
collect all pairs that may reach the limit. Rows are packed in float32 (device/sweep.py), split for
tensor cores (device/split_sweep.py), or read in place for few queries (device/in_place.py).

A *position* is a place among the queries that were taken, a *lane* a place among all candidates.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from ..device.split_sweep import SPLIT_NORMS, sweep_split
from ..device.sweep import SweepPanels, Tally, sweep
from ..device.thresholds import (
    THRESHOLD_ROWS,
    Limits,
    Norms,
    Positions,
    places_of,
    write_thresholds,
)
from . import bounds, configs, layout, split
from . import launch as launcher
from .layout import Selection
from .status import Status
from .views import bias_of, form_of, views_of

MOST_LANES = 1 << 30  # of one sweep into bands of queries, so that their cursors fit 32 bits
Span = tuple[int, int]  # first, and one past the last


def score_pairs(operands: Operands, dim: int, band: Pairs, counted: Counted | None = None) -> None:
    """Score pairs of bands canonically by their first ``dim`` features, and count them."""
    pairs = band.scores if band.pairs is None else band.pairs
    num_bands, capacity = pairs.shape if pairs.ndim == 2 else (1, len(pairs))
    most = 32 * launcher.num_multiprocessors(operands.table.device) // num_bands
    arguments = {
        "views": views_of(operands),
        "band": band,
        "counted": counted,
        "capacity": capacity,
        "num_excluded": 0 if band.excluded is None else len(band.excluded),
        "num_features": dim,
        "FORM": form_of(operands),
    }
    grid = min(-(-capacity // CANONICAL_LANES), max(1, most)), num_bands
    launcher.launch(decide, grid, arguments, num_warps=1, enable_fp_fusion=False)


def check_rows(operands: Operands) -> None:
    """Raise a ValueError if there are more rows than a pair can name."""
    rows = ("queries", operands.queries, 31), ("candidates", operands.table, 32)
    for name, operand, limit in rows:
        if len(operand) >= 2**limit:
            raise ValueError(f"{name}: the triton backend takes fewer than 2**{limit} rows")


@contextmanager
def scoring(
    operands: Operands, checks: Checks, *, has_queries: bool = False
) -> Iterator[Callable[[int, Tensor, Tensor], Tensor]]:
    """Yield a function of canonical scores, for candidates that queries list (kernels/lists.py).

    The host waits at the end, and raises if a row that the function read is bad. With
    ``has_queries``, all queries are read, also those without candidates.
    """
    with launcher.serving(operands.table.device):
        check_rows(operands)
        status = Status(1, operands.table.device)
        bad_rows = None if checks.allows_nan else status.rows

        def score_all(dim: int, rows: Tensor, ids: Tensor) -> Tensor:
            """Return canonical scores of pairs, float64 ``[P]``."""
            scores = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
            pairs = Pairs((rows << 32) | ids, None, None, scores=scores, status=bad_rows)
            score_pairs(operands, dim, pairs)
            return scores

        every = torch.arange(operands.num_queries, dtype=torch.int64, device=operands.table.device)
        if has_queries and len(every) and not checks.allows_nan:
            score_all(max(operands.crops), every, torch.zeros_like(every))
        yield score_all
        status.read(checks)


class Scan:
    """The first ``dim`` features of a batch, swept against limits."""

    def __init__(self, operands: Operands, dim: int, arch: int, few: int = MOST_LANES) -> None:
        """Plan a sweep; at most ``few`` queries, or ``FEW_QUERIES``, are swept in place."""
        check_rows(operands)
        self.operands, self.dim, self.arch, device = operands, dim, arch, operands.table.device
        self.ids = operands.candidates.sorted_ids  # those of the lanes; None: all rows
        sizes, score = (operands.num_queries, operands.candidates.num_candidates), operands.score
        self.rows: configs.Rows = "packed"
        if operands.num_queries <= min(few, configs.FEW_QUERIES):
            self.rows = "in place"
        elif configs.splits(score, operands.num_queries, arch) and split.holds(device):
            self.rows = "split"
        room, has_factor = launcher.scratch_of(configs.PACKED_BYTES, device), operands.has_factor
        plan = configs.plan(score, sizes, dim, arch, has_factor, room, self.rows)
        self.tile, self.height, self.width = plan
        is_rounded = torch.float64 in (operands.queries.dtype, operands.table.dtype)
        self.bound = bounds.error_bound(score, dim, is_rounded, has_factor)
        self.form = form_of(operands, self.bound.norm)
        self.status: Tensor | None = None  # [3] least bad rows; None: rows are not checked
        self.release()

    def release(self) -> None:
        """Free the packed rows."""
        self._queries: Any = None
        self._panels: Any = None
        self._swept = (0, 0)

    @cached_property
    def _norms(self) -> Tensor | None:
        return layout.query_norms(self.operands, self.dim, self.bound.norm)

    def limits(self, scores: Tensor) -> Limits:
        """Return limits by the scores of all queries, and the bound of sums in float32."""
        magnitude = self.operands.candidates.bias_magnitude
        return Limits(scores, self._norms, magnitude, self.bound.margins)

    def take(self, queries: Span, order: Tensor | None = None) -> None:
        """Pack some queries; ``order [b]``, if given, has the query of each position."""
        operands, (first, stop), self._queries = self.operands, queries, None
        self._first, self._count, self._order = first, stop - first, order
        places = Selection(self._count, order, first), self.dim, self.tile.rows
        if self.rows == "split":
            self._queries = split.pack(
                operands.queries, *places, status=self.status, is_negated=True
            )
        elif self.rows == "packed":
            self._queries = layout.pack_queries(operands, *places, status=self.status)

    def limit(self, scores: Tensor, counted: Counted | None = None) -> None:
        """Set the limits of the queries from ``scores``: float64, of all queries."""
        tile, magnitude = self.tile.rows, self.operands.candidates.bias_magnitude
        if self.rows == "split":
            margins = split.split_bound(self.dim).margins
            limits = Limits(scores, self._queries.terms, magnitude, margins)
            places = Norms(tile, SPLIT_NORMS, by_position=True)
        else:
            limits, places = self.limits(scores), places_of(self.form)
        rows, tiles = 1 + len(limits.margins) // (1 + places.norms), -(-self._count // tile)
        self._thresholds = scores.new_empty(tiles, rows, tile, dtype=torch.float32)
        arguments = {
            "limits": limits,
            "positions": Positions(self._order, self._first, self.ids, self._thresholds),
            "counted": counted,
            "count": self._count,
            "num_rows": tile,
            "num_candidates": self.operands.candidates.num_candidates,
            "NORMS": places,
        }
        grid = (-(-tiles * tile // THRESHOLD_ROWS),)
        launcher.launch(write_thresholds, grid, arguments, num_warps=1)

    def sweep(self, lanes: Span, tally: Tally) -> None:
        """Sweep lanes ``first .. stop - 1``; ``tally`` says what becomes of pairs."""
        tally = tally._replace(order=self._order, first_query=self._first)
        for start in range(*lanes, self.width):
            chunk = start, min(start + self.width, lanes[1])
            if self._swept != chunk:
                self._panels = None
                self._panels, self._swept = self._packed(chunk), chunk
            self._launch(chunk[1] - start, tally._replace(first=start))

    def _launch(self, size: int, tally: Tally) -> None:  # holds no panels while others are packed
        kernel, arguments = self.launch_arguments()
        sizes = {"num_candidates": size, "num_features": self.dim}
        constants = {"FORM": self.form, "TILE": self.tile}
        self.tile.launch(kernel, self._count, sizes, **arguments, tally=tally, **constants)

    def _packed(self, chunk: Span) -> Any:
        """Return candidates of some lanes, packed."""
        operands, width, bias = self.operands, self.tile.lanes, bias_of(self.operands)
        ids, size = None if self.ids is None else self.ids[chunk[0] :], chunk[1] - chunk[0]
        selection, status = Selection(size, ids, chunk[0]), self.status
        if self.rows == "in place":
            return selection.ids, selection.first, status
        status = None if status is None else status[1:]
        if self.rows == "split":
            return split.pack(operands.table, selection, self.dim, width, status=status, bias=bias)
        room = layout.room(operands.table, size, width, 2)
        described, rows = (LaneFacts(room, bias), self.bound.norm), (operands, selection, self.dim)
        return layout.pack_candidates(*rows, width, status=status, described=described), room

    def launch_arguments(self) -> tuple[Any, dict[str, Any]]:
        """Return the kernel, and the rows that it sweeps."""
        thresholds, rel = self._thresholds, self.bound.rel * bounds.ROUND_UP
        if self.rows == "in place":
            decider = Decider(thresholds, rel, float(self._count), *self._panels)
            return sweep_in_place, {"views": views_of(self.operands), "decider": decider}
        if self.rows == "split":
            rel = split.split_bound(self.dim).rel * bounds.ROUND_UP
            packed = SweepPanels(self._queries, self._panels, thresholds, None, rel)
            return sweep_split, {"packed": packed}
        panels, lanes = self._panels
        return sweep, {"packed": SweepPanels(self._queries, panels, thresholds, lanes, rel)}

    def pieces(self, tally: Tally, starts: Tensor, status: Status, checks: Checks) -> Iterator[int]:
        """Sweep all lanes in pieces with pairs that fit; yield the largest band's number of pairs.

        ``starts`` are the cursors of empty bands. The host waits for every piece, and sweeps a
        piece with more pairs again, narrower. The least piece always fits.
        """
        end, unit = self.operands.candidates.num_candidates, self.tile.lanes
        cursors, room = tally.cursors, tally.capacity
        if cursors is None:
            cursors, room = tally.cursor, tally.capacity // self._count
        first, width, least = 0, MOST_LANES, room // unit * unit
        while first < end:
            stop = min(first + max(width, least), end)
            cursors.copy_(starts)
            self.sweep((first, stop), tally)
            status.cursors(0).copy_((cursors - starts).amax())
            size = status.read(checks)[0][0]
            if size > tally.capacity and stop - first > least:
                width = (stop - first) * tally.capacity // size // 2 // unit * unit
                continue
            self._panels, self._swept = None, (0, 0)  # frees memory for the caller
            yield size
            first, width = stop, min(2 * (stop - first), MOST_LANES)


def keys_of(known: Known) -> Tensor:
    """Return known answers as ``query << 32 | id``, in the order of the index."""
    ids = known.indices
    rows = torch.repeat_interleave(known.indptr.diff(), output_size=len(ids))
    return (rows << 32) | ids


def excluded_keys(candidates: Prepared, known: Known | None) -> Tensor | None:
    """Return known answers as ``query << 32 | lane``, rising."""
    if known is None or not len(known.indices) or not candidates.num_candidates:
        return None
    keys, subset = keys_of(known), candidates.sorted_ids
    if subset is not None:
        places = torch.searchsorted(subset, known.indices).clamp_(max=len(subset) - 1)
        keys += torch.where(subset[places] == known.indices, places, NO_LANE) - known.indices
    return keys.sort().values


def spans(count: int, step: int) -> list[Span]:
    """Cut ``0 .. count - 1`` into ranges of at most ``step``."""
    return [(first, min(first + step, count)) for first in range(0, count, step)]
