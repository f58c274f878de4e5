"""Ranks on a GPU: a float32 sweep with a proven error bound, canonical scores for open pairs.

Cost model: device/sweep.py (per element), canonical.py (per undecided pair), known.py (per known
answer); a crop is swept alone. Memory: 40 MiB of packed rows, more on a GPU of more than 16 GiB,
8 MiB of bands, O(B) words per crop, and a sorted copy of an index with unsorted rows. The host
waits once, for the checks of the input and the sizes of all bands. Pairs that a band could not hold
are then swept again in smaller pieces.
"""

from collections.abc import Sequence
from itertools import accumulate, zip_longest

import torch
from torch import Tensor

from ..checks import Checks
from ..lists import list_counts
from ..operands import Counts, Known, Lists, Operands
from .device.best import NO_LANE
from .device.canonical import Counted, Pairs
from .device.known import KNOWN_PAIRS, KnownRows, count_known
from .device.sweep import Tally
from .host import configs
from .host import launch as launcher
from .host.bounds import ROUND_UP
from .host.scan import Scan, Span, keys_of, score_pairs, scoring, spans
from .host.status import Status
from .host.views import views_of

_PAIRS_PER_OPEN = 256  # for random tables at d = 512 one pair in 400 is open


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
        return list_counts(scoring(operands, checks), operands, lists, targets, known)
    counts = targets.new_zeros(len(operands.crops), len(targets), 4)
    with launcher.serving(operands.table.device) as arch:
        if len(targets):
            known = Known(known.indptr.contiguous(), known.indices.contiguous())
            call = targets.contiguous(), known, targets.new_empty(2, configs.BAND_PAIRS)
            scores: Sequence[Tensor | None] = [None] * len(counts)
            if target_scores is not None:
                scores = target_scores.contiguous().unbind()
            rankings = [
                _Ranking(Scan(operands, dim, arch), call, *of_crop)
                for dim, *of_crop in zip(operands.crops, counts, scores, strict=True)
            ]
            _count(rankings, checks)
        else:
            checks.read()
    return Counts.of(counts.transpose(1, 2), operands)


def _count(rankings: list["_Ranking"], checks: Checks) -> None:
    """Count all crops: enqueue everything, wait once, then raise or repair."""
    starts = [0, *accumulate(len(ranking.steps) for ranking in rankings)]
    status = Status(starts.pop(), rankings[0].bands.device)
    for ranking, start in zip(rankings, starts, strict=True):
        ranking.scan.status = None if checks.allows_nan else status.rows
        ranking.enqueue(status, start)
    sizes, is_unsorted = status.read(checks)
    for ranking, start in zip(rankings, starts, strict=True):
        ranking.repair(sizes[start:], status)
        if is_unsorted:
            ranking.count_sorted(status)


class _Ranking:
    """Ranks of one crop, with counts added to ``counts [B, 4]``."""

    def __init__(
        self,
        scan: Scan,
        call: tuple[Tensor, Known, Tensor],
        counts: Tensor,
        scores: Tensor | None,
    ) -> None:
        """Plan the work; the call has targets, known answers, and a band for open pairs of each."""
        self.scan, self.counts, self._scores = scan, counts, scores
        self.targets, self.known, self.bands = call
        count, size = len(self.targets), self.bands.shape[1]
        chunks = max(1, _PAIRS_PER_OPEN * size // (min(count, scan.height) * scan.width))
        lanes = spans(scan.operands.candidates.num_candidates, chunks * scan.width)
        # Queries in the order of the targets' scores, and candidates.
        passes = [(rows, some) for rows in spans(count, scan.height) for some in lanes or [(0, 0)]]
        self._pieces = spans(len(self.known.indices), size)
        self.steps = list(zip_longest(passes, self._pieces))

    def enqueue(self, status: Status, first_band: int) -> None:
        """Enqueue all work, unless a band overflows or the index is unsorted.

        Queries with close targets, which stop early, share tiles.
        """
        scan, targets, taken = self.scan, self.targets, None
        if self._scores is None:
            self._scores = torch.empty_like(targets, dtype=torch.float64)
            pairs = Pairs(None, None, targets, scores=self._scores, status=scan.status)
            score_pairs(scan.operands, scan.dim, pairs)
        self._order = None
        if scan.rows != "in place" and scan.operands.score.monotone:
            self._order = self._scores.sort(descending=True, stable=True).indices
        for band, (work, piece) in enumerate(self.steps, first_band):
            cursors = status.cursors(band)
            if work is not None:
                queries, lanes = work
                if queries != taken:
                    self._take(queries)
                    taken = queries
                self._sweep(lanes, self.counts, cursors)
            if piece is not None:
                self._count_known(self.known, piece, cursors, status.unsorted)
            self._decide(cursors, 1 + (piece is not None))
        scan.release()

    def repair(self, sizes: list[int], status: Status) -> None:
        """Decide the open pairs of each pass with a band that overflowed."""
        size, tile, cursors = self.bands.shape[1], self.scan.tile, status.cursors(0)
        width = size // tile.rows // tile.lanes * tile.lanes
        for (work, _), num_open in zip(self.steps, sizes, strict=False):
            if work is None or num_open <= size:
                continue
            (first, stop), (start, end) = work
            for i in range(first, stop, tile.rows):
                self._take((i, min(i + tile.rows, stop)))
                certain = torch.zeros_like(self.counts)  # these were counted
                for j in range(start, end, width):
                    self._sweep((j, min(j + width, end)), certain, cursors.zero_())
                    self._decide(cursors)
        self.scan.release()

    def count_sorted(self, status: Status) -> None:
        """Count the known answers again, in sorted rows."""
        cursors, ids = status.cursors(0), keys_of(self.known).sort().values & NO_LANE
        known = Known(self.known.indptr, ids)
        self.counts[:, 2:].zero_()
        for piece in self._pieces:
            self._count_known(known, piece, cursors.zero_(), status.unsorted)
            self._decide(cursors, 2)

    def _take(self, positions: Span) -> None:
        """Let the scan have some queries, with the limits of their targets."""
        assert self._scores is not None
        order = None if self._order is None else self._order[slice(*positions)]
        self.scan.take(positions, order)
        self.scan.limit(self._scores, Counted(self.targets, self.counts))

    def _sweep(self, lanes: Span, counts: Tensor, cursors: Tensor) -> None:
        """Count candidates that certainly beat the targets; open pairs go to the first band."""
        self.scan.sweep(lanes, Tally(counts, self.bands, cursors, self.bands.shape[1]))

    def _decide(self, cursors: Tensor, num_bands: int = 1) -> None:
        """Decide the pairs of bands canonically, unless they overflowed."""
        pairs = Pairs(self.bands[:num_bands], cursors, self.scan.ids, self._scores)
        counted = Counted(self.targets, self.counts)
        score_pairs(self.scan.operands, self.scan.dim, pairs, counted)

    def _count_known(self, known: Known, piece: Span, cursors: Tensor, unsorted: Tensor) -> None:
        """Count some entries of the excluded; open pairs go to the second band."""
        scan, size, subset = self.scan, self.bands.shape[1], self.scan.ids
        assert self._scores is not None
        registers = configs.RSCF_REGISTERS if scan.form.is_rscf else 128
        launcher.launch(
            count_known,
            (-(-(piece[1] - piece[0]) // KNOWN_PAIRS),),
            {
                "views": views_of(scan.operands),
                "index": KnownRows(
                    known.indptr,
                    known.indices,
                    piece[0],
                    self.targets,
                    subset,
                    0 if subset is None else len(subset),
                    scan.limits(self._scores),
                    scan.bound.rel * ROUND_UP,
                    unsorted,
                ),
                "tally": Tally(self.counts, self.bands[1], cursors[1:], size),
                "stop": piece[1],
                "num_queries": len(self.targets),
                "num_features": scan.dim,
                "FORM": scan.form,
            },
            num_warps=4,
            **launcher.capped(registers, scan.arch),
        )
