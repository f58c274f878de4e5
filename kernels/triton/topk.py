"""The best k candidates on a GPU: a limit from the first stripe, a sweep for what may pass it.

Per pass of queries: float32 scores of a stripe name k good candidates of each query, whose worst
canonical score is a limit that the k-th best cannot be below; blocks of candidates are swept
against the limits with the certified bound of the ranks; survivors get canonical scores, are merged
into the best so far by (score, id), and the limits rise. The order in which survivors are appended
does not matter.

Cost model: rank_counts' sweep; canonical scores of about k (1 + log(N / stripe)) pairs a query.
Memory: 24 MiB of packed operands, 8 MiB of stripe, 1 MiB of band, and 20 MiB to sort it with the
best (more where one query asks for more than 2**17). The host waits once per block, for the number
of survivors: one block serves 1024 queries and 40,943 candidates, k = 5. A block that leaves more
than the band holds is swept again in parts, of which the last always fits.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ..checks import Checks
from ..operands import Known, Operands, Prepared
from .device.canonical import CANONICAL_LANES, Survivors, score_survivors
from .device.sweep import Packed, Tally, collect
from .host import bounds, configs, layout
from .host import launch as launcher
from .host.batch import Batch
from .host.layout import Selection
from .host.status import Status
from .host.views import are_rounded, form_of, packed_planes, views_of
from .pairwise import BLOCK_PAIRS, fill_scores

BAND_PAIRS = 1 << 17
QUERY_BYTES, CANDIDATE_BYTES = 8 << 20, 16 << 20  # packed operands
STRIPE = 4096  # candidates that give the first limits
STRIPE_BYTES = 16 << 20  # of their rows
MOST_QUERIES = 1024  # of a pass: the band then holds a column of tiles
_LANE = 0xFFFFFFFF
_LARGEST = 2**63 - 1
_MISSING, _NAN = -(2**63), 1 - 2**63  # keys below every number's


def topk(operands: Operands, k: int, known: Known | None, checks: Checks) -> tuple[Tensor, Tensor]:
    """The contract of ``Backend.topk``."""
    queries = operands.queries
    shape = (len(operands.crops), len(queries), k)
    scores = queries.new_full(shape, -torch.inf)
    ids = queries.new_full(shape, -1, dtype=torch.int64)
    with launcher.serving(operands.table.device) as arch:
        targets = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
        batch = Batch.of(operands, targets, arch, allows_nan=checks.allows_nan)
        if scores.numel() and batch.num_candidates:
            excluded = _excluded_keys(batch, known)
            for dim, crop_scores, crop_ids in zip(operands.crops, scores, ids, strict=True):
                job = _Job(batch, dim, k, excluded, checks)
                for first in range(0, len(queries), job.height):
                    part = slice(first, first + job.height)
                    _Pass(job, first, len(crop_ids[part])).write(crop_scores[part], crop_ids[part])
        checks.read()
    return (scores[0], ids[0]) if operands.dims is None else (scores, ids)


def _excluded_keys(batch: Batch, known: Known | None) -> Tensor | None:
    """The known answers as ``query << 32 | lane``, rising; a lane is a place in the rising ids."""
    if known is None or not len(known.indices):
        return None
    lanes, subset = known.indices, batch.sorted_ids
    rows = torch.repeat_interleave(known.indptr.diff(), output_size=len(lanes))
    if subset is not None:
        places = torch.searchsorted(subset, lanes).clamp_(max=batch.num_candidates - 1)
        lanes = torch.where(subset[places] == lanes, places, _LANE)
    return ((rows << 32) | lanes).sort().values


class _Job:
    """One crop of a batch: what its passes share."""

    def __init__(
        self, batch: Batch, dim: int, k: int, excluded: Tensor | None, checks: Checks
    ) -> None:
        self.batch, self.dim, self.k = batch, dim, k
        self.excluded, self.checks = excluded, checks
        self.device, operands = batch.device, batch.operands
        self.bound = bounds.error_bound(
            operands.score, dim, are_rounded(operands), has_factor=operands.has_factor
        )
        self.form = form_of(operands, self.bound.norm)
        self.band = torch.empty(BAND_PAIRS, dtype=torch.int64, device=self.device)
        self.status = Status(1, self.device)
        self.cursor = self.status.cursor(0)
        self.tile = configs.tile_for(operands.score, min(batch.num_queries, 255), batch.arch)
        query_bytes, row_bytes = (4 * dim * planes for planes in packed_planes(operands))
        row_bytes += configs.LANE_BYTES
        height = min(QUERY_BYTES // query_bytes, MOST_QUERIES, BAND_PAIRS // self.tile.candidates)
        panels = min(CANDIDATE_BYTES // row_bytes // self.tile.candidates, configs.MAX_GRID)
        self.fits = height > 0 and panels > 0  # else every pair is scored canonically
        self.height = max(1, min(height, BAND_PAIRS // k))
        self.chunk = panels * self.tile.candidates

    def read(self) -> int:
        """Wait for the size of the band; raise for rows that are bad, kept checks first."""
        report = self.status.read(self.checks)
        report.raise_if_bad()
        return report.sizes[0]


class _Pass:
    """The best of a block of queries; a *position* is a query in the order of the first limits."""

    def __init__(self, job: _Job, first: int, count: int) -> None:
        self.job, self.first, self.count = job, first, count
        self.order = torch.arange(first, first + count, dtype=torch.int64, device=job.device)
        self.rows = (self.order - first)[:, None]
        self.limits = torch.full((count,), -torch.inf, dtype=torch.float64, device=job.device)
        self.pairs = ((self.rows << 32) | _LANE).repeat(1, job.k)  # position << 32 | lane
        self.scores = torch.full_like(self.pairs, -torch.inf, dtype=torch.float64)
        self.keys = torch.full_like(self.pairs, _MISSING)
        if job.fits:
            self._find_limits()
            self.limits, by_limit = self.limits.sort(descending=True, stable=True)
            self.order = self.order[by_limit]
            operands, dim = job.batch.operands, job.dim
            selection, queries = Selection(count, self.order), slice(first, first + count)
            status = None if job.batch.allows_nan else job.status.rows
            self.packed = layout.pack_queries(
                operands, selection, dim, job.tile.queries, status=status
            )
            self.norms = layout.query_norms(operands, selection, dim, job.bound.norm)
            sizes = layout.query_sizes(operands.of_queries(queries), dim)
            self.sizes = None if sizes is None else sizes[:, self.order - first]
        self._see_all()

    def write(self, scores: Tensor, ids: Tensor) -> None:
        """Store the best in the order of the queries, ``[b, k]`` each."""
        is_missing = self.keys == _MISSING
        best = torch.where(is_missing, 0, self.pairs & _LANE)
        if self.job.batch.sorted_ids is not None:
            best = self.job.batch.sorted_ids[best]
        rows = self.order - self.first
        scores.index_copy_(0, rows, self.scores.to(scores.dtype))
        ids.index_copy_(0, rows, torch.where(is_missing, -1, best))

    def _find_limits(self) -> None:
        """Limits from the float32 scores of the first candidates."""
        job, batch, k = self.job, self.job.batch, self.job.k
        operands = batch.operands.of_queries(slice(self.first, self.first + self.count))
        row_bytes = operands.table.shape[1] * operands.table.element_size()
        width = min(STRIPE, batch.num_candidates, BLOCK_PAIRS // self.count)
        width = min(width, STRIPE_BYTES // row_bytes)
        if k > width:
            return
        operands = Operands(
            operands.queries.float(),
            _first_of(operands.candidates, width),
            None if job.dim == operands.num_features else (job.dim,),
        )
        stripe = torch.empty(self.count * width + 1, dtype=torch.float32, device=job.device)
        block = stripe[:-1].view(1, self.count, width)
        fill_scores(block, operands, batch.arch)
        self._remove_known(stripe, width)
        good = block[0].topk(k)
        scores = self._score(((self.rows << 32) | good.indices).flatten()).view(self.count, k)
        is_real = (good.values > -torch.inf) & ~scores.isnan()
        self.limits = torch.where(is_real, scores, -torch.inf).amin(1)

    def _remove_known(self, stripe: Tensor, width: int) -> None:
        """Put minus infinity at the known answers of a stripe: flat, with a place to spare."""
        if self.job.excluded is not None:
            rows, lanes = (self.job.excluded >> 32) - self.first, self.job.excluded & _LANE
            inside = (rows >= 0) & (rows < self.count) & (lanes < width)
            places = torch.where(inside, rows * width + lanes, len(stripe) - 1)
            stripe.index_fill_(0, places, -torch.inf)

    def _see_all(self) -> None:
        """All candidates, in blocks as wide as what the last one left allows."""
        job = self.job
        unit = job.tile.candidates if job.fits else 1
        least = BAND_PAIRS // self.count // unit * unit  # leaves no more than the band holds
        most = job.chunk if job.fits else least
        least = min(least, most)
        width = most if job.k <= STRIPE else least
        first = 0
        while first < job.batch.num_candidates:
            stop = min(first + width, job.batch.num_candidates)
            size = self._sweep(first, stop) if job.fits else self._take(first, stop)
            if size > BAND_PAIRS:
                width = max(least, (stop - first) * BAND_PAIRS // size // 2 // unit * unit)
                continue
            self._merge(job.band[:size] + first)
            first, width = stop, min(2 * width, most)
        if not job.fits:
            job.read()

    def _take(self, first: int, stop: int) -> int:
        """Fill the band with every pair of a range of lanes."""
        lanes = torch.arange(stop - first, dtype=torch.int64, device=self.job.device)
        size = self.count * len(lanes)
        self.job.band[:size] = ((self.rows << 32) | lanes).flatten()
        return size

    def _sweep(self, first: int, stop: int) -> int:
        """Fill the band with what survives of a range of lanes; returns how many pairs do."""
        job, tile, norm = self.job, self.job.tile, self.job.bound.norm
        operands, ids = job.batch.operands, job.batch.sorted_ids
        selection = Selection(stop - first, None if ids is None else ids[first:stop], first)
        status = None if job.batch.allows_nan else job.status.rows[1:]
        panels = layout.pack_candidates(
            operands, selection, job.dim, tile.candidates, status=status, is_less_one=True
        )
        described = panels
        if norm or job.form.has_bias:
            described = layout.describe_candidates(
                operands, selection, job.dim, tile.candidates, norm
            )
        rel = job.bound.rel * bounds.ROUND_UP
        launcher.launch(
            collect,
            (-(-self.count // tile.queries), -(-selection.size // tile.candidates)),
            {
                "packed": Packed(self.packed, panels, self._thresholds(), described, rel),
                "tally": Tally(None, job.band, job.cursor.zero_(), BAND_PAIRS),
                "num_candidates": selection.size,
                "num_features": job.dim,
                "FORM": job.form,
                "TILE": tile.shape,
            },
            num_warps=tile.num_warps,
            **({"maxnreg": tile.max_registers} if tile.max_registers else {}),
        )
        return job.read()

    def _thresholds(self) -> Tensor:
        job = self.job
        of_position = bounds.thresholds(
            job.bound, self.limits, self.norms, job.batch.bias_magnitude, self.sizes
        )
        padding = -self.count % job.tile.queries
        of_position = torch.nn.functional.pad(of_position, (0, padding))
        of_position[0, self.count :] = torch.nan
        return bounds.tiled(of_position, job.tile.queries)

    def _score(self, pairs: Tensor) -> Tensor:
        """Canonical scores of pairs; one below its limit may be any number below it."""
        job, batch = self.job, self.job.batch
        scores = torch.empty_like(pairs, dtype=torch.float64)
        launcher.launch(
            score_survivors,
            (-(-len(pairs) // CANONICAL_LANES),),
            {
                "views": views_of(batch.operands),
                "survivors": Survivors(pairs, self.order, batch.sorted_ids, self.limits, scores),
                "p_status": None if job.fits or batch.allows_nan else job.status.rows,
                "count": len(pairs),
                "num_features": job.dim,
                "FORM": form_of(batch.operands),
            },
            num_warps=1,
            enable_fp_fusion=False,
        )
        return scores

    def _merge(self, new: Tensor) -> None:
        """Keep the best ``k`` of each query among those so far and new pairs."""
        scores = torch.cat([self.scores.flatten(), self._score(new)])
        pairs = torch.cat([self.pairs.flatten(), new])
        keys = torch.cat([self.keys.flatten(), _keys(scores[self.scores.numel() :])])
        rows = torch.cat([self.pairs.flatten() >> 32, self._rows_of(new)])
        order = pairs.argsort()  # equal keys by lane
        order = order[keys[order].argsort(descending=True, stable=True)]
        order = order[rows[order].argsort(stable=True)]
        first = torch.searchsorted(rows[order], self.rows)  # a row has k entries or more
        best = order[first + torch.arange(self.job.k, dtype=torch.int64, device=first.device)]
        self.scores, self.pairs, self.keys = scores[best], pairs[best], keys[best]
        worst = torch.where(self.keys[:, -1] > _NAN, self.scores[:, -1], -torch.inf)
        self.limits = torch.maximum(self.limits, worst)

    def _rows_of(self, pairs: Tensor) -> Tensor:
        """Positions of pairs; one past the last for known answers."""
        positions, excluded = pairs >> 32, self.job.excluded
        if excluded is None:
            return positions
        keys = (self.order[positions] << 32) | (pairs & _LANE)
        nearest = torch.searchsorted(excluded, keys).clamp_(max=len(excluded) - 1)
        return torch.where(excluded[nearest] == keys, self.count, positions)


def _first_of(candidates: Prepared, count: int) -> Prepared:
    """The first candidates, in the order of their ids, as a table of their own."""
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


def _keys(scores: Tensor) -> Tensor:
    """Integers in the order of the scores, zeros equal, NaN below every number."""
    bits = (scores + 0.0).view(torch.int64)
    ordered = bits ^ ((bits >> 63) & _LARGEST)
    return torch.where(scores.isnan(), _NAN, ordered)
