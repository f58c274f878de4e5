"""The passes of topk(): queries that are answered together, and all answers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast.eval.accumulators import BestSoFar
from kgfast.eval.batches import check_known, check_names, checked_batch_size
from kgfast.eval.candidate_ids import (
    Allowed,
    Given,
    ListedCandidates,
    candidates_of_sides,
    checked_candidates,
    checked_ids_of,
)
from kgfast.eval.exchange import NOBODY, Exchange
from kgfast.eval.excluded import excluded_of, together
from kgfast.eval.one_pass import Advance, Cut, FileCall, add_queries, run_pass
from kgfast.eval.partial import Partial
from kgfast.eval.predictions import Predictions
from kgfast.eval.queries import CPU, Queries, mean_answers, moved, shared
from kgfast.eval.sources import CandidateSource, Found, InRows, crops_of
from kgfast.graph import IdsLike, TypeConstraints, VocabularyLike, names_of
from kgfast.graph.named import Names
from kgfast.kernels.operands import Known
from kgfast.models.base import Side
from kgfast.ops.topk import check_k
from kgfast.storage import Fingerprint

_SAMPLE = 64  # queries in a fingerprint of a call with candidates in memory


class AskedQueries(NamedTuple):
    """Queries as arguments of :func:`kgfast.topk`: ids, or names of a vocabulary."""

    heads: IdsLike | None
    relations: IdsLike | None
    tails: IdsLike | None
    vocabulary: VocabularyLike | None


class Search:
    """Checked arguments of one prediction.

    ``anchors`` and ``others`` are int64 ``[B]``, and ``name`` is the argument that gave the
    anchors.
    """

    def __init__(
        self,
        model: Any,
        asked: AskedQueries,
        k: int,
        allowed: Allowed,
        dims: int | None,
        batch_size: Any,
        pad: bool,
    ) -> None:
        known, candidate_ids, exclude = allowed
        check_known(known)
        names = names_of(asked.vocabulary)
        check_names(names, model)
        self.model, self.k, self.known, self.pad, self.names = model, k, known, pad, names
        self.side, self.name, self.anchors, self.others = _asked_for(model, asked, names)
        self.batch_size = checked_batch_size(batch_size, model)
        self.excluded = excluded_of(exclude, self.side, self.anchors, model, names)
        given = candidates_of_sides(candidate_ids, (self.side,), len(self.anchors), model, names)
        self.given: Given = given[self.side]
        self.crop = crops_of(model, [dims])

    @property
    def facts(self) -> dict[str, str]:
        """Number of answers, and the padding of missing answers, in words."""
        return {"k": str(self.k), "pad": str(bool(self.pad))}

    @property
    def answer_bytes(self) -> int:
        """Memory of the answers to a query while a file is read."""
        return 6 * 16 * self.k

    @property
    def ids(self) -> Tensor | None:
        """Return the candidates that all queries share; None for all rows and for lists."""
        return self.given if isinstance(self.given, Tensor) else None

    def __len__(self) -> int:
        return len(self.anchors)

    def in_words(self, row: int) -> str:
        """Return a query in words, for messages."""
        what = "tail" if self.side == "relation" else "relation"
        anchor, other = int(self.anchors[row]), int(self.others[row])
        return f"{self.name}[{row}] = {anchor} with {what} {other}"

    def words(self, queries: Queries, place: int) -> str:
        """Name a query that is not finite."""
        return (
            f"{self.in_words(int(queries.rows[place]))}: the query holds a NaN or an infinity, "
            "from the embeddings of the entity or relation or from the filters on them"
        )

    def ordered(self, home: torch.device) -> Queries:
        """Return all queries on a device; in order of relations if each relation has candidates."""
        rows = torch.arange(len(self), dtype=torch.int64, device=CPU)
        anchors, others = self.anchors, self.others
        if isinstance(self.given, TypeConstraints):
            rows = others.cpu().argsort(stable=True)
            anchors, others = (ids[rows.to(ids.device)] for ids in (anchors, others))
        return Queries(self.side, rows, moved(anchors, home), moved(others, home), self.words)

    def predictions(self, *found: Tensor) -> Any:
        """Return the result, :class:`Predictions`, on the device of the scores and ids."""
        scores, ids = found
        anchors, others = self.anchors.to(ids.device), self.others.to(ids.device)
        return Predictions(scores, ids, anchors, others, self.side, vocabulary=self.names)

    def check_size(self, source: CandidateSource) -> None:
        """Check k against the number of candidates, where that is a bound."""
        is_shared = not isinstance(self.given, ListedCandidates | TypeConstraints)
        has_bound = len(self) and not self.pad and is_shared
        check_k(self.k, source.num_candidates if has_bound else None)

    def accumulator(self, queries: Queries, source: CandidateSource) -> Any:
        """Return the accumulator of the answers to some queries."""
        return BestSoFar(queries, source, self.k)

    def collected(self, parts: list[Any], source: CandidateSource, exchange: Exchange) -> Any:
        """Return scores and ids of all queries, ``[B, k]``."""
        scores, ids = _assembled(self, parts, exchange)
        if not self.pad and (not source.is_whole or any(map(_may_lack, parts))):
            _check_full(ids, self.in_words)
        is_double = any(part.dtype == torch.float64 for part in parts)
        return scores.to(torch.float64 if is_double else torch.float32), ids

    def size(self, most: int, pairs: int | None = None) -> int:
        """Return the number of queries of a pass, at most ``most``."""
        if isinstance(self.given, ListedCandidates):
            most = min(most, self.given.batch_size(*(() if pairs is None else (pairs,))))
        return most if self.excluded is None else min(most, self.excluded.batch_size())


def answers(
    search: Search,
    source: CandidateSource,
    size: int,
    exchange: Exchange = NOBODY,
    *,
    kept: Partial | None = None,
    advance: Advance | None = None,
    done: Callable[[int], None] = lambda count: None,
) -> Any:
    """Return the answers to all queries, as the search collects them.

    ``size`` is the number of queries per pass. ``advance`` is called with rows and queries,
    ``done`` with queries.
    """
    search.check_size(source)
    queries = search.ordered(source.home)
    size = max(1, min(size, -(-len(search) // exchange.num_shares)))
    found: list[Any] = []
    for batch in exchange.share_of(queries.batches(size)):
        batch.known = _known_of(search, batch, source)
        parts = [search.accumulator(own, source) for _, own in shared(batch, search.given, source)]
        for some in source.passes(parts):
            run_pass(some, exchange, kept, advance)
        for part in parts:
            part.queries.vectors = None  # the vectors are not read any more
        found += parts
        done(len(batch))
    return search.collected(found, source, exchange)


def asked_in_memory(search: Search, source: CandidateSource) -> Iterator[Any]:
    """Yield everything that answers depend on besides the model's tensors, for a fingerprint."""
    yield from ("topk", search.side, search.k, search.crop, search.anchors, search.others)
    yield None if search.known is None else search.known.checksum
    yield from () if search.excluded is None else (search.excluded.ids, search.excluded.indptr)
    queries = search.ordered(source.home)
    few = queries[:: max(1, len(search) // _SAMPLE)]
    source.prepare(few)
    yield few.vectors
    for batch in queries.batches(max(1, search.size(len(search)))):
        for _, own in shared(batch, search.given, source):
            yield from (own.rows, source.ids_of(own), *(own.lists or ()))


def answers_of_file(search: Search, call: FileCall) -> Any:
    """Return the answers of a model with a table in files."""
    count = len(call.table)
    ids = None if search.ids is None else checked_candidates(search.ids, count)

    def source_of(cut: Cut) -> InRows:
        return InRows(search.model, search.side, search.crop, cut.reader, ids)

    def fingerprint(cut: Cut) -> Fingerprint:
        checksum = None if search.known is None else search.known.checksum
        asked = search.side, search.k, search.crop, search.anchors, search.others, ids, checksum
        found, source = call.fingerprint("topk", cut.reader, *asked), source_of(cut)
        found.add(*source.constants())
        if search.excluded is not None:
            found.add(search.excluded.ids, search.excluded.indptr)
        for _, own in shared(search.ordered(CPU), search.given, source):
            found.add(own.rows, own.ids, own.lists)
            add_queries(found, source, own.anchors, own.others)
        return found

    if isinstance(search.given, ListedCandidates):  # only few rows are read
        call = replace(call, folder=None)
    mean = mean_answers(search.known, (search.anchors, search.others), search.side)
    query_bytes = 4 * 8 * call.table.shape[1] + search.answer_bytes + 32 * (mean + 1)
    with call.opened(query_bytes, fingerprint) as (cut, kept):
        size = search.size(cut.per_pass, cut.pairs)
        with call.bar(-(-len(search) // size) * count) as advance:
            return answers(search, source_of(cut), size, kept=kept, advance=advance)


def _known_of(search: Search, queries: Queries, source: CandidateSource) -> Known | None:
    known = None
    if search.known is not None:
        asked = queries.anchors, queries.others, search.side
        known = Known(*search.known.exclude(*asked, within=source.span))
    if search.excluded is not None:
        known = together(known, search.excluded.of(queries.rows, source.home))
    return known


def _may_lack(part: BestSoFar) -> bool:
    """Return True if a query of a part may have fewer than k answers."""
    queries, source = part.queries, part.source
    candidates = source.num_candidates if queries.ids is None else len(queries.ids)
    known = 0 if queries.known is None else len(queries.known.indices)
    return queries.lists is not None or part.k > candidates - known


def _assembled(search: Search, parts: list[BestSoFar], exchange: Exchange) -> Found:
    scores, ids = parts[0].scores, parts[0].ids
    if len(parts) > 1:
        scores, ids = (torch.cat([getattr(it, name) for it in parts]) for name in ("scores", "ids"))
    if exchange.num_shares == 1 and not isinstance(search.given, TypeConstraints):
        return scores, ids
    rows = torch.cat([part.queries.rows for part in parts]).to(ids.device)
    whole = []
    for values in (scores, ids):
        room = torch.zeros((len(search), search.k), dtype=values.dtype, device=values.device)
        room[rows] = values
        exchange.fill_in(room)
        whole.append(room)
    return whole[0], whole[1]


def _asked_for(model: Any, asked: AskedQueries, names: Names) -> tuple[Side, str, Tensor, Tensor]:
    """Return the predicted side, the name of anchors, and anchors and others, ``[B]`` each."""
    heads, relations, tails, _ = asked
    side = _predicted(heads, relations, tails)
    name = "tails" if heads is None else "heads"
    entities = checked_ids_of(name, tails if heads is None else heads, model.num_entities, names[0])
    if side == "relation":
        other, count, own = "tails", model.num_entities, names[0]
    else:
        other, count, own = "relations", model.num_relations, names[1]
    others = checked_ids_of(other, tails if side == "relation" else relations, count, own)
    return side, name, *_broadcast(name, entities, others, other)


def _predicted(heads: Any, relations: Any, tails: Any) -> Side:
    """Return the side that is not given."""
    if relations is None:
        if heads is None or tails is None:
            raise ValueError(
                "two of heads, relations and tails must be given; the third is predicted"
            )
        return "relation"
    if (heads is None) == (tails is None):
        raise ValueError("exactly one of heads and tails must be given; the other is predicted")
    return "head" if heads is None else "tail"


def _broadcast(name: str, anchors: Tensor, relations: Tensor, other: str) -> tuple[Tensor, Tensor]:
    """Return ids of one length; a single id goes with all others."""
    anchors, relations = anchors.reshape(-1), relations.to(anchors.device).reshape(-1)
    sizes = len(anchors), len(relations)
    if sizes[0] != sizes[1] and 1 not in sizes:
        raise ValueError(f"{name} and {other} must have one length; got {sizes[0]} and {sizes[1]}")
    length = sizes[1] if sizes[0] == 1 else sizes[0]
    return anchors.expand(length), relations.expand(length)


def _check_full(ids: Tensor, query: Callable[[int], str]) -> None:
    """Check that every query has k answers; ``query`` names a row of ``ids [B, k]``."""
    short = (ids[:, -1] < 0).nonzero()
    if len(short):
        row = int(short[0])
        raise ValueError(
            f"k must be at most the number of candidates of each query: {query(row)} has "
            f"{int((ids[row] >= 0).sum())}, k is {ids.shape[1]} (pad=True fills the rest with id "
            "-1)"
        )
