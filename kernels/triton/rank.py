"""Ranks on a GPU: a float32 sweep with a proven error bound, canonical scores for open pairs.

Cost model: device/sweep.py (per element), canonical.py (per undecided pair), known.py (per known
answer); a crop is swept alone. Memory: 40 MiB of packed rows, 4 MiB of band, O(B) words per crop,
and a sorted copy of an index with unsorted rows. The host waits once, for the checks of the input
and the sizes of all bands. Pairs that a band could not hold are then swept again in smaller pieces.
"""

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..checks import Checks
from ..operands import Counts, Known, Operands
from ..reference.canonical import crop as crop_of_rows
from .device.canonical import CANONICAL_LANES, BandPairs, Targets, rescore, score_targets
from .device.known import KNOWN_PAIRS, KnownRows, count_known
from .device.sweep import Tally
from .host import configs
from .host import launch as launcher
from .host.batch import SharedOperands, sorted_rows
from .host.scan import Crop, scan_of
from .host.status import Report, Status
from .host.views import form_of, views_of

_PAIRS_PER_OPEN = 256  # for random tables at d = 512 one pair in 400 is open
_EXACT = {"num_warps": 1, "enable_fp_fusion": False}  # options of every kernel of canonical.py
_Span = tuple[int, int]  # first, and one past the last


def rank_counts(
    operands: Operands,
    targets: Tensor,
    known: Known,
    checks: Checks,
    target_scores: Tensor | None = None,
) -> Counts:
    """Count; the contract is that of ``Backend.rank_counts``."""
    crops, count = operands.crops, len(targets)
    padded = count + count % 2  # so that every row lies on a boundary of 16 bytes
    counts = targets.new_zeros(len(crops), 4, padded)[:, :, :count]
    with launcher.serving(operands.table.device) as arch:
        if count:
            batch = SharedOperands.of(operands, targets, arch, allows_nan=checks.allows_nan)
            scores = [None] * len(crops) if target_scores is None else target_scores.unbind()
            contiguous = Known(*(part.contiguous() for part in known))
            band = targets.new_empty(configs.BAND_PAIRS)
            rankings = [
                _Ranking(Crop(batch, dim), of_crop, of_targets, contiguous, band)
                for dim, of_crop, of_targets in zip(crops, counts, scores, strict=True)
            ]
            _count(rankings, contiguous, checks)
        else:
            checks.read()
    columns = counts[0] if operands.dims is None else counts.transpose(0, 1)
    return Counts(*(column.clone() for column in columns))  # columns of [4, B] or [4, C, B]


def _count(rankings: list["_Ranking"], known: Known, checks: Checks) -> None:
    """Count all crops: enqueue everything, wait once, then raise or repair."""
    starts = [0, *accumulate(ranking.num_bands for ranking in rankings)]
    status = Status(starts.pop(), rankings[0].batch.device)
    for ranking, first_band in zip(rankings, starts, strict=True):
        ranking.enqueue(known, status, first_band)
    report = status.read(checks)
    report.raise_if_bad()
    if report.is_unsorted:
        known = sorted_rows(known)
    for ranking in rankings:
        ranking.repair(known, report)


class _Ranking:
    """Ranks of one crop, with counts added to ``counts [4, B]``.

    A *position* is a query in the order of the targets' scores, so that queries with close targets,
    which stop early, share tiles. A *lane* is a candidate.
    """

    def __init__(
        self, crop: Crop, counts: Tensor, scores: Tensor | None, known: Known, band: Tensor
    ) -> None:
        """Plan the work; ``scores`` are those of the targets, if given."""
        self.crop, self.counts, self.band, self.batch = crop, counts, band, crop.batch
        operands = self.batch.operands
        sizes = self.batch.num_queries, self.batch.num_candidates
        plan = configs.plan(operands.score, sizes, crop.dim, self.batch.arch, operands.has_factor)
        self._scan = None if plan is None else scan_of(crop, plan, self.batch.ids)
        self._is_few = plan is not None and plan.rows == "in place"
        self._pieces = _spans(len(known.indices), len(band))
        self._queries: list[_Span] = []
        self._lanes: list[_Span] = []
        if plan is not None:
            self._queries = _spans(sizes[0], plan.queries_per_pass)
            chunk, width = plan.candidates_per_chunk, plan.queries_per_pass
            chunks = max(1, _PAIRS_PER_OPEN * len(band) // (min(sizes[0], width) * chunk))
            self._lanes = _spans(sizes[1], chunks * chunk)
        self._target_scores = scores

    @property
    def num_bands(self) -> int:
        """Number of bands: of passes, of pieces of the known answers, and of everything."""
        return len(self._queries) * len(self._lanes) + len(self._pieces) + 1

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
        if self._scan is None:
            self._rescore_everything(status.cursor(band))
        else:
            self._scan.release()

    def repair(self, known: Known, report: Report) -> None:
        """Do the work that the report calls for; ``known`` is sorted by now."""
        band, cursor = self._first_band, self._status.cursor(0)
        for queries in self._queries:
            for lanes in self._lanes:
                if report.sizes[band] > len(self.band):
                    self._count_in_pieces(queries, lanes, cursor)
                band += 1
        if self._scan is not None:
            self._scan.release()
        if report.is_unsorted:
            self.counts[2:].zero_()
            for piece in self._pieces:
                self._count_known(known, piece, cursor.zero_())
        self._place_unscored()

    def _score_targets(self) -> None:
        """Compute canonical scores of the targets, then thresholds and the order of queries."""
        batch = self.batch
        if self._target_scores is None:
            self._target_scores = torch.empty_like(batch.targets, dtype=torch.float64)
            targets = Targets(batch.targets, self._target_scores, None, None)
            status = None if batch.allows_nan else self._status.rows
            blocks = -(-batch.num_queries // CANONICAL_LANES)
            self._launch(score_targets, blocks, targets, p_status=status, count=batch.num_queries)
        elif not batch.allows_nan:
            self._check_queries()
        scores = self._target_scores
        self._thresholds = self.crop.thresholds(scores)
        if self._is_few:
            self._order = torch.arange(len(scores), dtype=torch.int64, device=batch.device)
        else:
            self._order = scores.sort(descending=True, stable=True).indices

    def _check_queries(self) -> None:
        """Check queries if target scores are given, as scoring the targets would."""
        batch, operands = self.batch, self.batch.operands
        queries = crop_of_rows(
            operands.queries, operands.score, self.crop.dim, operands.query_planes
        )
        is_bad = (~queries.isfinite()).any(1)
        rows = torch.arange(batch.num_queries, dtype=torch.int64, device=batch.device)
        least = rows.where(is_bad, self._status.rows[0]).min()
        self._status.rows[0].clamp_(max=least)

    def _take(self, positions: _Span) -> Tensor:
        """Let the scan have some positions; return their queries."""
        assert self._scan is not None
        assert self._target_scores is not None
        queries = self._order[slice(*positions)]
        self._scan.take(queries, None if self.batch.allows_nan else self._status.rows)
        self._scan.limit(self._target_scores[queries], self._thresholds)
        return queries

    def _count_pass(self, queries: Tensor, lanes: _Span, cursor: Tensor) -> None:
        """Count candidates that certainly beat the targets, and decide open pairs."""
        assert self._scan is not None
        greater = self._scan.counts()
        self._scan.sweep(lanes, greater, self.band, cursor, len(self.band))
        self.counts[0].index_add_(0, queries, greater[: len(queries)].long())
        self._decide(cursor, self.counts, queries, self.batch.ids)

    def _count_in_pieces(self, queries: _Span, lanes: _Span, cursor: Tensor) -> None:
        """Decide the open pairs of a pass with an overflowed band; certain pairs are counted."""
        assert self._scan is not None
        tile = self._scan.tile
        width = len(self.band) // tile.queries // tile.candidates * tile.candidates
        for first in range(*queries, tile.queries):
            taken = self._take((first, min(first + tile.queries, queries[1])))
            counted = self._scan.counts()
            for start in range(*lanes, width):
                piece = start, min(start + width, lanes[1])
                self._scan.sweep(piece, counted, self.band, cursor.zero_(), len(self.band))
                self._decide(cursor, self.counts, taken, self.batch.ids)

    def _rescore_everything(self, cursor: Tensor) -> None:
        """Decide every pair canonically, if no tile fits the scratch (very many features)."""
        batch = self.batch
        for span in _spans(batch.num_queries * batch.num_candidates, len(self.band)):
            pairs = torch.arange(*span, dtype=torch.int64, device=batch.device)
            queries = pairs.div(batch.num_candidates, rounding_mode="floor")
            lanes = pairs - queries * batch.num_candidates
            torch.add(queries << 32, lanes, out=self.band[: len(pairs)])
            cursor.fill_(len(pairs))
            status = None if batch.allows_nan else self._status.rows
            self._decide(cursor, self.counts, None, batch.ids, status)

    def _decide(
        self,
        cursor: Tensor,
        counts: Tensor,
        order: Tensor | None,
        ids: Tensor | None,
        status: Tensor | None = None,
    ) -> None:
        """Decide the pairs of the band canonically, unless the band overflowed."""
        most = 32 * launcher.num_multiprocessors(self.batch.device)
        self._launch(
            rescore,
            min(-(-len(self.band) // CANONICAL_LANES), most),
            Targets(self.batch.targets, self._target_scores, counts[0], counts[1]),
            band=BandPairs(self.band, cursor, len(self.band), order, ids),
            p_status=status,
        )

    def _launch(self, kernel: Any, programs: int, targets: Targets, **arguments: Any) -> None:
        operands = self.batch.operands
        arguments = {"views": views_of(operands), "targets": targets, **arguments}
        arguments |= {"num_features": self.crop.dim, "FORM": form_of(operands)}
        launcher.launch(kernel, (programs,), arguments, **_EXACT)

    def _count_known(self, known: Known, piece: _Span, cursor: Tensor) -> None:
        """Count some entries of the excluded, at most a band of them."""
        batch, crop, subset = self.batch, self.crop, self.batch.sorted_ids
        registers = configs.RSCF_REGISTERS if crop.form.is_rscf else 128
        launcher.launch(
            count_known,
            (-(-(piece[1] - piece[0]) // KNOWN_PAIRS),),
            {
                "views": views_of(batch.operands),
                "index": KnownRows(
                    known.indptr,
                    known.indices,
                    piece[0],
                    batch.targets,
                    subset,
                    0 if subset is None else len(subset),
                    self._thresholds,
                    crop.rel,
                    self._status.unsorted,
                ),
                "tally": Tally(self.counts[2], self.band, cursor, len(self.band), 0),
                "stop": piece[1],
                "num_queries": batch.num_queries,
                "num_features": crop.dim,
                "FORM": crop.form,
            },
            num_warps=4,
            **launcher.capped(registers if batch.arch else None),
        )
        self._decide(cursor, self.counts[2:], None, None)

    def _place_unscored(self) -> None:
        """Rank targets that score NaN below every other candidate."""
        assert self._target_scores is not None
        batch, greater = self.batch, self.counts[0]
        others = torch.full_like(greater, batch.num_candidates)
        if batch.sorted_ids is None:
            others -= (batch.targets >= 0).long()
        elif len(batch.sorted_ids):
            last = len(batch.sorted_ids) - 1
            place = torch.searchsorted(batch.sorted_ids, batch.targets).clamp_(max=last)
            others -= (batch.sorted_ids[place] == batch.targets).long()
        greater.copy_(torch.where(self._target_scores.isnan(), others, greater))


def _spans(count: int, step: int) -> list[_Span]:
    """Cut ``0 .. count - 1`` into ranges of at most ``step``."""
    return [(first, min(first + step, count)) for first in range(0, count, step)]
