"""Results of queries over the blocks of a source: counts add up, best answers are merged."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.queries import CPU, Queries
from kgfast.eval.sources import CandidateSource
from kgfast.kernels.above import merged
from kgfast.kernels.operands import Above
from kgfast.ops.differentiable import full_precision

# kinds of counts: greater, equal, both of the excluded; known answers, and all candidates
KINDS = 6
_NUMBER, _NAN, _MISSING = 0, 1, 2  # numbers come before NaN, places without a candidate last


class Accumulator(ABC):
    """Results of some queries over the blocks so far."""

    queries: Queries
    source: CandidateSource

    @property
    @abstractmethod
    def state(self) -> list[Tensor]:
        """Results so far, which ``partial=`` saves."""

    @abstractmethod
    def restore(self, state: list[Tensor]) -> None:
        """Continue from a saved state."""

    def begin(self) -> None:  # noqa: B027 - a hook: counts need no beginning
        """Read the queries once their vectors are made."""

    @abstractmethod
    def take(self, block: Any) -> None:
        """Add the results of the queries in a block."""


class CountsSoFar(Accumulator):
    """Counts of candidates that beat or equal the targets, int64 ``[6, C, B]``."""

    def __init__(
        self, queries: Queries, source: CandidateSource, room: Tensor | None = None
    ) -> None:
        self.queries, self.source = queries, source
        if room is None:
            shape = (KINDS, source.num_crops, len(queries))
            room = torch.zeros(shape, dtype=torch.int64, device=source.home)
        self.counts = room
        self.counts[4], self.counts[5] = queries.sizes(source.num_rows, source.sorted_ids)

    @property
    def state(self) -> list[Tensor]:
        return [self.counts[:4]]

    def restore(self, state: list[Tensor]) -> None:
        self.counts[:4] = state[0]

    def take(self, block: Any) -> None:
        found = self.source.counts(self.queries, block)
        if found is None:
            return
        for sums, values in zip(self.counts, found, strict=False):
            if self.source.is_whole:
                sums.copy_(values.reshape(sums.shape))
            else:
                sums += values.reshape(sums.shape).to(sums.device)


class BestSoFar(Accumulator):
    """Best answers, ``[B, k]``: -inf and -1 where there is no candidate.

    Scores are float64 until the end and merged exactly; one block of all candidates needs no
    merging, so the sweep rounds the scores. ``dtype`` is the dtype of the rounded scores.
    """

    def __init__(self, queries: Queries, source: CandidateSource, k: int) -> None:
        self.queries, self.source, self.k = queries, source, k
        self.dtype = torch.float32
        shape = len(queries), k
        home, room = source.home, shape
        if source.is_whole:  # the answers of the one block replace these
            home, room = CPU, (1, 1)
        self.scores = torch.full(room, -torch.inf, dtype=torch.float64, device=home).expand(shape)
        self.ids = torch.full(room, -1, dtype=torch.int64, device=home).expand(shape)

    @property
    def state(self) -> list[Tensor]:
        """Scores, ids, and a flag for float64 queries."""
        is_double = self.dtype == torch.float64
        flag = torch.tensor([is_double], dtype=torch.int64, device=CPU)
        return [self.scores.cpu().double().contiguous(), self.ids.cpu().contiguous(), flag]

    def restore(self, state: list[Tensor]) -> None:
        self.scores, self.ids = state[0].to(self.source.home), state[1].to(self.source.home)
        self.dtype = torch.float64 if int(state[2]) else torch.float32

    def begin(self) -> None:
        """Make queries float64 where blocks are merged, so that the sweep rounds no score."""
        queries = self.queries
        if queries.vectors is None:
            return
        queries.vectors = full_precision(queries.vectors)
        self.dtype = queries.vectors.dtype
        if not self.source.is_whole:
            queries.vectors = queries.vectors.double()

    def take(self, block: Any) -> None:
        found = self.source.best(self.queries, block, self.k)
        if found is None:
            return
        scores, ids = found
        if self.source.is_whole:
            self.scores, self.ids = scores, ids
            return
        if self.queries.vectors is None and scores.dtype == torch.float64:
            self.dtype = torch.float64
        scores, ids = scores.to(self.scores.device, torch.float64), ids.to(self.ids.device)
        self.keep(torch.cat([self.scores, scores], 1), torch.cat([self.ids, ids], 1))

    def keep(self, scores: Tensor, ids: Tensor) -> None:
        """Merge in answers ``[B, M]``; equal answers must stand by ascending id."""
        order = best_first(scores, ids)[:, : self.k]
        self.scores.copy_(scores.gather(1, order))
        self.ids.copy_(ids.gather(1, order))
        self.scores.masked_fill_(self.ids < 0, -torch.inf)


class Room:
    """Number of results of a call so far, and the maximal number."""

    def __init__(self, most: int) -> None:
        self.most, self.count, self.is_over = most, 0, False

    @property
    def left(self) -> int:
        """Number of results that still fit; -1 where results are only counted."""
        return -1 if self.is_over else self.most - self.count


class AboveSoFar(Accumulator):
    """Answers that reach float64 ``thresholds [B]``; only their number where they do not fit."""

    def __init__(
        self, queries: Queries, source: CandidateSource, thresholds: Tensor, room: Room
    ) -> None:
        self.queries, self.source, self.thresholds, self.room = queries, source, thresholds, room
        self.dtype = torch.float32
        self.pieces: list[Above] = []  # by ascending ids

    @property
    def state(self) -> list[Tensor]:
        """Empty state: no call saves these answers."""
        return []

    def restore(self, state: list[Tensor]) -> None:
        """Do nothing: there is no state."""

    def begin(self) -> None:
        """Widen queries in half precision; this is exact."""
        if self.queries.vectors is not None:
            self.queries.vectors = full_precision(self.queries.vectors)
            self.dtype = self.queries.vectors.dtype

    def take(self, block: Any) -> None:
        room = self.room
        found = self.source.above(self.queries, block, self.thresholds, room.left)
        if isinstance(found, Above):
            room.count += len(found.ids)
            self.dtype = found.scores.dtype
            self.pieces.append(Above(*(it.to(self.source.home) for it in found)))
        elif found is not None:
            room.count += found
            room.is_over |= room.count > room.most
        if room.is_over:
            self.pieces.clear()

    def whole(self) -> Above:
        """Join the pieces, and release them."""
        if len(self.pieces) == 1:
            return self.pieces.pop()
        count = len(self.queries)
        rows = torch.arange(count, dtype=torch.int64, device=self.source.home)
        like = torch.empty(0, dtype=self.dtype, device=rows.device)
        pieces, self.pieces = [(rows, it) for it in self.pieces], []
        return merged(pieces, count, like)


def best_first(scores: Tensor, ids: Tensor) -> Tensor:
    """Return places from best to worst score; equal scores keep the given order."""
    kind = torch.where(scores.isnan(), _NAN, _NUMBER).where(ids >= 0, _MISSING)
    by_score = scores.nan_to_num(0.0, torch.inf, -torch.inf).argsort(
        dim=1, descending=True, stable=True
    )
    return by_score.gather(1, kind.gather(1, by_score).argsort(dim=1, stable=True))
