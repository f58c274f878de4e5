"""Candidates that a function scores, block by block.

Results are exact with respect to the function's scores, which are compared as float64. Memory is a
few ``[B, block]`` float64 tensors, and up to 16 MiB of scores for the second pass. Whole rows of
scores are stored in any size, and the function is called once.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.candidates import checked_candidates
from kgfast.eval.queries import Queries
from kgfast.eval.sources import Best, CandidateSource
from kgfast.graph.ids import places_among
from kgfast.kernels.operands import Above, Counts
from kgfast.models.base import Side
from kgfast.models.blocks import Block, BlockScorer
from kgfast.ops.differentiable import full_precision

_KEPT = 16 << 20  # bytes of scores of one batch that are stored for the second pass


class Scored(CandidateSource):
    """Candidates of a side that functions score, one function per crop; ``ids`` in any order."""

    has_lists = False

    def __init__(
        self, scorers: Sequence[BlockScorer], side: Side, ids: Tensor | None, allows_nan: bool
    ) -> None:
        self.scorers, self.side = scorers, side
        scorer = self.scorer = scorers[0]
        self.num_crops, self.allows_nan = len(scorers), allows_nan
        self.device = self.home = scorer.device
        self.num_rows, self.batch_size = scorer.num_candidates(side), scorer.batch_size
        if ids is not None:
            self.sorted_ids = checked_candidates(ids, self.num_rows).to(scorer.device)
        self._kept: dict[tuple[int, int], Tensor] = {}
        self._whole: list[Tensor] = []  # scores of all rows, for each crop

    def prepare(self, queries: Queries) -> None:
        """Score the targets, float64 ``[C, B]``, each in the block of the target."""
        self._kept.clear()
        self._whole.clear()
        if self.scorer.whole:
            every = self.scorer.block_at(0, self.side)
            self._whole = [self.scores(queries, every, crop) for crop in range(self.num_crops)]
        if queries.targets is None:
            return
        self._room = _KEPT  # memory left for stored blocks
        crops = range(self.num_crops)
        scores = [self._target_scores(queries, queries.targets, crop) for crop in crops]
        queries.target_scores = torch.stack(scores)

    def blocks(self, results: Sequence[Any]) -> AbstractContextManager[Iterator[Block]]:
        ids = self.ids_of(results[0].queries)
        count = self.num_rows if ids is None else len(ids)
        numbers = range(-(-count // self.scorer.block))
        return nullcontext(self.scorer.block_at(number, self.side, ids) for number in numbers)

    def counts(self, queries: Queries, block: Block) -> Counts:
        targets, thresholds = queries.targets, queries.target_scores
        assert targets is not None
        assert thresholds is not None
        counts = Counts(*(torch.zeros_like(thresholds, dtype=torch.int64) for _ in range(4)))
        other = block.ids != targets[:, None]
        rows, columns = self._excluded_within(queries, block)
        for crop, threshold in enumerate(thresholds):
            scores = self._kept.pop((crop, block.number), None)
            scores = (self.scores(queries, block, crop) if scores is None else scores).double()
            beats = (scores > threshold[:, None]) | threshold.isnan()[:, None]
            counts.greater[crop] = (beats & other).sum(1)
            counts.equal[crop] = ((scores == threshold[:, None]) & other).sum(1)
            values, limits = scores[rows, columns], threshold[rows]
            beaten = ((values > limits) | limits.isnan()).long()
            counts.greater_excluded[crop].index_add_(0, rows, beaten)
            counts.equal_excluded[crop].index_add_(0, rows, (values == limits).long())
        return counts

    def best(self, queries: Queries, block: Block, k: int) -> Best:
        scores = self.scores(queries, block)
        ids = block.ids.repeat(len(queries), 1)
        if queries.known is not None:
            ids[self._excluded_within(queries, block)] = -1
        return scores, ids

    def above(self, queries: Queries, block: Block, thresholds: Tensor, most: int) -> Above | int:
        """Return the scores of a block that reach the thresholds, float32 or float64."""
        scores, ids = self.best(queries, block, 0)
        scores = full_precision(scores)
        reaches = (ids >= 0) & (scores.double() >= thresholds[:, None])
        count = int(reaches.sum())
        if count > most:
            return count
        indptr = torch.nn.functional.pad(reaches.sum(1).cumsum(0), (1, 0))
        return Above(indptr, ids[reaches], scores[reaches])

    def scores(self, queries: Queries, block: Block, crop: int = 0) -> Tensor:
        if self._whole:
            rows = self._whole[crop]
            return rows if len(block.ids) == self.num_rows else rows[:, block.ids]
        arguments = queries.anchors, queries.others, block
        return self.scorers[crop].scores(*arguments, allows_nan=self.allows_nan)

    def _excluded_within(self, queries: Queries, block: Block) -> tuple[Tensor, Tensor]:
        """Return rows and columns of a block that are known answers other than targets."""
        known = queries.known
        assert known is not None
        rows = torch.repeat_interleave(known.indptr.diff())
        columns, inside = _places(known.indices, block.ids, self.num_rows)
        if queries.targets is not None:
            inside &= known.indices != queries.targets[rows]
        return rows[inside], columns[inside]

    def _target_scores(self, queries: Queries, targets: Tensor, crop: int) -> Tensor:
        """Return scores of targets, float64 ``[B]``; others than candidates too."""
        ids = self.ids_of(queries)
        places, inside = _places(targets, ids, self.num_rows)
        threshold = torch.empty(len(targets), dtype=torch.float64, device=targets.device)
        for candidates, members, at in ((ids, inside, places), (None, ~inside, targets)):
            numbers = torch.where(members, at // self.scorer.block, -1)
            for number in numbers[members].unique().tolist():
                block = self.scorer.block_at(number, self.side, candidates)
                scores = self.scores(queries, block, crop)
                rows = (numbers == number).nonzero()[:, 0]
                threshold[rows] = scores[rows, at[rows] - block.first].double()
                size = scores.numel() * scores.element_size()
                if members is inside and size <= self._room and not self._whole:
                    self._room -= size
                    # a copy, since the function may write into the original
                    self._kept[crop, number] = scores.clone()
        return threshold


def _places(ids: Tensor, candidates: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Return the places of ids among ascending candidates, and a mask of the ids found."""
    if candidates is None:
        return ids, (ids >= 0) & (ids < count)
    return places_among(ids, candidates)
