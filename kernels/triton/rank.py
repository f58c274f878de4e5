"""Ranks on a GPU: a float32 sweep with a proven error bound, canonical scores for open pairs.

Cost model: device/sweep.py (per element), canonical.py (per undecided pair), known.py (per known
answer); a crop is swept alone. Memory: 40 MiB of packed rows, more on a GPU of more than 16 GiB,
4 MiB of band, O(B) words per crop, and a sorted copy of an index with unsorted rows. The host
waits once, for the checks of the input and the sizes of all bands. Pairs that a band could not hold
are then swept again in smaller pieces.
"""

from itertools import accumulate

import torch
from torch import Tensor

from ..checks import Checks
from ..lists import contains
from ..operands import Counts, Known, Lists, Operands
from ..reference.canonical import crop as crop_of_rows
from .device.best import NO_LANE
from .device.canonical import Counted, Pairs
from .device.known import KNOWN_PAIRS, KnownRows, count_known
from .device.sweep import Tally
from .host import configs
from .host import launch as launcher
from .host.scan import Crop, keys_of, scan_of
from .host.status import Report, Status
from .host.views import views_of
from .listed import list_counts

_PAIRS_PER_OPEN = 256  # for random tables at d = 512 one pair in 400 is open
_Span = tuple[int, int]  # first, and one past the last


def rank_counts(
    operands: Operands,
    targets: Tensor,
    known: Known,
    checks: Checks,
    target_scores: Tensor | None = None,
    lists: Lists | None = None,
) -> Counts:
    """Count; the contract is that of ``Backend.rank_counts``."""
    if lists is not None:
        return list_counts(operands, lists, targets, known, checks)
    crops, count = operands.crops, len(targets)
    padded = count + count % 2  # so that every row lies on a boundary of 16 bytes
    counts = targets.new_zeros(len(crops), 4, padded)[:, :, :count]
    with launcher.serving(operands.table.device) as arch:
        if count:
            scores = [None] * len(crops) if target_scores is None else target_scores.unbind()
            contiguous = Known(*(part.contiguous() for part in known))
            band, targets = targets.new_empty(configs.BAND_PAIRS), targets.contiguous()
            rankings = []
            for dim, of_crop, of_targets in zip(crops, counts, scores, strict=True):
                crop = Crop(operands, dim, arch, allows_nan=checks.allows_nan)
                rankings.append(_Ranking(crop, targets, of_crop, of_targets, contiguous, band))
            _count(rankings, contiguous, checks)
        else:
            checks.read()
    columns = counts[0] if operands.dims is None else counts.transpose(0, 1)
    return Counts(*(column.clone() for column in columns))  # columns of [4, B] or [4, C, B]


def _count(rankings: list["_Ranking"], known: Known, checks: Checks) -> None:
    """Count all crops: enqueue everything, wait once, then raise or repair."""
    starts = [0, *accumulate(ranking.num_bands for ranking in rankings)]
    status = Status(starts.pop(), rankings[0].crop.device)
    for ranking, first_band in zip(rankings, starts, strict=True):
        ranking.enqueue(known, status, first_band)
    report = status.read(checks)
    report.raise_if_bad()
    if report.is_unsorted:
        known = _sorted_rows(known)
    for ranking in rankings:
        ranking.repair(known, report)


class _Ranking:
    """Ranks of one crop, with counts added to ``counts [4, B]``.

    A *position* is a query in the order of the targets' scores, so that queries with close targets,
    which stop early, share tiles. A *lane* is a candidate.
    """

    def __init__(
        self,
        crop: Crop,
        targets: Tensor,
        counts: Tensor,
        scores: Tensor | None,
        known: Known,
        band: Tensor,
    ) -> None:
        """Plan the work; ``scores`` are those of the targets, if given."""
        self.crop, self.targets, self.counts, self.band = crop, targets, counts, band
        room = launcher.scratch_of(configs.PACKED_BYTES, crop.device)
        ids, plan = crop.operands.candidates.ids, crop.plan(packed_bytes=room)
        self._ids = None if ids is None else ids.contiguous()
        self._scan, self._is_few = scan_of(crop, plan, self._ids), plan.rows == "in place"
        self._pieces = _spans(len(known.indices), len(band))
        count, chunk, width = len(targets), plan.candidates_per_chunk, plan.queries_per_pass
        self._queries = _spans(count, width)
        chunks = max(1, _PAIRS_PER_OPEN * len(band) // (min(count, width) * chunk))
        self._lanes = _spans(crop.operands.candidates.num_candidates, chunks * chunk)
        self._target_scores = scores

    @property
    def num_bands(self) -> int:
        """Number of bands: of passes, and of pieces of the known answers."""
        return max(1, len(self._queries) * len(self._lanes) + len(self._pieces))

    def enqueue(self, known: Known, status: Status, first_band: int) -> None:
        """Enqueue all work, unless a band overflows or the index is unsorted."""
        self._status, self._first_band = status, first_band
        self._score_targets()
        band = first_band
        for queries in self._queries:
            positions = self._take(queries)
            for lanes in self._lanes:
                self._count_pass(positions, lanes, status.cursor(band))
                band += 1
        for piece in self._pieces:
            self._count_known(known, piece, status.cursor(band))
            band += 1
        self._scan.release()

    def repair(self, known: Known, report: Report) -> None:
        """Do the work that the report calls for; ``known`` is sorted by now."""
        band, cursor = self._first_band, self._status.cursor(0)
        for queries in self._queries:
            for lanes in self._lanes:
                if report.sizes[band] > len(self.band):
                    self._count_in_pieces(queries, lanes, cursor)
                band += 1
        self._scan.release()
        if report.is_unsorted:
            self.counts[2:].zero_()
            for piece in self._pieces:
                self._count_known(known, piece, cursor.zero_())
        self._place_unscored()

    def _score_targets(self) -> None:
        """Compute canonical scores of the targets, then thresholds and the order of queries."""
        status = None if self.crop.allows_nan else self._status.rows
        if self._target_scores is None:
            self._target_scores = torch.empty_like(self.targets, dtype=torch.float64)
            pairs = Pairs(None, None, None, self.targets, scores=self._target_scores)
            self.crop.decide(pairs._replace(status=status))
        elif status is not None:
            self._check_queries()
        scores = self._target_scores
        self._thresholds = self.crop.thresholds(scores)
        if self._is_few:
            self._order = torch.arange(len(scores), dtype=torch.int64, device=scores.device)
        else:
            self._order = scores.sort(descending=True, stable=True).indices

    def _check_queries(self) -> None:
        """Check queries if target scores are given, as scoring the targets would."""
        operands = self.crop.operands
        queries = crop_of_rows(
            operands.queries, operands.score, self.crop.dim, operands.query_planes
        )
        is_bad = (~queries.isfinite()).any(1)
        rows = torch.arange(len(queries), dtype=torch.int64, device=queries.device)
        least = rows.where(is_bad, self._status.rows[0]).min()
        self._status.rows[0].clamp_(max=least)

    def _take(self, positions: _Span) -> Tensor:
        """Let the scan have some positions; return their queries."""
        assert self._target_scores is not None
        queries = self._order[slice(*positions)]
        self._limits = self._target_scores[queries]
        self._scan.take(queries, None if self.crop.allows_nan else self._status.rows)
        self._scan.limit(self._limits, self._thresholds)
        return queries

    def _count_pass(self, queries: Tensor, lanes: _Span, cursor: Tensor) -> None:
        """Count candidates that certainly beat the targets, and decide open pairs."""
        greater = self._scan.counts()
        self._scan.sweep(lanes, greater, self.band, cursor, len(self.band))
        self.counts[0].index_add_(0, queries, greater[: len(queries)].long())
        self._decide(Pairs(self.band, cursor, queries, self._ids, self._limits), self.counts)

    def _count_in_pieces(self, queries: _Span, lanes: _Span, cursor: Tensor) -> None:
        """Decide the open pairs of a pass with an overflowed band; certain pairs are counted."""
        tile = self._scan.tile
        width = len(self.band) // tile.queries // tile.candidates * tile.candidates
        for first in range(*queries, tile.queries):
            taken = self._take((first, min(first + tile.queries, queries[1])))
            counted = self._scan.counts()
            for start in range(*lanes, width):
                piece = start, min(start + width, lanes[1])
                self._scan.sweep(piece, counted, self.band, cursor.zero_(), len(self.band))
                pairs = Pairs(self.band, cursor, taken, self._ids, self._limits)
                self._decide(pairs, self.counts)

    def _decide(self, pairs: Pairs, counts: Tensor) -> None:
        """Decide the pairs of the band canonically, unless the band overflowed."""
        self.crop.decide(pairs, Counted(self.targets, counts[0], counts[1]))

    def _count_known(self, known: Known, piece: _Span, cursor: Tensor) -> None:
        """Count some entries of the excluded, at most a band of them."""
        crop, subset = self.crop, self.crop.operands.candidates.sorted_ids
        registers = configs.RSCF_REGISTERS if crop.form.is_rscf else 128
        launcher.launch(
            count_known,
            (-(-(piece[1] - piece[0]) // KNOWN_PAIRS),),
            {
                "views": views_of(crop.operands),
                "index": KnownRows(
                    known.indptr,
                    known.indices,
                    piece[0],
                    self.targets,
                    subset,
                    0 if subset is None else len(subset),
                    self._thresholds,
                    crop.rel,
                    self._status.unsorted,
                ),
                "tally": Tally(self.counts[2], self.band, cursor, len(self.band), 0),
                "stop": piece[1],
                "num_queries": len(self.targets),
                "num_features": crop.dim,
                "FORM": crop.form,
            },
            num_warps=4,
            **launcher.capped(registers, crop.arch),
        )
        pairs = Pairs(self.band, cursor, None, None, self._target_scores)
        self._decide(pairs, self.counts[2:])

    def _place_unscored(self) -> None:
        """Rank targets that score NaN below every other candidate."""
        assert self._target_scores is not None
        candidates, greater = self.crop.operands.candidates, self.counts[0]
        others = torch.full_like(greater, candidates.num_candidates)
        if candidates.sorted_ids is None:
            others -= (self.targets >= 0).long()
        else:
            others -= contains(candidates.sorted_ids, self.targets).long()
        greater.copy_(torch.where(self._target_scores.isnan(), others, greater))


def _sorted_rows(known: Known) -> Known:
    """Sort the ids of every row of the index."""
    return Known(known.indptr, keys_of(known).sort().values & NO_LANE)


def _spans(count: int, step: int) -> list[_Span]:
    """Cut ``0 .. count - 1`` into ranges of at most ``step``."""
    return [(first, min(first + step, count)) for first in range(0, count, step)]
