"""The best k candidates on a GPU: a limit from the first stripe, a sweep for pairs that pass.

In a pass of queries, float32 scores of a stripe give k good candidates of each query. Their worst
canonical score is a limit: the k-th best score cannot be below. Spans of candidates are swept
against the limits with the certified bound of the ranks. Survivors get canonical scores and are
merged into the best so far by (score, id), and the limits rise. The length of a span is such that
typical limits leave a quarter of a band, so spans grow during the pass.

Cost model: rank_counts' sweep; canonical scores of about k (1 + log(N / stripe)) pairs per query,
and as many merges, with sorts of the whole band. Few queries are swept in place (host/few.py).
Memory: 24 MiB of packed operands, 8 MiB of stripe, 1 MiB of band, and 20 MiB to sort the band with
the best (more for a k above 2**17). The host waits once, for the checks of the input and the sizes
of all bands. Queries with more pairs than a band holds are then swept again, with the limits found
so far, and the host waits for each span; the least span always fits.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..checks import Checks
from ..operands import Known, Operands, Prepared
from .device.canonical import CANONICAL_LANES, Survivors, score_survivors
from .device.in_place import Decider
from .device.sweep import SweepPanels, Tally, collect
from .host import bounds, configs, few, layout, split
from .host import launch as launcher
from .host.batch import SharedOperands
from .host.best import LANE, BestLanes
from .host.layout import Described, Selection
from .host.status import Report, Status
from .host.views import are_rounded, form_of, packed_planes, views_of
from .host.widths import filled
from .pairwise import BLOCK_PAIRS, fill_scores

BAND_PAIRS = 1 << 17
LEAST_BAND = 1 << 12  # pairs that are sorted, if no more are expected
QUERY_BYTES, CANDIDATE_BYTES = 8 << 20, 16 << 20  # packed operands
STRIPE = 4096  # candidates that give the first limits
STRIPE_BYTES = 16 << 20  # bytes of the rows of a stripe
MOST_QUERIES = 1024  # most queries of a pass: the band then holds a column of tiles


def topk(operands: Operands, k: int, known: Known | None, checks: Checks) -> tuple[Tensor, Tensor]:
    """Return the best; the contract is that of ``Backend.topk``."""
    queries = operands.queries
    shape = (len(operands.crops), len(queries), k)
    scores = queries.new_full(shape, -torch.inf)
    ids = queries.new_full(shape, -1, dtype=torch.int64)
    with launcher.serving(operands.table.device) as arch:
        targets = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
        batch = SharedOperands.of(operands, targets, arch, allows_nan=checks.allows_nan)
        if scores.numel() and batch.num_candidates:
            _find(batch, known, checks, scores, ids)
        else:
            checks.read()
    return (scores[0], ids[0]) if operands.dims is None else (scores, ids)


def _find(
    batch: SharedOperands, known: Known | None, checks: Checks, scores: Tensor, ids: Tensor
) -> None:
    """Find all crops: enqueue everything, wait once, then raise or repeat."""
    excluded, k = _excluded_keys(batch, known), scores.shape[2]
    band = torch.empty(BAND_PAIRS, dtype=torch.int64, device=batch.device)
    passes, num_bands = [], 1
    for dim, crop_scores, crop_ids in zip(batch.operands.crops, scores, ids, strict=True):
        job = _TopkJob(batch, dim, k, excluded, band)
        for first in range(0, batch.num_queries, job.height):
            part = slice(first, min(first + job.height, batch.num_queries))
            one = _Pass(job, part, num_bands, (crop_scores[part], crop_ids[part]))
            num_bands += len(one.spans)
            passes.append(one)
    status = Status(num_bands, batch.device)
    for one in passes:
        one.find(status)
    report = status.read(checks)
    report.raise_if_bad()
    for one in passes:
        if one.overflowed(report):
            one.find_again(status, checks)


def _excluded_keys(batch: SharedOperands, known: Known | None) -> Tensor | None:
    """Return known answers as ``query << 32 | lane``, rising; a lane is a place among ids."""
    if known is None or not len(known.indices):
        return None
    lanes, subset = known.indices, batch.sorted_ids
    rows = torch.repeat_interleave(known.indptr.diff(), output_size=len(lanes))
    if subset is not None:
        places = torch.searchsorted(subset, lanes).clamp_(max=batch.num_candidates - 1)
        lanes = torch.where(subset[places] == lanes, places, LANE)
    return ((rows << 32) | lanes).sort().values


class _TopkJob:
    """One crop of a batch: the data that passes share."""

    def __init__(
        self, batch: SharedOperands, dim: int, k: int, excluded: Tensor | None, band: Tensor
    ) -> None:
        self.batch, self.dim, self.k = batch, dim, k
        self.excluded, self.band = excluded, band
        self.device, operands = batch.device, batch.operands
        self.bound = bounds.error_bound(
            operands.score, dim, are_rounded(operands), has_factor=operands.has_factor
        )
        self.form = form_of(operands, self.bound.norm)
        plan = few.few_plan(batch)
        self.is_few, self.is_split = plan is not None, False
        if plan is not None:
            self.tile, self.chunk = plan.tile, plan.candidates_per_chunk
            height, self.fits = batch.num_queries, True
        else:
            height = self._cut()
        self.height = max(1, min(height, BAND_PAIRS // k))

    def _cut(self) -> int:
        """Choose the sweep, the tile and the chunk; return the queries of a pass."""
        batch, operands, dim = self.batch, self.batch.operands, self.dim
        row_bytes = 4 * split.row_floats(dim)
        if configs.splits(operands.score, batch.num_queries, batch.arch):
            self.tile = configs.split_tile(batch.num_queries, batch.arch)
            self.is_split = QUERY_BYTES // row_bytes >= self.tile.queries
        if self.is_split:
            of_query, of_row = row_bytes, row_bytes + configs.SPLIT_LANE_BYTES
        else:
            self.tile = configs.tile_for(operands.score, min(batch.num_queries, 255), batch.arch)
            of_query, of_row = (4 * dim * planes for planes in packed_planes(operands))
            of_row += configs.LANE_BYTES
        panels = min(CANDIDATE_BYTES // of_row // self.tile.candidates, configs.MAX_GRID)
        height = min(QUERY_BYTES // of_query, MOST_QUERIES, BAND_PAIRS // self.tile.candidates)
        self.fits = height > 0 and panels > 0  # else every pair is scored canonically
        self.chunk = panels * self.tile.candidates
        return height

    @property
    def unit(self) -> int:
        return self.tile.candidates if self.fits else 1

    def stripe(self, count: int) -> int:
        """Return the candidates that give limits to queries; 0 if fewer than k."""
        table = self.batch.operands.table
        row_bytes = table.shape[1] * table.element_size()
        width = min(STRIPE, self.batch.num_candidates, BLOCK_PAIRS // count)
        width = min(width, STRIPE_BYTES // row_bytes)
        return width if self.fits and self.k <= width else 0


class _Pass:
    """The best of a block of queries."""

    def __init__(
        self, job: _TopkJob, queries: slice, first_band: int, out: tuple[Tensor, Tensor]
    ) -> None:
        """Prepare a pass; scores and ids go to ``out``, ``[b, k]`` each."""
        self.job, self.queries, self.first_band, self.out = job, queries, first_band, out
        self.first: int = queries.start
        self.count: int = queries.stop - queries.start
        needed = self.count * max(16 * job.k, job.unit)
        self.capacity: int = min(BAND_PAIRS, max(LEAST_BAND, needed))
        self.spans = list(self._spans())
        self.order = torch.arange(self.first, queries.stop, dtype=torch.int64, device=job.device)
        self.limits = torch.full((self.count,), -torch.inf, dtype=torch.float64, device=job.device)

    def _spans(self) -> Iterator[tuple[int, int]]:
        job, num_candidates = self.job, self.job.batch.num_candidates
        least, seen, first = self._least(self.capacity), job.stripe(self.count), 0
        while first < num_candidates:
            width = least
            if job.fits and seen >= job.k:
                width = max(width, seen * self.capacity // (4 * self.count * job.k))
            stop = min(first + width // job.unit * job.unit, num_candidates)
            yield first, stop
            first, seen = stop, max(seen, stop)

    def _least(self, capacity: int) -> int:
        """Return the width of a span that leaves at most ``capacity`` pairs."""
        return capacity // self.count // self.job.unit * self.job.unit

    def overflowed(self, report: Report) -> bool:
        """Return True if a span left more than the band's capacity."""
        sizes = report.sizes[self.first_band : self.first_band + len(self.spans)]
        return any(size > self.capacity for size in sizes)

    def find(self, status: Status) -> None:
        """Write the best, unless a band overflows."""
        if self.job.stripe(self.count):
            self._find_limits()
            if not self.job.is_few:
                self.limits, by_limit = self.limits.sort(descending=True, stable=True)
                self.order = self.order[by_limit]
        self._begin(status)
        for number, span in enumerate(self.spans, self.first_band):
            cursor = status.cursor(number)
            self._collect(*span, cursor, self.capacity)
            self._merge(cursor, self.capacity)
        self._end()

    def find_again(self, status: Status, checks: Checks) -> None:
        """Write the best, with the limits known so far, in spans that fit the band."""
        self._begin(status)
        cursor = status.cursor(0)
        least, num_candidates = self._least(BAND_PAIRS), self.job.batch.num_candidates
        first, width = 0, num_candidates
        while first < num_candidates:
            stop = min(first + max(width, least), num_candidates)
            self._collect(first, stop, cursor.zero_(), BAND_PAIRS)
            size = status.read(checks).sizes[0] if stop - first > least else 0
            if size > BAND_PAIRS:
                width = (stop - first) * BAND_PAIRS // size // 2 // self.job.unit * self.job.unit
                continue
            self._merge(cursor, BAND_PAIRS)
            first, width = stop, 2 * (stop - first)
        self._end()

    def _begin(self, status: Status) -> None:
        """Begin without any best; pack queries in the order of their limits."""
        job, operands = self.job, self.job.batch.operands
        self.status = None if job.batch.allows_nan else status.rows
        self.best = BestLanes(self.order, job.k, job.excluded)
        if not job.fits:
            return
        selection = Selection(self.count, self.order)
        if job.is_split:
            self.split_queries = split.pack_queries(
                operands, selection, job.dim, job.tile.queries, status=self.status
            )
            return
        self.norms = layout.query_norms(operands, selection, job.dim, job.bound.norm)
        sizes = layout.query_sizes(operands.of_queries(self.queries), job.dim)
        self.sizes = None if sizes is None else sizes[:, self.order - self.first]
        if not job.is_few:
            self.packed = layout.pack_queries(
                operands, selection, job.dim, job.tile.queries, status=self.status
            )

    def _end(self) -> None:
        """Write the best, and keep only the limits."""
        self.best.write(*self.out, self.first, self.job.batch.sorted_ids)
        del self.best, self.status
        if self.job.is_split:
            del self.split_queries
        elif self.job.fits:
            del self.norms, self.sizes
            if not self.job.is_few:
                del self.packed

    def _find_limits(self) -> None:
        """Find limits from the float32 scores of the first candidates."""
        job, batch, width = self.job, self.job.batch, self.job.stripe(self.count)
        operands = batch.operands.of_queries(self.queries)
        operands = Operands(
            operands.queries.float(),
            _first_of(operands.candidates, width),
            None if job.dim == operands.num_features else (job.dim,),
        )
        stripe = torch.empty(self.count * width + 1, dtype=torch.float32, device=job.device)
        block = stripe[:-1].view(1, self.count, width)
        fill_scores(block, operands, batch.arch)
        self._remove_known(stripe, width)
        good = block[0].topk(job.k)
        rows = (self.order - self.first)[:, None]
        scores = self._score(((rows << 32) | good.indices).flatten(), None)
        scores = scores.view(self.count, job.k)
        is_real = (good.values > -torch.inf) & ~scores.isnan()
        self.limits = torch.where(is_real, scores, -torch.inf).amin(1)

    def _remove_known(self, stripe: Tensor, width: int) -> None:
        """Put minus infinity at the known answers of a stripe, which is flat with a spare place."""
        if self.job.excluded is not None:
            rows, lanes = (self.job.excluded >> 32) - self.first, self.job.excluded & LANE
            inside = (rows >= 0) & (rows < self.count) & (lanes < width)
            places = torch.where(inside, rows * width + lanes, len(stripe) - 1)
            stripe.index_fill_(0, places, -torch.inf)

    def _collect(self, first: int, stop: int, cursor: Tensor, capacity: int) -> None:
        """Fill the band with the survivors of a span; ``cursor [1]``, 0, counts the pairs."""
        job = self.job
        if not job.fits:
            lanes = torch.arange(first, stop, dtype=torch.int64, device=job.device)
            pairs = ((self.best.rows << 32) | lanes).flatten()
            job.band[: len(pairs)] = pairs
            cursor.fill_(len(pairs))
            return
        ids, thresholds = job.batch.sorted_ids, None if job.is_split else self._thresholds()
        for start in range(first, stop, job.chunk):
            size = min(job.chunk, stop - start)
            selection = Selection(size, None if ids is None else ids[start:], start)
            tally = Tally(None, job.band, cursor, capacity, start)
            if thresholds is None:
                self._sweep_split(selection, tally)
            elif job.is_few:
                self._sweep_in_place(selection, thresholds, tally)
            else:
                self._sweep(selection, thresholds, tally)

    def _thresholds(self) -> Tensor:
        job = self.job
        return bounds.thresholds(
            job.bound, self.limits, self.norms, job.batch.bias_magnitude, self.sizes
        )

    def _sweep_split(self, selection: Selection, tally: Tally) -> None:
        job, tile, operands = self.job, self.job.tile, self.job.batch.operands
        panels = split.pack_candidates(
            operands,
            selection,
            job.dim,
            tile.candidates,
            status=None if self.status is None else self.status[1:],
        )
        bound = split.split_bound(job.dim)
        magnitude = job.batch.bias_magnitude
        decisive = split.tiled_thresholds(bound, self.limits, self.split_queries, magnitude)
        facts = split.SweepFacts(operands, job.dim, tile, bound)
        split.launch_sweep(self.split_queries, panels, decisive, tally, selection.size, facts)

    def _sweep_in_place(self, selection: Selection, thresholds: Tensor, tally: Tally) -> None:
        job = self.job
        rel = torch.full(
            (1,), job.bound.rel * bounds.ROUND_UP, dtype=torch.float32, device=job.device
        )
        widths = filled([job.dim], job.device)
        decider = Decider(thresholds[:3], rel, widths, 1, self.count, 0)
        views = views_of(job.batch.operands.of_queries(self.queries))
        few.launch_in_place(job.form, views, selection, decider, tally, self.status, job.tile)

    def _sweep(self, selection: Selection, thresholds: Tensor, tally: Tally) -> None:
        job, tile, operands = self.job, self.job.tile, self.job.batch.operands
        lanes = layout.room_for_facts(operands, selection.size, tile.candidates)
        described = Described(lanes, job.bound.norm, bias=operands.candidates.whole_bias)
        panels = layout.pack_candidates(
            operands,
            selection,
            job.dim,
            tile.candidates,
            status=None if self.status is None else self.status[1:],
            described=described,
        )
        of_position = torch.nn.functional.pad(thresholds, (0, -self.count % tile.queries))
        of_position[0, self.count :] = torch.nan
        of_position = bounds.tiled(of_position, tile.queries)
        rel = job.bound.rel * bounds.ROUND_UP
        launcher.launch(
            collect,
            (-(-self.count // tile.queries), -(-selection.size // tile.candidates)),
            {
                "packed": SweepPanels(self.packed, panels, of_position, lanes, rel),
                "tally": tally,
                "num_candidates": selection.size,
                "num_features": job.dim,
                "FORM": job.form,
                "TILE": tile.shape,
            },
            num_warps=tile.num_warps,
            **({"maxnreg": tile.max_registers} if tile.max_registers else {}),
        )

    def _merge(self, cursor: Tensor, capacity: int) -> None:
        """Merge the pairs of the band into the best; the limits rise."""
        places = torch.arange(capacity, dtype=torch.int64, device=cursor.device)
        is_new = places < cursor
        pairs = torch.where(is_new, self.job.band[:capacity], 0)
        best = self.best.merge(pairs, self._score(pairs, cursor), is_new)
        self.limits = torch.maximum(self.limits, best)

    def _score(self, pairs: Tensor, cursor: Tensor | None) -> Tensor:
        """Return canonical scores of the first pairs; below the limit any number will do."""
        job, batch = self.job, self.job.batch
        scores = torch.zeros_like(pairs, dtype=torch.float64)
        survivors = Survivors(pairs, cursor, self.order, batch.sorted_ids, self.limits, scores)
        launcher.launch(
            score_survivors,
            (-(-len(pairs) // CANONICAL_LANES),),
            {
                "views": views_of(batch.operands),
                "survivors": survivors,
                "p_status": None if job.fits or batch.allows_nan else self.status,
                "count": len(pairs),
                "num_features": job.dim,
                "FORM": form_of(batch.operands),
            },
            num_warps=1,
            enable_fp_fusion=False,
        )
        return scores


def _first_of(candidates: Prepared, count: int) -> Prepared:
    ids = candidates.sorted_ids
    if ids is None:
        return candidates.rows(slice(0, count))
    ids, bias, factor = ids[:count], candidates.whole_bias, candidates.factor
    return replace(
        candidates,
        table=candidates.table[ids],
        bias=None if bias is None else bias[ids],
        factor=None if factor is None else factor[ids],
        ids=None,
    )
