"""Scores that come in blocks, consumed as those of every model: counted, or sorted out.

Exact with respect to the scores: they are compared as float64. Memory: a few ``[B, block]`` tensors
of float64, and up to 16 MiB of scores that would be asked for twice.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from kgfast.kernels.operands import Counts, Known
from kgfast.models.base import Side
from kgfast.models.blocks import Block, BlockScorer
from kgfast.ops.checks import check_ids, check_unique

_KEPT = 16 << 20  # bytes of scores of one batch that are kept for the second pass
_NUMBER, _NAN, _MISSING = 0, 1, 2  # numbers come before NaN, places without a candidate last


class Queries(NamedTuple):
    """What candidates are asked for, int64 ``[B]`` each, where the scorer is."""

    anchors: Tensor
    others: Tensor  # relations; of side "relation" tails

    def part(self, rows: slice) -> "Queries":
        """Some of them."""
        return Queries(self.anchors[rows], self.others[rows])


@dataclass(frozen=True)
class BlockPool:
    """The candidates of one side of a scorer.

    Attributes
    ----------
    scorer : BlockScorer
    side : {"head", "relation", "tail"}
    ids : Tensor, optional
        int64 ``[M]``, distinct, ascending: only these are candidates.
    nan_worst : bool
        Whether NaN ranks last instead of being an error.
    """

    scorer: BlockScorer
    side: Side
    ids: Tensor | None = None
    nan_worst: bool = False

    @classmethod
    def of(
        cls, scorer: BlockScorer, side: Side, ids: Tensor | None, *, nan_worst: bool = False
    ) -> "BlockPool":
        """The pool of a list of candidates in any order, which is checked."""
        nan_worst = nan_worst or scorer.nan == "worst"
        if ids is None:
            return cls(scorer, side, None, nan_worst)
        if ids.ndim != 1:
            raise ValueError(f"candidate_ids must have one axis; got shape {list(ids.shape)}")
        check_ids("candidate_ids", ids, scorer.num_candidates(side))
        check_unique("candidate_ids", ids)
        return cls(scorer, side, ids.to(scorer.device).sort().values, nan_worst)

    @cached_property
    def num_candidates(self) -> int:
        """How many there are."""
        whole = self.scorer.num_candidates(self.side)
        return whole if self.ids is None else len(self.ids)

    def counts(self, queries: Queries, targets: Tensor, known: Known) -> Counts:
        """What :func:`kgfast.ops.rank_counts` counts, int64 ``[B]`` each.

        ``known`` holds no id twice in a row.
        """
        step = self.scorer.batch_size
        parts = [
            self._batch_counts(queries.part(rows), targets[rows], rows_of(known, rows))
            for rows in _slices(len(targets), step)
        ]
        if not parts:
            return Counts(*(targets.new_zeros(0) for _ in range(4)))
        return Counts(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def topk(self, queries: Queries, k: int, known: Known | None) -> tuple[Tensor, Tensor]:
        """What :func:`kgfast.ops.topk` finds with ``pad``: scores and ids, ``[B, k]``.

        Scores are float32, float64 where the function returns that.
        """
        parts = [
            self._batch_topk(queries.part(rows), k, None if known is None else rows_of(known, rows))
            for rows in _slices(len(queries.anchors), self.scorer.batch_size)
        ]
        if not parts:
            empty = queries.anchors.new_empty(0, k)
            return empty.float(), empty
        scores, ids = (torch.cat(column) for column in zip(*parts, strict=True))
        return scores, ids

    def scores(self, queries: Queries, block: Block) -> Tensor:
        """Those of a block, as the function returns them."""
        return self.scorer.scores(*queries, block, allows_nan=self.nan_worst)

    def blocks(self) -> list[int]:
        """Their numbers."""
        return list(range(-(-self.num_candidates // self.scorer.block)))

    def block(self, number: int) -> Block:
        """One of them."""
        return self.scorer.block_at(number, self.side, self.ids)

    def excluded(self, known: Known, targets: Tensor | None = None) -> "Excluded":
        """The known answers that are candidates, and not the target."""
        rows = torch.repeat_interleave(known.indptr.diff())
        places, inside = self.places(known.indices)
        if targets is not None:
            inside &= known.indices != targets[rows]
        rows, places = rows[inside], places[inside]
        order = places.argsort()
        return Excluded(rows[order], places[order])

    def places(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Where ids stand among the candidates, and whether they do."""
        if self.ids is None:
            return ids, (ids >= 0) & (ids < self.num_candidates)
        if not len(self.ids):
            return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        places = torch.searchsorted(self.ids, ids).clamp_(max=len(self.ids) - 1)
        return places, self.ids[places] == ids

    def _batch_counts(self, queries: Queries, targets: Tensor, known: Known) -> Counts:
        kept: dict[int, Tensor] = {}
        threshold = self._target_scores(queries, targets, kept)
        excluded = self.excluded(known, targets)
        counts = Counts(*(torch.zeros_like(targets) for _ in range(4)))
        for number in self.blocks():
            block = self.block(number)
            scores = kept.pop(number, None)
            scores = (self.scores(queries, block) if scores is None else scores).double()
            other = block.ids != targets[:, None]
            beats = (scores > threshold[:, None]) | threshold.isnan()[:, None]
            counts.greater.add_((beats & other).sum(1))
            counts.equal.add_(((scores == threshold[:, None]) & other).sum(1))
            rows, columns = excluded.within(block)
            values, limits = scores[rows, columns], threshold[rows]
            counts.greater_excluded.index_add_(0, rows, ((values > limits) | limits.isnan()).long())
            counts.equal_excluded.index_add_(0, rows, (values == limits).long())
        return counts

    def _target_scores(self, queries: Queries, targets: Tensor, kept: dict[int, Tensor]) -> Tensor:
        """The score of each target in the block that holds it, float64 ``[B]``.

        Blocks of candidates go into ``kept`` while there is room; a target that is no candidate has
        the score that it has among all.
        """
        places, inside = self.places(targets)
        threshold = torch.empty(len(targets), dtype=torch.float64, device=targets.device)
        room = _KEPT
        whole = BlockPool(self.scorer, self.side, None, self.nan_worst)
        for pool, members, at in ((self, inside, places), (whole, ~inside, targets)):
            numbers = torch.where(members, at // self.scorer.block, -1)
            for number in numbers[members].unique().tolist():
                block = pool.block(number)
                scores = pool.scores(queries, block)
                rows = (numbers == number).nonzero()[:, 0]
                threshold[rows] = scores[rows, at[rows] - block.first].double()
                size = scores.numel() * scores.element_size()
                if pool is self and size <= room:
                    room -= size
                    kept[number] = scores.clone()  # the function may write into its own again
        return threshold

    def _batch_topk(self, queries: Queries, k: int, known: Known | None) -> tuple[Tensor, Tensor]:
        excluded = None if known is None else self.excluded(known)
        count, device = len(queries.anchors), self.scorer.device
        values = torch.empty((count, 0), dtype=torch.float64, device=device)
        best = torch.empty((count, 0), dtype=torch.int64, device=device)
        dtype = torch.float32
        for number in self.blocks():
            block = self.block(number)
            scores = self.scores(queries, block)
            dtype = torch.float64 if scores.dtype == torch.float64 else dtype
            ids = block.ids.repeat(count, 1)
            if excluded is not None:
                ids[excluded.within(block)] = -1
            values, best = torch.cat([values, scores.double()], 1), torch.cat([best, ids], 1)
            order = best_first(values, best)[:, :k]
            values, best = values.gather(1, order), best.gather(1, order)
        missing = k - best.shape[1]
        values = torch.where(best < 0, -torch.inf, values)
        values = torch.nn.functional.pad(values, (0, missing), value=-torch.inf)
        return values.to(dtype), torch.nn.functional.pad(best, (0, missing), value=-1)


class Excluded(NamedTuple):
    """Pairs of a query and a candidate's place, by ascending place."""

    rows: Tensor
    places: Tensor

    def within(self, block: Block) -> tuple[Tensor, Tensor]:
        """Those of a block: rows and columns of its scores."""
        ends = [block.first, block.first + len(block.ids)]
        limits = torch.tensor(ends, dtype=torch.int64, device=self.places.device)
        first, last = torch.searchsorted(self.places, limits).tolist()
        return self.rows[first:last], self.places[first:last] - block.first


def best_first(scores: Tensor, ids: Tensor) -> Tensor:
    """Places from best to worst: by score, and among equals as they stand, by ascending id."""
    kind = torch.where(scores.isnan(), _NAN, _NUMBER).where(ids >= 0, _MISSING)
    by_score = scores.nan_to_num(0.0, torch.inf, -torch.inf).argsort(
        dim=1, descending=True, stable=True
    )
    return by_score.gather(1, kind.gather(1, by_score).argsort(dim=1, stable=True))


def rows_of(known: Known, rows: slice) -> Known:
    """The known answers of some queries."""
    indptr = known.indptr[rows.start : rows.stop + 1]
    return Known(indptr - indptr[0], known.indices[int(indptr[0]) : int(indptr[-1])])


def _slices(count: int, step: int) -> list[slice]:
    return [slice(first, min(first + step, count)) for first in range(0, count, step)]
