"""The best answers of topk() where entities are a table in files.

Blocks give their best with float64 scores, which canonical scores are, so that what is kept of two
blocks is ordered as one sweep orders it; the scores that are returned are rounded once, at the end.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast.eval.asked import check_finite_queries, query_in_words
from kgfast.eval.blocks import best_first
from kgfast.eval.candidate_ids import Given, ListedCandidates, checked_candidates, runs_of
from kgfast.eval.partial import Partial
from kgfast.eval.passes import (
    Ask,
    Cut,
    among,
    fingerprint_of,
    keeping,
    mean_answers,
    pieces_of,
    sweep,
)
from kgfast.eval.queries import CPU
from kgfast.eval.streaming import Pool
from kgfast.graph import KnownTriples, TypeConstraints
from kgfast.kernels.operands import Known, Lists, Operands
from kgfast.models.base import Side
from kgfast.ops import run
from kgfast.ops.differentiable import full_precision
from kgfast.tables import Rows
from kgfast.tables.prefetch import Block


@dataclass(frozen=True)
class Search:
    """What is asked of one call.

    Attributes
    ----------
    model : Model
    table : Rows
        Its entities.
    side : {"head", "tail"}
    name : str
        Of the argument that anchors are, for errors.
    anchors, relations : Tensor
        int64 ``[B]``, on the host.
    k : int
    known : KnownTriples or None
    given : Given
        The candidates: all, some, or those of each relation.
    crop : pair of int or None
        Of the model, and of the operator.
    """

    model: Any
    table: Rows
    side: Side
    name: str
    anchors: Tensor
    relations: Tensor
    k: int
    known: KnownTriples | None
    given: Given
    crop: tuple[int | None, int | None]

    def query_in_words(self, row: Any) -> str:
        """A query, as messages call it."""
        row = int(row)
        return query_in_words(self.side, self.name, row, self.anchors[row], self.relations[row])

    def pool(self) -> Pool:
        """The candidates, of the rows that are read."""
        dim, width = self.crop
        dims = None if width is None else (width,)
        return Pool(self.model, self.table, self.side, dim, dims)


class _Best(Ask):
    """Queries that share their candidates, with their best answers so far."""

    def __init__(self, search: Search, pool: Pool, rows: Tensor, ids: Tensor | None) -> None:
        self.search, self.rows, self.k = search, rows, search.k
        super().__init__(pool, search.anchors[rows], search.relations[rows], search.known, ids)
        queries = full_precision(self.queries)
        self.dtype, self.queries = queries.dtype, queries.double()
        shape = (len(rows), search.k)
        self.scores = torch.full(shape, -torch.inf, dtype=torch.float64, device=CPU)
        self.best = torch.full(shape, -1, dtype=torch.int64, device=CPU)
        self.state = [self.scores, self.best]

    def add(self, block: Block, operands: Operands, known: Known) -> None:
        """Keep the best of what was kept and of a block."""
        scores, ids = _one_crop(run.topk(operands, self.k, known, self.checks()))
        self._keep(scores, torch.where(ids < 0, ids, ids + block.start))

    def add_lists(self, lists: Lists, cut: Cut, advance: Any) -> None:
        """Keep the best of the candidates that each query names, in the order of the table."""
        device, done = self.pool.device, 0
        for ids, part in pieces_of(lists, cut.block_rows):
            with self.named(ids.__getitem__):
                operands = self.operands(self.pool.of(ids))
                known = self.here(among(self.known, ids))
                part = Lists(*(it.to(device) for it in part))
                found = run.topk(operands, self.k, known, self.checks(), part)
            scores, best = _one_crop(found)
            if not len(ids):
                continue
            self._keep(scores, torch.where(best < 0, best, ids[best.clamp(min=0)]))
            advance(int(ids[-1]) + 1 - done, len(self))
            done = int(ids[-1]) + 1
        advance(len(self.search.table) - done, 0)

    def _keep(self, scores: Tensor, ids: Tensor) -> None:
        """The best of what was kept and of others."""
        scores, ids = torch.cat([self.scores, scores], 1), torch.cat([self.best, ids], 1)
        order = best_first(scores, ids)[:, : self.k]
        self.scores.copy_(scores.gather(1, order))
        self.best.copy_(ids.gather(1, order))

    def check_finite_queries(self) -> None:
        """Name the query."""
        check_finite_queries(self.queries, lambda row: self.search.query_in_words(self.rows[row]))


def _one_crop(found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Scores and ids ``[B, k]`` on the host, with or without an axis of one crop before."""
    scores, ids = (part.cpu() for part in found)
    return (scores, ids) if scores.ndim == 2 else (scores[0], ids[0])


def streamed_topk(search: Search, limit: int, partial: Any, advance: Any) -> tuple[Tensor, Tensor]:
    """Scores and ids of the best answers, ``[B, k]``; places without one hold id -1.

    Parameters
    ----------
    search : Search
    limit : int
        Bytes of memory.
    partial : path or None
        Where what was found is kept; see :class:`kgfast.eval.partial.Partial`.
    advance : callable
        Told of rows and the queries that they met.
    """
    pool, cut, found = search.pool(), cut_of(search, limit), []
    every = torch.arange(len(search.anchors), dtype=torch.int64, device=CPU)
    with keeping(partial, search.table, cut, lambda: _fingerprint(search)) as (folder, cut):
        for number, rows in enumerate(every.split(cut.per_pass)):
            kept = None if folder is None else (folder, number)
            found.append(best_of(search, pool, cut, rows, kept, advance))
    dtype = found[0].dtype
    return torch.cat([it.scores for it in found]).to(dtype), torch.cat([it.ids for it in found])


class Answers(NamedTuple):
    """The best answers of queries, ``[B, k]``, and the dtype that scores are rounded to."""

    scores: Tensor  # float64
    ids: Tensor
    dtype: torch.dtype


def best_of(
    search: Search,
    pool: Pool,
    cut: Cut,
    rows: Tensor,
    kept: tuple[Partial, int] | None,
    advance: Any,
) -> Answers:
    """Those of some of the queries, by one pass over the file."""
    parts = _parts(search, rows) if len(rows) else []
    asks = [_Best(search, pool, *part) for part in parts]
    scores = torch.empty((len(rows), search.k), dtype=torch.float64, device=CPU)
    ids = torch.empty(scores.shape, dtype=torch.int64, device=CPU)
    if asks:
        sweep(search.table, cut, asks, kept, advance)
    for ask in asks:
        scores[ask.rows - rows[0]], ids[ask.rows - rows[0]] = ask.scores, ask.best
    is_double = search.table.dtype == torch.float64
    dtype = asks[0].dtype if asks else torch.float64 if is_double else torch.float32
    return Answers(scores, ids, dtype)


def listed_topk(search: Search, limit: int, advance: Any) -> tuple[Tensor, Tensor]:
    """The same where each query has candidates of its own: only their rows are read."""
    given, pool, cut = search.given, search.pool(), cut_of(search, limit)
    assert isinstance(given, ListedCandidates)
    every = torch.arange(len(search.anchors), dtype=torch.int64, device=CPU)
    asks = []
    for rows in every.split(queries_at_once(search, cut)):
        first = int(rows[0]) if len(rows) else 0
        lists = given.lists(first, first + len(rows), len(search.table), CPU)
        asks.append(_Best(search, pool, rows, None))
        asks[-1].add_lists(lists, cut, advance)
    scores = torch.cat([ask.scores for ask in asks]).to(asks[0].dtype)
    return scores, torch.cat([ask.best for ask in asks])


def queries_at_once(search: Search, cut: Cut) -> int:
    """Queries that the rows of a table serve, each of which is read once for them."""
    given = search.given
    if isinstance(given, ListedCandidates):
        return min(cut.per_pass, given.batch_size(cut.pairs))
    return cut.per_pass


def cut_of(search: Search, limit: int) -> Cut:
    """How the table is read within a limit of memory."""
    answers = mean_answers(search.known, (search.anchors, search.relations), search.side)
    query_bytes = 4 * 8 * search.table.shape[1] + 6 * 16 * search.k + 32 * (answers + 1)
    return Cut.of(search.table, limit, 8 + 8 * int(search.model.dim), query_bytes)


def _parts(search: Search, rows: Tensor) -> list[tuple[Tensor, Tensor | None]]:
    """Queries that share their candidates, and these."""
    given = search.given
    assert not isinstance(given, ListedCandidates)
    if not isinstance(given, TypeConstraints):
        ids = None if given is None else checked_candidates(given, len(search.table))
        return [(rows, ids)]
    rows = rows[search.relations[rows].argsort(stable=True)]
    return [
        (rows[span], given.candidates(relation, search.side).cpu())
        for span, relation in runs_of(search.relations[rows])
    ]


def _fingerprint(search: Search) -> str:
    """Hash all but the table that the answers depend on."""
    checksum = None if search.known is None else search.known.checksum
    asked = search.side, search.k, search.crop, search.anchors, search.relations, checksum
    found = fingerprint_of("topk", search.model, search.table, *asked)
    every = torch.arange(len(search.anchors), dtype=torch.int64, device=CPU)
    pool = search.pool()
    found.add(*pool.constants())
    for rows, ids in _parts(search, every):
        found.add(rows, ids)
        found.add_each(pool.queries_in_parts(search.anchors[rows], search.relations[rows]))
    return found.text()
