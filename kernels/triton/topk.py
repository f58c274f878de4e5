"""The best k candidates on a GPU: a limit from a sample, a sweep for pairs that pass.

In a pass of queries, float32 scores of some candidates give k good ones of each query. Their worst
canonical score is a limit: the k-th best score cannot be below. Spans of candidates are swept
against the limits with the certified bound of the ranks (host/scan.py). Survivors go to a band of
their query, get canonical scores and are merged into the best so far by (score, id)
(device/best.py), and the limits rise. The length of a span is such that typical limits leave a
quarter of a band, so spans grow during the pass.

Cost model: rank_counts' sweep; canonical scores of about k (1 + log(N / sample)) pairs per query,
and as many merges. Memory: 40 MiB of packed operands, 8 MiB of sample before, 8 MiB of bands and
their scores, 4 MiB of the best; on a GPU of more than 16 GiB, more in proportion. The host waits
once, and for each span of queries with more pairs than a band holds, which are swept again; the
least span always fits.
"""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from ..checks import Checks
from ..lists import list_topk
from ..operands import Known, Lists, Operands
from .device.best import ENTRIES, Best, BestOut, choose_best, merge_best
from .device.canonical import Pairs
from .device.sweep import Tally
from .host import launch as launcher
from .host.scan import MOST_LANES, Scan, Span, excluded_keys, score_pairs, scoring, spans
from .host.status import Status
from .pairwise import BLOCK_PAIRS, CANDIDATE_BYTES, fill_scores

BAND_PAIRS = 1 << 19  # pairs of all bands
SAMPLE = 4096  # candidates that give the first limits
SAMPLE_BYTES = CANDIDATE_BYTES  # of the rows of a sample, which are then scored by one launch
MOST_QUERIES = 1024  # most queries of a pass


def topk(
    operands: Operands, k: int, known: Known | None, checks: Checks, lists: Lists | None = None
) -> tuple[Tensor, Tensor]:
    """Return the best; the contract is that of ``Backend.topk``."""
    if lists is not None:
        score_all = scoring(operands, checks, has_queries=True)
        return list_topk(score_all, operands, lists, k, known)
    queries = operands.queries
    shape = (len(operands.crops), len(queries), k)
    scores, ids = queries.new_empty(shape), queries.new_empty(shape, dtype=torch.int64)
    with launcher.serving(operands.table.device) as arch:
        if scores.numel() and operands.candidates.num_candidates:
            _find(operands, arch, known, checks, scores, ids)
        else:
            scores.fill_(-torch.inf)
            ids.fill_(-1)
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
    device, num_pairs = scores.device, launcher.scratch_of(BAND_PAIRS, scores.device)
    band = torch.empty(num_pairs, dtype=torch.int64, device=device)
    room = band, torch.empty_like(band, dtype=torch.float64)
    finders = [
        _Finder(Scan(operands, dim, arch, few=BAND_PAIRS // out[0].shape[1]), out, excluded, room)
        for dim, *out in zip(operands.crops, scores, ids, strict=True)
    ]
    passes = [(finder, rows) for finder in finders for rows in finder.passes]
    status = Status(len(passes), device)
    for number, (finder, rows) in enumerate(passes):
        finder.scan.status = None if checks.allows_nan else status.rows
        finder.find(rows, status.cursors(number))
    for (finder, rows), size in zip(passes, status.read(checks)[0], strict=True):
        if size > finder.bands(rows).capacity:
            finder.find_again(rows, status, checks)


class _Finder:
    """The best of one crop: k pairs of each query by score, then lowest lane."""

    def __init__(
        self,
        scan: Scan,
        out: Sequence[Tensor],
        excluded: Tensor | None,
        room: tuple[Tensor, Tensor],
    ) -> None:
        """Plan the work; scores and ids go to ``out``, ``[B, k]`` each."""
        self.scan, self.out, self.excluded, self.room = scan, out, excluded, room
        self.operands, (num_queries, self.k) = scan.operands, out[0].shape
        height = min(scan.height, MOST_QUERIES, BAND_PAIRS // max(4 * self.k, scan.tile.lanes))
        self.passes = spans(num_queries, max(1, height))
        self.limits = torch.full_like(out[0][:, 0], -torch.inf, dtype=torch.float64)

    def bands(self, queries: Span, cursors: Tensor | None = None) -> Tally:
        """Return bands of some queries, with the given cursors."""
        band, count = self.room[0], queries[1] - queries[0]
        capacity = len(band) // count
        band = band[: count * capacity].view(count, capacity)
        return Tally(None, band, None, capacity, cursors, first_query=queries[0])

    def _starts(self, queries: Span) -> Tensor:
        """Return the first place of the band of each query."""
        (count, capacity), device = self.bands(queries).band.shape, self.room[0].device
        return torch.arange(0, count * capacity, capacity, dtype=torch.int32, device=device)

    def _spans(self, seen: int, capacity: int) -> list[Span]:
        """Cut the candidates after ``seen`` gave limits; bands hold a span of their capacity."""
        unit, num_candidates = self.scan.tile.lanes, self.operands.candidates.num_candidates
        first, cut = 0, []
        while first < num_candidates:
            width = capacity
            if seen >= self.k:  # numbers of survivors scatter, the more so the fewer
                width = max(width, seen * capacity // (4 * (self.k + 4)))
            width = min(width, MOST_LANES) // unit * unit
            stop = min(first + width, num_candidates)
            cut.append((first, stop))
            first, seen = stop, max(seen, stop)
        return cut

    def _num_sampled(self, count: int, capacity: int) -> int:
        """Return how many candidates give limits to queries; 0 if these are fewer than k."""
        table = self.operands.table
        row_bytes = table.shape[1] * table.element_size()
        width = min(SAMPLE, self.operands.candidates.num_candidates, BLOCK_PAIRS // count)
        width = min(width, SAMPLE_BYTES // row_bytes)
        return width if self.k <= min(width, capacity) else 0

    def find(self, queries: Span, largest: Tensor) -> None:
        """Write the best, unless a band overflows: ``largest`` is then above the capacity."""
        (first, stop), scan, capacity = queries, self.scan, self.bands(queries).capacity
        width = self._num_sampled(stop - first, capacity)
        cut = self._spans(width, capacity)
        cursors = self._starts(queries).repeat(1 + len(cut), 1)
        order = best = None
        if width:
            self._sample(width, self.bands(queries, cursors[0]), largest)
            if scan.rows != "in place" and scan.operands.score.monotone:
                order = self.limits[first:stop].sort(descending=True, stable=True).indices
                order = order + first if first else order
        scan.take(queries, order)
        for lanes, of_span in zip(cut, cursors[1:], strict=True):
            tally = self.bands(queries, of_span)
            scan.limit(self.limits)
            scan.sweep(lanes, tally)
            best = self._merge(best, tally, largest)
        scan.release()

    def find_again(self, queries: Span, status: Status, checks: Checks) -> None:
        """Write the best, with the limits known so far, in spans that fit the bands."""
        starts, best = self._starts(queries), None
        tally = self.bands(queries, starts.clone())
        self.scan.take(queries)
        self.scan.limit(self.limits)
        for _ in self.scan.pieces(tally, starts, status, checks):
            best = self._merge(best, tally, status.cursors(0))
            self.scan.limit(self.limits)
        self.scan.release()

    def _sample(self, width: int, tally: Tally, largest: Tensor) -> None:
        """Raise the limits by float32 scores of the first candidates."""
        dim, ids, count, first = self.scan.dim, self.scan.ids, len(tally.band), tally.first_query
        operands = self.operands.of_queries(slice(first, first + count))
        operands = Operands(
            operands.queries.float(),
            operands.candidates.rows(slice(0, width) if ids is None else ids[:width]),
            None if dim == operands.num_features else (dim,),
        )
        block = torch.empty(1, count, width, dtype=torch.float32, device=tally.band.device)
        fill_scores(block, operands, self.scan.arch)
        arguments = {
            "p_scores": block,
            "excluded": self.excluded,
            "tally": tally,
            "num_excluded": 0 if self.excluded is None else len(self.excluded),
            "width": width,
            "k": self.k,
            "BLOCK": triton.next_power_of_2(width),
        }
        launcher.launch(choose_best, (count,), arguments, num_warps=8)
        self._merge(None, tally, largest, is_chosen=True)

    def _merge(
        self, best: Best | None, tally: Tally, largest: Tensor, *, is_chosen: bool = False
    ) -> Best:
        """Merge the pairs of the bands, in any order, into the best; the limits rise.

        Nothing here waits: shapes depend on k and on the bands' capacity alone.
        """
        count, capacity = tally.band.shape
        scores = self.room[1][: count * capacity]
        excluded = None if is_chosen else self.excluded
        pairs = Pairs(tally.band, tally.cursors, self.scan.ids, self.limits, scores, excluded)
        score_pairs(self.operands, self.scan.dim, pairs)
        lanes = tally.band.new_empty(count, self.k)
        merged = Best(lanes, scores.new_empty(count, self.k))
        most = 32 * launcher.num_multiprocessors(scores.device) // count
        launcher.launch(
            merge_best,
            (count, min(max(1, most), -(-(capacity + self.k) // ENTRIES))),
            {
                "best": best,
                "survivors": pairs,
                "merged": merged,
                "out": BestOut(self.out[0], self.out[1], self.scan.ids, largest),
                "first_query": tally.first_query,
                "capacity": capacity,
                "k": self.k,
            },
            num_warps=4,
        )
        return merged
