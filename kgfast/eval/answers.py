"""The job of topk(): the best answers to queries; and what other searches share with it."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast.eval.candidates import (
    Allowed,
    ListedIds,
    candidates_of_sides,
    checked_ids_of,
    digest_of,
)
from kgfast.eval.job import Job, JobSection, SoFar, names_in_words
from kgfast.eval.preparation import check_known, check_names, checked_batch_size
from kgfast.eval.queries import CPU, Queries, moved
from kgfast.eval.sources import CandidateSource, Crops, crops_of
from kgfast.graph import IdsLike, TypeConstraints, VocabularyLike, names_of
from kgfast.graph.named import Names
from kgfast.models.base import Side
from kgfast.ops.differentiable import full_precision
from kgfast.ops.topk import check_k
from kgfast.storage import digest

_NUMBER, _NAN, _MISSING = 0, 1, 2  # numbers come before NaN, places without a candidate last


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
        self, model: Any, given: AskedQueries, allowed: Allowed, dims: int | None, batch_size: Any
    ) -> None:
        self.model, self.known, self.names = model, allowed.known, (None, None)
        if self.known is not None:
            check_known(self.known)
        if given.vocabulary is not None:
            self.names = names_of(given.vocabulary)
            check_names(self.names, model)
        side, self.argument, self.anchors, self.others = _queries_given(model, given, self.names)
        count = len(self.anchors)
        self.batch_size = checked_batch_size(batch_size, model, count)
        self.has_batch_size = batch_size is not None
        candidates = None
        if allowed.candidate_ids is not None:
            candidates = candidates_of_sides(
                allowed.candidate_ids, (side,), count, model, self.names
            )[side]
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

    def asked(self, device: torch.device) -> tuple[Tensor, Tensor, Side]:
        """Return anchors, others and the predicted side, for a result."""
        return self.anchors.to(device), self.others.to(device), self.section.side

    @property
    def facts(self) -> dict[str, str]:
        section = self.section
        return {
            "vocabularies": names_in_words(self.names),
            "queries": f"{len(self.anchors):,} {digest(section.side, self.anchors, self.others)}",
            "candidate_ids": digest_of(section.given),
            "the crop": str(section.crops),
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
        rows = torch.arange(len(self.anchors), dtype=torch.int64, device=CPU)
        if isinstance(section.given, TypeConstraints):
            rows = self.others.cpu().argsort(stable=True)
        return (self.some(section, rows, home),)

    def some(self, section: JobSection, rows: Tensor, home: torch.device) -> Queries:
        anchors, others = self.anchors, self.others
        if len(rows) < len(anchors) or isinstance(section.given, TypeConstraints):
            anchors, others = (ids[rows.to(ids.device)] for ids in (anchors, others))
        if home != anchors.device:
            anchors, others = moved(anchors, home), moved(others, home)
        return Queries(section.side, rows, anchors, others, self.words)

    def put(self, result: SoFar) -> None:
        self.results.append(result)

    def join(self, shares: Any) -> None:
        self._shares = shares if self.section.side != "relation" else None


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
        shape, home = (len(queries.rows), k), source.home
        room = shape
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
        return queries.lists is not None or self.k > candidates - known


class BestSearch(Search):
    """Search for the best ``k`` answers to each query; ``pad`` fills missing ones."""

    name = "topk"

    def __init__(
        self,
        model: Any,
        given: AskedQueries,
        allowed: Allowed,
        dims: int | None,
        batch_size: Any,
        k: int,
        pad: bool = False,
    ) -> None:
        super().__init__(model, given, allowed, dims, batch_size)
        self.k, self.pad = k, pad

    @property
    def facts(self) -> dict[str, str]:
        return super().facts | {"k": str(self.k), "pad": str(bool(self.pad))}

    @property
    def result_bytes(self) -> int:
        return 6 * 16 * self.k

    def begin(self, source: CandidateSource) -> None:
        is_shared = not isinstance(self.section.given, ListedIds | TypeConstraints)
        has_bound = len(self.anchors) and not self.pad and is_shared
        check_k(self.k, source.num_candidates if has_bound else None)

    def start(self, section: JobSection, source: CandidateSource, queries: Queries) -> BestSoFar:
        return BestSoFar(section, queries, source, self.k)

    def collected(self) -> tuple[Tensor, Tensor]:
        """Return scores and ids of all queries, ``[B, k]``."""
        results = self.results
        scores, ids = results[0].scores, results[0].ids
        is_double = results[0].dtype == torch.float64
        if len(results) > 1:
            scores = torch.cat([it.scores for it in results])
            ids = torch.cat([it.ids for it in results])
            is_double = any(it.dtype == torch.float64 for it in results)
        shares = self._shares
        if shares is not None or isinstance(self.section.given, TypeConstraints):
            scores, ids = (self._placed(values) for values in (scores, ids))
        # Without known answers and lists, k was compared with the number of candidates.
        has_all = self.known is None and results[0].source.is_whole
        is_shared = self.section.given is None or isinstance(self.section.given, Tensor)
        if not (self.pad or (has_all and is_shared)):
            for result in results:
                if not result.source.is_whole or result.may_lack:
                    self._check_full(ids)
                    break
        return scores.to(torch.float64 if is_double else torch.float32), ids

    def _placed(self, values: Tensor) -> Tensor:
        rows = torch.cat([it.queries.rows for it in self.results]).to(values.device)
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


def best_first(scores: Tensor, ids: Tensor) -> Tensor:
    """Return places from best to worst score; equal scores keep the given order."""
    kind = torch.where(scores.isnan(), _NAN, _NUMBER).where(ids >= 0, _MISSING)
    by_score = scores.nan_to_num(0.0, torch.inf, -torch.inf).argsort(
        dim=1, descending=True, stable=True
    )
    return by_score.gather(1, kind.gather(1, by_score).argsort(dim=1, stable=True))


def _queries_given(
    model: Any, given: AskedQueries, names: Names
) -> tuple[Side, str, Tensor, Tensor]:
    """Return the predicted side, the name of anchors, and anchors and others, ``[B]`` each."""
    heads, relations, tails, _ = given
    side: Side = "head" if heads is None else "tail"
    if relations is None:
        if heads is None or tails is None:
            raise ValueError(
                "two of heads, relations and tails must be given; the third is predicted"
            )
        side = "relation"
    elif (heads is None) == (tails is None):
        raise ValueError("exactly one of heads and tails must be given; the other is predicted")
    name, values = ("tails", tails) if heads is None else ("heads", heads)
    anchors = checked_ids_of(name, values, model.num_entities, names[0])
    if side == "relation":
        other = "tails"
        others = checked_ids_of(other, tails, model.num_entities, names[0])
    else:
        other = "relations"
        others = checked_ids_of(other, relations, model.num_relations, names[1])
    anchors, others = anchors.reshape(-1), others.to(anchors.device).reshape(-1)
    sizes = len(anchors), len(others)
    if sizes[0] != sizes[1]:  # a single id goes with all others
        if 1 not in sizes:
            raise ValueError(
                f"{name} and {other} must have one length; got {sizes[0]} and {sizes[1]}"
            )
        length = sizes[1] if sizes[0] == 1 else sizes[0]
        anchors, others = anchors.expand(length), others.expand(length)
    return side, name, anchors, others
