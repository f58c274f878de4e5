"""The job of above(): all answers with scores that reach a threshold."""

from typing import Any

import torch
from torch import Tensor

from kgfast.eval.answers import AskedQueries, Search
from kgfast.eval.candidates import Allowed
from kgfast.eval.job import JobSection, SoFar
from kgfast.eval.queries import CPU, Queries
from kgfast.eval.sources import CandidateSource
from kgfast.kernels.above import merged
from kgfast.kernels.operands import Above
from kgfast.ops.above import check_max_results, check_thresholds, thresholds_of, too_many
from kgfast.ops.differentiable import full_precision
from kgfast.storage import digest


class Room:
    """Number of results of a call so far, and the maximal number."""

    def __init__(self, most: int) -> None:
        self.most, self.count, self.is_over = most, 0, False

    @property
    def left(self) -> int:
        """Number of results that still fit; -1 where results are only counted."""
        return -1 if self.is_over else self.most - self.count


class AboveSoFar(SoFar):
    """Answers that reach float64 ``thresholds [B]``; only their number where they do not fit."""

    def __init__(
        self,
        section: JobSection,
        queries: Queries,
        source: CandidateSource,
        thresholds: Tensor,
        room: Room,
    ) -> None:
        self.section, self.queries, self.source = section, queries, source
        self.thresholds, self.room = thresholds, room
        self.dtype = torch.float32
        self.pieces: list[Above] = []  # by ascending ids

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

    def join(self, shares: Any) -> None:
        if shares.total(self.room.count) > self.room.most:
            self.room.is_over = True
            self.pieces.clear()
            return
        own = self.whole()
        indptrs = shares.gather(own.indptr)
        missing = max(int(it[-1]) for it in indptrs) - len(own.ids)
        padded = (torch.nn.functional.pad(it, (0, missing)) for it in (own.ids, own.scores))
        found = []
        for indptr, ids, scores in zip(indptrs, *map(shares.gather, padded), strict=True):
            if count := int(indptr[-1]):
                found.append(Above(indptr, ids[:count], scores[:count]))
        self.pieces = sorted(found, key=lambda it: int(it.ids.min()))


class AboveSearch(Search):
    """Search for all answers above a threshold."""

    name = "above"
    result_bytes = 0  # results take no memory of the limit for reading a file

    def __init__(
        self,
        model: Any,
        given: AskedQueries,
        allowed: Allowed,
        dims: int | None,
        batch_size: Any,
        threshold: Tensor | float,
        max_results: int,
    ) -> None:
        super().__init__(model, given, allowed, dims, batch_size)
        check_max_results(max_results)
        self.thresholds = thresholds_of(threshold, len(self.anchors), CPU)
        check_thresholds(self.thresholds)
        self.room = Room(max_results)

    @property
    def facts(self) -> dict[str, str]:
        limits = {"threshold": digest(self.thresholds), "max_results": str(self.room.most)}
        return super().facts | limits

    def start(self, section: JobSection, source: CandidateSource, queries: Queries) -> AboveSoFar:
        thresholds = self.thresholds[queries.rows].to(source.device)
        return AboveSoFar(section, queries, source, thresholds, self.room)

    def collected(self) -> Above:
        shares, results, room = self._shares, self.results, self.room
        total = room.count if shares is None else shares.total(room.count, of_all=True)
        if total > room.most:
            raise too_many(total, room.most)
        if len(results) == 1 and (shares is None or shares.num_shares == 1):
            whole: Above = results[0].whole()
            return whole
        home = results[0].source.home
        is_double = any(it.dtype == torch.float64 for it in results)
        dtype = torch.float64 if is_double else torch.float32
        pieces = []
        for result in results:
            rows = result.queries.rows.to(home)
            pieces += [(rows, it) for it in result.pieces]
            result.pieces.clear()
        like = torch.empty(0, dtype=dtype, device=home)
        answers = merged(pieces, len(self.anchors), like)
        return answers if shares is None else _filled_in(answers, shares)


def _filled_in(own: Above, shares: Any) -> Above:
    if shares.num_shares == 1:
        return own
    mine = own.indptr.diff()
    counts = shares.filled_in(mine.clone())
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    at = torch.repeat_interleave(indptr[:-1] - own.indptr[:-1], mine)
    at += torch.arange(len(at), dtype=torch.int64, device=CPU)
    whole = []
    for values in (own.ids, own.scores.double()):
        room = values.new_zeros(int(indptr[-1]))
        room[at] = values
        whole.append(shares.filled_in(room))
    return Above(indptr, whole[0], whole[1].to(own.scores.dtype))
