"""Counts of scores within a band around the target's, which LibKGE calls ties."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast.eval import evaluating
from kgfast.graph import KnownTriples, as_triples_tensor
from kgfast.models import SIDES, BlockScorer, Side, candidates_at, evaluated_queries
from kgfast.ops import pairwise_scores

_BATCH, _BLOCK = 128, 4096


class Band(NamedTuple):
    """Tolerance: scores s tie if ``abs(s - target) <= atol + rtol abs(target)``."""

    atol: float
    rtol: float


Counts = tuple[Tensor, Tensor]  # greater and tied, without the target, int64 [T, 2], heads first


@torch.no_grad()
def fuzzy_counts(
    model: Any, triples: Any, known: KnownTriples, band: Band
) -> tuple[Counts, Counts]:
    """Return raw and filtered counts like LibKGE's ``EntityRankingJob``.

    Scores are computed in blocks of candidates; a NaN is the worst score. ``Band(0, 0)`` counts
    equal float32 scores.
    """
    hrt = as_triples_tensor(triples)
    raw, filtered = (
        torch.empty((2, len(hrt), 2), dtype=torch.int64, device="cpu") for _ in range(2)
    )
    with evaluating(model):
        for first in range(0, len(hrt), _BATCH):
            rows = slice(first, first + _BATCH)
            for column, side in enumerate(SIDES):
                every, excluded = _count(_Batch(model, hrt[rows], side), known, band)
                raw[:, rows, column] = every
                filtered[:, rows, column] = every - excluded
    return (raw[0], raw[1]), (filtered[0], filtered[1])


class _Batch:
    """Queries of some triples, and scores by blocks."""

    def __init__(self, model: Any, hrt: Tensor, side: Side) -> None:
        self.model, self.side = model, side
        heads, self.relations, tails = hrt.T
        self.anchors, self.targets = (heads, tails) if side == "tail" else (tails, heads)
        self.blocks: Any = None
        if isinstance(model, BlockScorer) or getattr(model, "is_in_blocks", False):
            self.blocks = model.in_blocks(side)
            self.device = self.blocks.device
        else:
            self.table = candidates_at(model, side, None)
            self.device = self.table.table.device
            anchors, relations = (ids.to(self.device) for ids in (self.anchors, self.relations))
            self.queries = evaluated_queries(model, anchors, relations, side, None)

    def scores(self, first: int, last: int) -> Tensor:
        """Return float32 ``[B, C]``, with NaN as the lowest score."""
        if self.blocks is not None:
            ids = torch.arange(first, last, dtype=torch.int64, device=self.device)
            anchors, relations = (ids.to(self.device) for ids in (self.anchors, self.relations))
            scores: Tensor = self.blocks.fn(anchors, relations, self.side, ids)
        else:
            bias = self.table.bias
            if bias is not None and len(bias) > 1:
                bias = bias[first:last]
            table = self.table.table[first:last]
            scores = pairwise_scores(self.queries, table, self.model.score, bias=bias)
        return scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def _count(batch: _Batch, known: KnownTriples, band: Band) -> tuple[Tensor, Tensor]:
    """Count all candidates but the target, and the known among them, int64 ``[2, B]``."""
    size, count = batch.model.num_entities, len(batch.targets)
    indptr, indices = known.exclude(batch.anchors, batch.relations, batch.side)
    numbers = torch.arange(count, dtype=torch.int64, device="cpu")
    row_of = torch.repeat_interleave(numbers, indptr.diff())
    targets = batch.targets.to(batch.device)
    truth = torch.empty(count, dtype=torch.float32, device=batch.device)
    for first in range(0, size, _BLOCK):  # a target's score comes from its block of candidates
        here = ((targets >= first) & (targets < first + _BLOCK)).nonzero()[:, 0]
        if len(here):
            scores = batch.scores(first, min(first + _BLOCK, size))
            truth[here] = scores[here, targets[here] - first].float()
    every, excluded = (
        torch.zeros((2, count), dtype=torch.int64, device=batch.device) for _ in range(2)
    )
    for first in range(0, size, _BLOCK):
        last = min(first + _BLOCK, size)
        scores = batch.scores(first, last).float()
        close = torch.isclose(scores, truth[:, None], rtol=band.rtol, atol=band.atol)
        both = torch.stack([(scores > truth[:, None]) & ~close, close])  # [2, B, C]
        here = ((targets >= first) & (targets < last)).nonzero()[:, 0]
        both[:, here, targets[here] - first] = False
        every += both.sum(2)
        inside = (indices >= first) & (indices < last)
        rows, columns = row_of[inside].to(batch.device), indices[inside].to(batch.device) - first
        for counts, hits in zip(excluded, both[:, rows, columns].long(), strict=True):
            counts.index_add_(0, rows, hits)
    return every.cpu(), excluded.cpu()
