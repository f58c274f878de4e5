"""The best k candidates on a GPU: a limit from the first stripe, a sweep for pairs that pass.

In a pass of queries, float32 scores of a stripe give k good candidates of each query. Their worst
canonical score is a limit: the k-th best score cannot be below. Spans of candidates are swept
against the limits with the certified bound of the ranks (host/scan.py). Survivors are sorted by
query, get canonical scores and are merged into the best so far by (score, id) (device/best.py), and
the limits rise. The length of a span is such that typical limits leave a quarter of a band, so
spans grow during the pass.

Cost model: rank_counts' sweep; canonical scores of about k (1 + log(N / stripe)) pairs per query,
and as many merges, with a sort of the whole band. Memory: 40 MiB of packed operands, 8 MiB of
stripe before, 1 MiB of band, 4 MiB to sort it, 4 MiB of the best. The host waits once, and for each
span of queries with more pairs than a band holds, which are swept again; the least span always
fits.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..checks import Checks
from ..operands import Known, Lists, Operands, Prepared
from .device.best import ENTRIES, NO_LANE, Best, BestOut, merge_best
from .device.canonical import Pairs
from .host import launch as launcher
from .host.scan import NO_PAIR, Crop, excluded_keys, scan_of
from .host.status import Report, Status
from .listed import list_topk
from .pairwise import BLOCK_PAIRS, CANDIDATE_BYTES, fill_scores

BAND_PAIRS = 1 << 17
LEAST_BAND = 1 << 12  # pairs that are sorted, if no more are expected
PACKED_BYTES = 40 << 20  # packed operands
STRIPE = 4096  # candidates that give the first limits
STRIPE_BYTES = CANDIDATE_BYTES  # of the rows of a stripe, which are then scored by one launch
MOST_QUERIES = 1024  # most queries of a pass


def topk(
    operands: Operands, k: int, known: Known | None, checks: Checks, lists: Lists | None = None
) -> tuple[Tensor, Tensor]:
    """Return the best; the contract is that of ``Backend.topk``."""
    if lists is not None:
        return list_topk(operands, lists, k, known, checks)
    queries = operands.queries
    shape = (len(operands.crops), len(queries), k)
    scores = queries.new_full(shape, -torch.inf)
    ids = queries.new_full(shape, -1, dtype=torch.int64)
    with launcher.serving(operands.table.device) as arch:
        if scores.numel() and operands.candidates.num_candidates:
            _find(operands, arch, known, checks, scores, ids)
        else:
            checks.read()
    return (scores[0], ids[0]) if operands.dims is None else (scores, ids)


def _find(
    operands: Operands,
    arch: int,
    known: Known | None,
    checks: Checks,
    scores: Tensor,
    ids: Tensor,
) -> None:
    """Find all crops: enqueue everything, wait once, then raise or repeat."""
    excluded = excluded_keys(operands.candidates, known)
    band = torch.empty(BAND_PAIRS, dtype=torch.int64, device=operands.table.device)
    passes, num_bands = [], 1
    for dim, *out in zip(operands.crops, scores, ids, strict=True):
        crop = Crop(operands, dim, arch, allows_nan=checks.allows_nan)
        job = _TopkJob(crop, (out[0], out[1]), excluded, band)
        for first in range(0, operands.num_queries, job.height):
            queries = slice(first, min(first + job.height, operands.num_queries))
            one = _Pass(job, queries, num_bands)
            num_bands += len(one.spans)
            passes.append(one)
    status = Status(num_bands, band.device)
    for one in passes:
        one.find(status)
    report = status.read(checks)
    report.raise_if_bad()
    for one in passes:
        if one.overflowed(report):
            one.find_again(status, checks)


class _TopkJob:
    """One crop of a batch: the data that passes share."""

    def __init__(
        self, crop: Crop, out: tuple[Tensor, Tensor], excluded: Tensor | None, band: Tensor
    ) -> None:
        """Plan the work; scores and ids go to ``out``, ``[B, k]`` each."""
        self.crop, self.out, self.excluded, self.band = crop, out, excluded, band
        self.k: int = out[0].shape[1]
        self.operands, self.device = crop.operands, crop.device
        self.num_candidates = crop.operands.candidates.num_candidates
        self.sorted_ids = crop.operands.candidates.sorted_ids
        plan = crop.plan(packed_bytes=PACKED_BYTES, few=BAND_PAIRS // self.k)
        self.scan = scan_of(crop, plan, self.sorted_ids)
        self.unit, self.is_few = plan.tile.candidates, plan.rows == "in place"
        most = min(plan.queries_per_pass, MOST_QUERIES, BAND_PAIRS // max(self.k, self.unit))
        self.height = max(1, most)

    def stripe(self, count: int) -> int:
        """Return the candidates that give limits to queries; 0 if fewer than k."""
        table = self.operands.table
        row_bytes = table.shape[1] * table.element_size()
        width = min(STRIPE, self.num_candidates, BLOCK_PAIRS // count)
        width = min(width, STRIPE_BYTES // row_bytes)
        return width if self.k <= width else 0


class _Pass:
    """The best of a block of queries: k pairs by score, then lowest lane.

    A *position* is a query by its first limit; ``order``, int64 ``[b]``, has the query of each.
    """

    def __init__(self, job: _TopkJob, queries: slice, first_band: int) -> None:
        self.job, self.queries, self.first_band = job, queries, first_band
        self.first: int = queries.start
        self.count: int = queries.stop - queries.start
        needed = self.count * max(16 * job.k, job.unit)
        self.capacity: int = min(BAND_PAIRS, max(LEAST_BAND, needed))
        self.spans = list(self._spans())
        self.order = torch.arange(self.first, queries.stop, dtype=torch.int64, device=job.device)
        self.limits = torch.full((self.count,), -torch.inf, dtype=torch.float64, device=job.device)

    def _spans(self) -> Iterator[tuple[int, int]]:
        job, num_candidates = self.job, self.job.num_candidates
        least = self.capacity // self.count // job.unit * job.unit  # always fits
        seen, first = job.stripe(self.count), 0
        while first < num_candidates:
            width = least
            if seen >= job.k:
                width = max(width, seen * self.capacity // (4 * self.count * job.k))
            stop = min(first + width // job.unit * job.unit, num_candidates)
            yield first, stop
            first, seen = stop, max(seen, stop)

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
            band, cursor = self.job.band[: self.capacity].fill_(NO_PAIR), status.cursor(number)
            self.job.scan.limit(self.limits)
            self.job.scan.sweep(span, None, band, cursor, self.capacity)
            self._merge(band, cursor)
        self._end()

    def find_again(self, status: Status, checks: Checks) -> None:
        """Write the best, with the limits known so far, in spans that fit the band."""
        self._begin(status)
        self.job.scan.limit(self.limits)
        for _ in self.job.scan.pieces(self.job.band, status, checks):
            self._merge(self.job.band, status.cursor(0))
            self.job.scan.limit(self.limits)
        self._end()

    def _begin(self, status: Status) -> None:
        """Begin without any best; pack queries in the order of their limits."""
        job, shape = self.job, (self.count, self.job.k)
        self.best = Best(
            torch.full(shape, NO_LANE, dtype=torch.int64, device=job.device),
            torch.full(shape, -torch.inf, dtype=torch.float64, device=job.device),
        )
        job.scan.take(self.order, None if job.crop.allows_nan else status.rows)

    def _end(self) -> None:
        """Keep only the limits."""
        del self.best
        self.job.scan.release()

    def _find_limits(self) -> None:
        """Find limits from the float32 scores of the first candidates."""
        job, width = self.job, self.job.stripe(self.count)
        operands = job.operands.of_queries(self.queries)
        operands = Operands(
            operands.queries.float(),
            _first_of(operands.candidates, width),
            None if job.crop.dim == operands.num_features else (job.crop.dim,),
        )
        stripe = torch.empty(self.count * width + 1, dtype=torch.float32, device=job.device)
        block = stripe[:-1].view(1, self.count, width)
        fill_scores(block, operands, job.crop.arch)
        self._remove_known(stripe, width)
        good = block[0].topk(job.k)
        rows = (self.order - self.first)[:, None]
        scores = self._score(((rows << 32) | good.indices).flatten()).scores
        scores = scores.view(self.count, job.k)
        is_real = (good.values > -torch.inf) & ~scores.isnan()
        self.limits = torch.where(is_real, scores, -torch.inf).amin(1)

    def _remove_known(self, stripe: Tensor, width: int) -> None:
        """Put minus infinity at the known answers of a stripe, which is flat with a spare place."""
        if self.job.excluded is not None:
            rows, lanes = (self.job.excluded >> 32) - self.first, self.job.excluded & NO_LANE
            inside = (rows >= 0) & (rows < self.count) & (lanes < width)
            places = torch.where(inside, rows * width + lanes, len(stripe) - 1)
            stripe.index_fill_(0, places, -torch.inf)

    def _merge(self, band: Tensor, cursor: Tensor) -> None:
        """Merge the pairs of a band, in any order, into the best; the limits rise.

        Nothing here waits: shapes depend on k and on the band's capacity alone.
        """
        job, entries = self.job, self.best.lanes.numel() + len(band)
        survivors = self._score(band.sort().values, cursor, job.excluded)
        merged = Best(*(torch.empty_like(rows) for rows in self.best))
        sizes = {"capacity": len(band), "num_positions": self.count, "k": job.k}
        launcher.launch(
            merge_best,
            (-(-entries // ENTRIES),),
            {
                "best": self.best,
                "survivors": survivors,
                "merged": merged,
                "out": BestOut(*job.out, self.order, job.sorted_ids),
                **sizes,
            },
            num_warps=4,
        )
        self.best = merged

    def _score(
        self, pairs: Tensor, cursor: Tensor | None = None, excluded: Tensor | None = None
    ) -> Pairs:
        """Give the first pairs canonical scores; below the limit any number will do."""
        scores = torch.empty_like(pairs, dtype=torch.float64)
        ids = self.job.sorted_ids
        band = Pairs(pairs, cursor, self.order, ids, self.limits, scores, excluded)
        self.job.crop.decide(band)
        return band


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
