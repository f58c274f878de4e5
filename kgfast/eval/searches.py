"""The jobs of topk() and above(): the best answers to queries, or all from a score on."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad as padded

from kgfast.eval.candidates import (
    Allowed,
    ListedIds,
    candidates_of_sides,
    checked_ids_of,
    digest_of,
)
from kgfast.eval.excluded import Excluded
from kgfast.eval.job import Job, JobSection, SoFar, names_in_words
from kgfast.eval.preparation import check_known, check_names, checked_batch_size
from kgfast.eval.queries import CPU, Queries, moved
from kgfast.eval.sources import CandidateSource, Crops, crops_of
from kgfast.graph import IdsLike, TypeConstraints, VocabularyLike, names_of
from kgfast.graph.named import Names
from kgfast.kernels.above import merged
from kgfast.kernels.operands import Above, Known
from kgfast.models.base import Side
from kgfast.ops.above import check_max_results, thresholds_of
from kgfast.ops.differentiable import full_precision
from kgfast.ops.topk import check_k
from kgfast.storage import digest

_NO_SCORE = torch.full((1, 1), -torch.inf, dtype=torch.float64, device=CPU)
_NO_ID = torch.full((1, 1), -1, dtype=torch.int64, device=CPU)


class AskedQueries(NamedTuple):
    """Queries as arguments of :func:`kgfast.topk`: ids, or names of a vocabulary."""

    heads: IdsLike | None
    relations: IdsLike | None
    tails: IdsLike | None
    vocabulary: VocabularyLike | None


class Search(Job):
    """Checked arguments of one prediction, and the results of its passes.

    ``anchors`` and ``others`` are int64 ``[B]``, and ``argument`` is the name of the argument that
    gave the anchors.
    """

    def __init__(
        self, model: Any, asked: AskedQueries, allowed: Allowed, dims: int | None, batch_size: Any
    ) -> None:
        self.model, self.known, self.names = model, allowed.known, (None, None)
        if self.known is not None:
            check_known(self.known)
        if asked.vocabulary is not None:
            self.names = names_of(asked.vocabulary)
            check_names(self.names, model)
        side, self.argument, self.anchors, self.others = _queries_of(model, asked, self.names)
        count = self.anchors.numel()
        self.batch_size = checked_batch_size(batch_size, model, count)
        candidates = self.excluded = None
        if allowed.exclude is not None:
            self.excluded = Excluded.of(allowed.exclude, side, self.anchors, model, self.names)
        if allowed.candidate_ids is not None:
            every = allowed.candidate_ids, (side,), count, model, self.names
            candidates = candidates_of_sides(*every)[side]
        crops: Crops = {None: None} if dims is None else crops_of(model, [dims])
        self.section = JobSection(side, crops, candidates)
        self.sides, self.sections = (side,), [self.section]
        self.results: list[Any] = []
        self._shares: Any = None

    @property
    def num_queries(self) -> int:
        return len(self.anchors)

    @abstractmethod
    def collected(self) -> Sequence[Tensor]:
        """Return the results of all queries."""

    @property
    def facts(self) -> dict[str, str]:
        section = self.section
        return {
            "vocabularies": names_in_words(self.names),
            "queries": f"{len(self.anchors):,} {digest(section.side, self.anchors, self.others)}",
            "candidate_ids": digest_of(section.given),
            "the crop": str(section.crops),
            "exclude": digest(*vars(self.excluded).values()) if self.excluded else "none",
        }

    def query_in_words(self, row: int) -> str:
        """Return a query in words, for messages."""
        what = "tail" if self.section.side == "relation" else "relation"
        anchor, other = int(self.anchors[row]), int(self.others[row])
        return f"{self.argument}[{row}] = {anchor} with {what} {other}"

    def words(self, queries: Queries, place: int) -> str:
        """Name a query that is not finite."""
        return (
            f"{self.query_in_words(int(queries.rows[place]))}: the query holds a NaN or an "
            "infinity, from the embeddings of the entity or relation or from the filters on them"
        )

    def queries(self, section: JobSection, home: torch.device, size: int) -> Iterable[Queries]:
        """Make all queries; in order of relations if each relation has candidates."""
        rows = torch.arange(self.anchors.numel(), dtype=torch.int64, device=CPU)
        if isinstance(section.given, TypeConstraints):
            rows = self.others.cpu().argsort(stable=True)
        return (self.some(section, rows, home),)

    def some(self, section: JobSection, rows: Tensor, home: torch.device) -> Queries:
        anchors, others = self.anchors, self.others
        if rows.numel() < anchors.numel() or isinstance(section.given, TypeConstraints):
            anchors, others = (ids[rows.to(ids.device)] for ids in (anchors, others))
        if home != anchors.device:
            anchors, others = moved(anchors, home), moved(others, home)
        return Queries(section.side, rows, anchors, others, self.words)

    def known_of(self, queries: Queries, source: CandidateSource) -> Known | None:
        known = super().known_of(queries, source)
        if self.excluded is None:
            return known
        return self.excluded.joined(known, queries.rows, source.home)

    def put(self, result: SoFar) -> None:
        self.results.append(result)

    def join(self, shares: Any) -> None:
        self._shares = shares


class BestSoFar(SoFar):
    """Best answers, ``[B, k]``: -inf and -1 where there is no candidate.

    Scores are float64 until the end and merged exactly; one block of all candidates needs no
    merging, so the sweep rounds the scores. ``dtype`` is the dtype of the rounded scores.
    """

    def __init__(
        self, section: JobSection, queries: Queries, source: CandidateSource, k: int
    ) -> None:
        self.section, self.queries, self.source, self.k = section, queries, source, k
        self.dtype = torch.float32
        shape, home = (queries.rows.numel(), k), source.home
        if source.is_whole:  # the answers of the one block replace these
            self.scores, self.ids = _NO_SCORE.expand(shape), _NO_ID.expand(shape)
        else:
            self.scores = torch.full(shape, -torch.inf, dtype=torch.float64, device=home)
            self.ids = torch.full(shape, -1, dtype=torch.int64, device=home)

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
        self._keep(torch.cat([self.scores, scores], 1), torch.cat([self.ids, ids], 1))

    def _keep(self, scores: Tensor, ids: Tensor) -> None:
        """Merge in answers ``[B, M]``; equal answers must stand by ascending id."""
        order = best_first(scores, ids)[:, : self.k]
        self.scores.copy_(scores.gather(1, order))
        self.ids.copy_(ids.gather(1, order))
        self.scores.masked_fill_(self.ids < 0, -torch.inf)

    def join(self, shares: Any) -> None:
        scores, ids = (torch.cat(shares.gather(it), 1) for it in (self.scores, self.ids))
        by_id = ids.argsort(dim=1, stable=True)
        self._keep(scores.gather(1, by_id), ids.gather(1, by_id))

    @property
    def may_lack(self) -> bool:
        """True if a query may have fewer than k answers."""
        queries, source = self.queries, self.source
        candidates = source.num_candidates if queries.ids is None else len(queries.ids)
        known = 0 if queries.known is None else len(queries.known.indices)
        is_short = self.k > candidates - known
        return is_short or queries.lists is not None or not source.is_whole


class BestSearch(Search):
    """Search for the best ``k`` answers to each query; ``pad`` fills missing ones."""

    name = "topk"

    def __init__(
        self,
        model: Any,
        asked: AskedQueries,
        allowed: Allowed,
        options: tuple[int | None, Any],
        k: int,
        pad: bool = False,
    ) -> None:
        super().__init__(model, asked, allowed, *options)
        self.k, self.pad = k, pad

    @property
    def facts(self) -> dict[str, str]:
        return super().facts | {"k": str(self.k), "pad": str(bool(self.pad))}

    @property
    def result_bytes(self) -> int:
        return 6 * 16 * self.k

    def begin(self, source: CandidateSource) -> None:
        is_shared = not isinstance(self.section.given, ListedIds | TypeConstraints)
        has_bound = self.anchors.numel() and not self.pad and is_shared
        check_k(self.k, source.num_candidates if has_bound else None)

    def start(self, section: JobSection, source: CandidateSource, queries: Queries) -> BestSoFar:
        return BestSoFar(section, queries, source, self.k)

    def collected(self) -> tuple[Tensor, Tensor]:
        """Return scores and ids of all queries, ``[B, k]``."""
        results = self.results
        scores, ids = results[0].scores, results[0].ids
        if len(results) > 1:
            scores = torch.cat([result.scores for result in results])
            ids = torch.cat([result.ids for result in results])
        if self._shares is not None or isinstance(self.section.given, TypeConstraints):
            scores, ids = (self._in_order(values) for values in (scores, ids))
        dtype = torch.float32
        has_all = self.known is None and self.section.given is None and self.excluded is None
        for result in results:
            if not (has_all and result.source.is_whole) and not self.pad and result.may_lack:
                self._check_full(ids)
            dtype = torch.float64 if result.dtype == torch.float64 else dtype
        return scores.to(dtype), ids

    def _in_order(self, values: Tensor) -> Tensor:
        rows = torch.cat([result.queries.rows for result in self.results]).to(values.device)
        room = values.new_zeros((len(self.anchors), self.k))
        room[rows] = values
        return room if self._shares is None else self._shares.filled_in(room)

    def _check_full(self, ids: Tensor) -> None:
        short = (ids[:, -1] < 0).nonzero()
        if len(short):
            row = int(short[0])
            raise ValueError(
                "k must be at most the number of candidates of each query: "
                f"{self.query_in_words(row)} has {int((ids[row] >= 0).sum())}, k is {self.k} "
                "(pad=True fills the rest with id -1)"
            )


class AboveSoFar(SoFar):
    """Answers that reach float64 ``thresholds [B]``; only their number where they do not fit."""

    def __init__(
        self, section: JobSection, queries: Queries, source: CandidateSource, search: "AboveSearch"
    ) -> None:
        self.section, self.queries, self.source, self.search = section, queries, source, search
        self.thresholds = search.thresholds[queries.rows].to(source.device)
        self.dtype = torch.float32
        self.pieces: list[Above] = []  # by ascending ids

    def begin(self) -> None:
        """Widen queries in half precision; this is exact."""
        if self.queries.vectors is not None:
            self.queries.vectors = full_precision(self.queries.vectors)
            self.dtype = self.queries.vectors.dtype

    def take(self, block: Any) -> None:
        search = self.search
        left = search.most - search.count  # negative: results are only counted
        found = self.source.above(self.queries, block, self.thresholds, left)
        if isinstance(found, Above):
            search.count += len(found.ids)
            self.dtype = found.scores.dtype
            self.pieces.append(Above(*(values.to(self.source.home) for values in found)))
        elif found is not None:
            search.count += found
        if search.count > search.most:
            self.pieces.clear()

    def whole(self) -> Above:
        """Join the pieces, and release them."""
        if len(self.pieces) == 1:
            return self.pieces.pop()
        return _merged([self], len(self.queries), by_rows=False)

    def join(self, shares: Any) -> None:
        if shares.total(self.search.count) > self.search.most:
            self.pieces.clear()
            return
        mine = self.whole()
        indptrs = shares.gather(mine.indptr)
        missing = max(int(indptr[-1]) for indptr in indptrs) - len(mine.ids)
        columns = (shares.gather(padded(values, (0, missing))) for values in mine[1:])
        pieces = [
            Above(indptr, ids[: indptr[-1]], scores[: indptr[-1]])
            for indptr, ids, scores in zip(indptrs, *columns, strict=True)
            if int(indptr[-1])
        ]
        self.pieces = sorted(pieces, key=lambda piece: int(piece.ids.min()))


class AboveSearch(Search):
    """Search for all answers above a threshold, ``count`` so far and ``most`` at most."""

    name = "above"
    result_bytes = 0  # results take no memory of the limit for reading a file

    def __init__(
        self,
        model: Any,
        asked: AskedQueries,
        allowed: Allowed,
        options: tuple[int | None, Any],
        threshold: Tensor | float,
        max_results: int,
    ) -> None:
        super().__init__(model, asked, allowed, *options)
        check_max_results(max_results)
        if isinstance(self.section.given, ListedIds):
            raise ValueError(
                "candidate_ids: above() takes the same candidates for all queries, or "
                "TypeConstraints; topk(k=..., pad=True) takes a list for each query"
            )
        self.thresholds = thresholds_of(threshold, len(self.anchors), CPU)
        self.most, self.count = max_results, 0

    @property
    def facts(self) -> dict[str, str]:
        limits = {"threshold": digest(self.thresholds), "max_results": str(self.most)}
        return super().facts | limits

    def start(self, section: JobSection, source: CandidateSource, queries: Queries) -> AboveSoFar:
        return AboveSoFar(section, queries, source, self)

    def collected(self) -> Above:
        shares, results = self._shares, self.results
        total = self.count if shares is None else shares.total(self.count, of_all=True)
        if total > self.most:
            raise ValueError(
                f"max_results must be at least the number of results, {total:,}; got "
                f"{self.most:,} (a higher threshold finds fewer)"
            )
        if len(results) == 1 and (shares is None or shares.num_shares == 1):
            whole: Above = results[0].whole()
            return whole
        answers = _merged(results, len(self.anchors), by_rows=True)
        return answers if shares is None else _filled_in(answers, shares)


def _merged(results: list[AboveSoFar], count: int, *, by_rows: bool) -> Above:
    """Join and release the pieces of results, of queries in the order of the call or of a pass."""
    home = results[0].source.home
    is_double = any(result.dtype == torch.float64 for result in results)
    pieces = []
    for result in results:
        rows = result.queries.rows.to(home)
        rows = rows if by_rows else torch.arange(len(rows), dtype=torch.int64, device=home)
        pieces += [(rows, piece) for piece in result.pieces]
        result.pieces.clear()
    dtype = torch.float64 if is_double else torch.float32
    return merged(pieces, count, torch.empty(0, dtype=dtype, device=home))


def _filled_in(mine: Above, shares: Any) -> Above:
    if shares.num_shares == 1:
        return mine
    counts = mine.indptr.diff()
    indptr = padded(shares.filled_in(counts.clone()).cumsum(0), (1, 0))
    at = torch.repeat_interleave(indptr[:-1] - mine.indptr[:-1], counts)
    at += torch.arange(len(at), dtype=torch.int64, device=CPU)
    whole = []
    for values in (mine.ids, mine.scores.double()):
        room = values.new_zeros(int(indptr[-1]))
        room[at] = values
        whole.append(shares.filled_in(room))
    return Above(indptr, whole[0], whole[1].to(mine.scores.dtype))


def best_first(scores: Tensor, ids: Tensor) -> Tensor:
    """Return places from best to worst: numbers, NaN, none; equal scores keep their order."""
    kind = torch.where(ids < 0, 2, scores.isnan().long())
    by_score = scores.nan_to_num(0.0, torch.inf, -torch.inf).argsort(
        dim=1, descending=True, stable=True
    )
    return by_score.gather(1, kind.gather(1, by_score).argsort(dim=1, stable=True))


def _queries_of(model: Any, asked: AskedQueries, names: Names) -> tuple[Side, str, Tensor, Tensor]:
    """Return the predicted side, the name of anchors, and anchors and others, ``[B]`` each."""
    heads, relations, tails, _ = asked
    if (heads is None) + (relations is None) + (tails is None) != 1:
        raise ValueError("two of heads, relations and tails must be given; the third is predicted")
    side: Side = "head" if heads is None else "tail"
    name, values = ("tails", tails) if heads is None else ("heads", heads)
    anchors = checked_ids_of(name, values, model.num_entities, names[0]).reshape(-1)
    if relations is None:
        side, other = "relation", "tails"
        others = checked_ids_of(other, tails, model.num_entities, names[0])
    else:
        other = "relations"
        others = checked_ids_of(other, relations, model.num_relations, names[1])
    others = others.reshape(-1).to(anchors.device)
    sizes = anchors.numel(), others.numel()
    if sizes[0] != sizes[1]:  # a single id goes with all others
        if 1 not in sizes:
            raise ValueError(
                f"{name} and {other} must have one length; got {sizes[0]} and {sizes[1]}"
            )
        anchors, others = torch.broadcast_tensors(anchors, others)
    return side, name, anchors, others
