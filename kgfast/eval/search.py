"""The passes of topk(): which queries are answered together, and the answers of all of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.accumulators import BestSoFar
from kgfast.eval.asked import check_full, query_in_words
from kgfast.eval.candidate_ids import Given, ListedCandidates, checked_candidates
from kgfast.eval.exchange import NOBODY, Exchange
from kgfast.eval.excluded import Excluded, together
from kgfast.eval.one_pass import (
    Advance,
    Cut,
    KeptPass,
    add_queries,
    fingerprint_of,
    keeping,
    run_pass,
)
from kgfast.eval.partial import Partial
from kgfast.eval.queries import CPU, Queries, mean_answers, moved, shared
from kgfast.eval.sources import CandidateSource, Crops, Found, InRows
from kgfast.graph import KnownTriples, TypeConstraints
from kgfast.kernels.operands import Known
from kgfast.models.base import Side
from kgfast.ops.topk import check_k
from kgfast.tables import Rows


@dataclass(frozen=True)
class Search:
    """The checked arguments of one call.

    Attributes
    ----------
    model : Model
    side : {"head", "relation", "tail"}
    name : str
        Of the argument that anchors are, for errors.
    anchors, others : Tensor
        int64 ``[B]``.
    k : int
    known : KnownTriples or None
    given : Given
        The candidates: all, some, or those of each query or relation.
    crop : Crops
    batch_size : int
    excluded : Excluded or None
        More ids that are no answers.
    pad : bool
    """

    model: Any
    side: Side
    name: str
    anchors: Tensor
    others: Tensor
    k: int
    known: KnownTriples | None
    given: Given
    crop: Crops
    batch_size: int
    excluded: Excluded | None = None
    pad: bool = False

    def __len__(self) -> int:
        return len(self.anchors)

    def in_words(self, row: int) -> str:
        """Return a query as messages call it."""
        return query_in_words(self.side, self.name, row, self.anchors[row], self.others[row])

    def words(self, queries: Queries, place: int) -> str:
        """Name a query that is not finite."""
        return (
            f"{self.in_words(int(queries.rows[place]))}: the query holds a NaN or an infinity, "
            f"from the embeddings of its entity or relation or from what filters them"
        )

    def ordered(self, home: torch.device) -> Queries:
        """Return all queries on a device; those of one relation together if it has candidates."""
        rows = torch.arange(len(self), dtype=torch.int64, device=CPU)
        anchors, others = self.anchors, self.others
        if isinstance(self.given, TypeConstraints):
            rows = others.cpu().argsort(stable=True)
            anchors, others = (ids[rows.to(ids.device)] for ids in (anchors, others))
        return Queries(self.side, rows, moved(anchors, home), moved(others, home), self.words)

    def size(self, most: int, pairs: int | None = None) -> int:
        """Return how many queries are answered together, ``most`` at most."""
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
) -> Found:
    """Return scores and ids of the best answers to all queries, ``[B, k]``.

    Parameters
    ----------
    search : Search
    source : CandidateSource
    size : int
        Queries of a pass.
    exchange : Exchange
    kept : Partial, optional
        The folder that keeps what passes find.
    advance, done : callable, optional
        Told of rows and the queries that they met; and of queries.

    Raises
    ------
    ValueError
        If a query has fewer than k candidates, and is not padded.
    """
    is_shared = not isinstance(search.given, ListedCandidates | TypeConstraints)
    has_bound = len(search) and not search.pad and is_shared
    check_k(search.k, source.num_candidates if has_bound else None)
    queries = search.ordered(source.home)
    size = max(1, min(size, -(-len(search) // exchange.num_shares)))
    found: list[BestSoFar] = []
    may_lack = not source.is_whole
    for number, batch in enumerate(exchange.share_of(queries.batches(size))):
        batch.known = _known_of(search, batch, source)
        parts = [BestSoFar(own, source, search.k) for _, own in shared(batch, search.given, source)]
        folder = None if kept is None else KeptPass(kept, number, source.num_rows)
        for some in source.passes(parts):
            run_pass(some, exchange, folder, advance)
        found += parts
        may_lack = may_lack or any(map(_may_lack, parts))
        done(len(batch))
    scores, ids = _assembled(search, found, exchange)
    if may_lack and not search.pad:
        check_full(ids, search.in_words)
    is_double = any(part.dtype == torch.float64 for part in found)
    return scores.to(torch.float64 if is_double else torch.float32), ids


def answers_of_file(
    search: Search,
    table: Rows,
    limits: tuple[int, Any],
    bar: Callable[[int], AbstractContextManager[Advance]],
) -> Found:
    """Return the answers of a model whose entities are a table in files.

    ``limits``: bytes of memory, and the folder that keeps what was found; ``bar`` makes a progress
    bar of so many rows.
    """
    given, count = search.given, len(table)
    ids = checked_candidates(given, count) if isinstance(given, Tensor) else None

    def source_of(cut: Cut) -> InRows:
        return InRows(search.model, search.side, search.crop, cut.reader(table), ids)

    def fingerprint() -> str:
        checksum = None if search.known is None else search.known.checksum
        asked = search.side, search.k, search.crop, search.anchors, search.others, ids, checksum
        found = fingerprint_of("topk", search.model, table, *asked)
        source = source_of(cut)
        found.add(*source.constants())
        for _, own in shared(search.ordered(CPU), given, source):
            found.add(own.rows, own.ids, own.lists)
            add_queries(found, source, own.anchors, own.others)
        return found.text()

    mean = mean_answers(search.known, (search.anchors, search.others), search.side)
    query_bytes = 4 * 8 * table.shape[1] + 6 * 16 * search.k + 32 * (mean + 1)
    cut = Cut.of(table, limits[0], int(search.model.dim), query_bytes)
    folder = None if isinstance(given, ListedCandidates) else limits[1]  # few rows are read
    with keeping(folder, table, cut, fingerprint) as (kept, cut):
        size = search.size(cut.per_pass, cut.pairs)
        with bar(-(-len(search) // size) * count) as advance:
            return answers(search, source_of(cut), size, kept=kept, advance=advance)


def _known_of(search: Search, queries: Queries, source: CandidateSource) -> Known | None:
    """Return the ids that are no answers to some queries."""
    known = None
    if search.known is not None:
        asked = queries.anchors, queries.others, search.side
        known = Known(*search.known.exclude(*asked, within=source.span))
    if search.excluded is not None:
        known = together(known, search.excluded.of(queries.rows, source.home))
    return known


def _may_lack(part: BestSoFar) -> bool:
    """Return whether a query of a part may have fewer than k answers."""
    queries, source = part.queries, part.source
    candidates = source.num_candidates if queries.ids is None else len(queries.ids)
    known = 0 if queries.known is None else len(queries.known.indices)
    return queries.lists is not None or part.k > candidates - known


def _assembled(search: Search, parts: list[BestSoFar], exchange: Exchange) -> Found:
    """Return scores and ids of all queries, in the order of the call."""
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
