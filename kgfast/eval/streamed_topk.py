"""The best answers of topk() where entities are a table in files.

Blocks give their best with float64 scores, which canonical scores are, so that what is kept of two
blocks is ordered as one sweep orders it; the scores that are returned are rounded once, at the end.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.blocks import best_first
from kgfast.eval.candidate_ids import Given, ListedCandidates, runs_of
from kgfast.eval.partial import Fingerprint, Partial
from kgfast.eval.streaming import (
    Cut,
    Pool,
    among,
    checked_candidates,
    few_rows,
    has_any,
    in_block,
    local_model,
    only_in_block,
    raise_named,
    sample_of,
    state_of,
    swept,
)
from kgfast.graph import KnownTriples, TypeConstraints
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.operands import Known, Lists, Operands
from kgfast.models.base import Side, queries_at
from kgfast.ops import run
from kgfast.ops.checks import check_queries
from kgfast.ops.differentiable import full_precision
from kgfast.tables import Rows
from kgfast.tables.prefetch import Block

_LISTED = 1 << 12  # queries with candidates of their own that are answered at once
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Search:
    """What is asked of one call.

    Attributes
    ----------
    model : Model
    table : Rows
        Its entities.
    side : {"head", "tail"}
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
    anchors: Tensor
    relations: Tensor
    k: int
    known: KnownTriples | None
    given: Given
    crop: tuple[int | None, int | None]


class _Ask:
    """Queries that share their candidates, and their best answers so far."""

    def __init__(self, search: Search, pool: Pool, rows: Tensor, ids: Tensor | None) -> None:
        self.rows, self.ids, self.k, self.pool = rows, ids, search.k, pool
        anchors, relations = search.anchors[rows], search.relations[rows]
        local = local_model(search.model, search.table, anchors)
        queries = full_precision(queries_at(local, anchors, relations, search.side, pool.dim))
        self.dtype, self.queries = queries.dtype, queries.double()
        self.known: Known | None = None
        if search.known is not None:
            where = search.known.device
            found = search.known.exclude(anchors.to(where), relations.to(where), search.side)
            self.known = Known(*(part.cpu() for part in found))
        shape = (len(rows), search.k)
        self.scores = torch.full(shape, -torch.inf, dtype=torch.float64, device=_CPU)
        self.best = torch.full(shape, -1, dtype=torch.int64, device=_CPU)

    def take(self, block: Block) -> None:
        """Keep the best of what was kept and of a block."""
        whole = self.pool.at(block, self.best[:0, 0], allows_nan=False)
        prepared = only_in_block(whole, self.ids, block)
        if prepared is None:
            return
        check_queries(self.queries, prepared)
        dims = None if self.pool.dims is None else tuple(self.pool.dims)
        known = None if self.known is None else in_block(self.known, block)
        operands = Operands(self.queries, prepared, dims)
        scores, ids = run.topk(operands, self.k, known, run.checks_for(_CPU))
        if dims is not None:
            scores, ids = scores[0], ids[0]
        ids = torch.where(ids < 0, ids, ids + block.start)
        scores, ids = torch.cat([self.scores, scores], 1), torch.cat([self.best, ids], 1)
        order = best_first(scores, ids)[:, : self.k]
        self.scores.copy_(scores.gather(1, order))
        self.best.copy_(ids.gather(1, order))

    def check_queries(self, search: Search, name: str) -> None:
        """Name the query that is not finite."""
        bad = (~self.queries.isfinite().all(1)).nonzero()
        if len(bad):
            row = int(self.rows[int(bad[0])])
            raise ValueError(
                f"{name}[{row}] = {int(search.anchors[row])} with relation "
                f"{int(search.relations[row])}: the query holds a NaN or an infinity, from the "
                f"embeddings of its entity or relation or from what filters them"
            )


def streamed_topk(
    search: Search, name: str, limit: int, partial: Any, advance: Any
) -> tuple[Tensor, Tensor]:
    """Scores and ids of the best answers, ``[B, k]``; places without one hold id -1.

    Parameters
    ----------
    search : Search
    name : str
        Of the argument that anchors are, for errors.
    limit : int
        Bytes of memory.
    partial : path or None
        Where what was found is kept; see :class:`kgfast.eval.partial.Partial`.
    advance : callable
        Told of rows and the queries that they met.
    """
    pool = Pool(search.model, search.side, search.crop[0], _dims(search))
    cut = cut_of(search, limit)
    kept = None
    if partial is not None:
        kept = Partial(partial, _fingerprint(search), cut.per_pass)
        cut = replace(cut, per_pass=kept.per_pass)
    every = torch.arange(len(search.anchors), dtype=torch.int64, device=_CPU)
    scores = torch.empty((len(every), search.k), dtype=torch.float64, device=_CPU)
    ids = torch.empty(scores.shape, dtype=torch.int64, device=_CPU)
    dtype = torch.float64 if search.table.dtype == torch.float64 else torch.float32
    for number, rows in enumerate(every.split(cut.per_pass) if len(every) else []):
        asks = [_Ask(search, pool, *part) for part in _parts(search, rows)]
        _sweep(search, asks, cut, (kept, number, name), advance)
        for ask in asks:
            scores[ask.rows], ids[ask.rows] = ask.scores, ask.best
            dtype = ask.dtype
    return scores.to(dtype), ids


def listed_topk(search: Search, name: str) -> tuple[Tensor, Tensor]:
    """The same where each query has candidates of its own: no pass over the file."""
    given = search.given
    assert isinstance(given, ListedCandidates)
    pool = Pool(search.model, search.side, search.crop[0], _dims(search))
    every = torch.arange(len(search.anchors), dtype=torch.int64, device=_CPU)
    parts = []
    for rows in every.split(min(_LISTED, given.batch_size)):
        first = int(rows[0]) if len(rows) else 0
        lists = given.lists(first, first + len(rows), len(search.table), _CPU)
        ask, ids = _Ask(search, pool, rows, None), lists.indices.unique()
        block, prepared = few_rows(pool, search.table, ids, allows_nan=False)
        check_queries(ask.queries, prepared)
        operands = Operands(ask.queries, prepared, _dims(search))
        own = Lists(lists.indptr, torch.searchsorted(ids, lists.indices))
        known = None if ask.known is None else among(ask.known, ids)
        try:
            scores, best = run.topk(operands, search.k, known, run.checks_for(_CPU), own)
        except NonFiniteError as error:
            ask.check_queries(search, name)
            raise_named(error, search.table, block, ids)
            raise
        if operands.dims is not None:
            scores, best = scores[0], best[0]
        found = best if not len(ids) else torch.where(best < 0, best, ids[best.clamp(min=0)])
        parts.append((scores.to(ask.dtype), found))
    scores, best = (torch.cat(column) for column in zip(*parts, strict=True))
    return scores, best


def cut_of(search: Search, limit: int) -> Cut:
    """How the table is read within a limit of memory."""
    width, answers = search.table.shape[1], 0.0
    if search.known is not None and len(search.anchors):
        where = search.known.device
        asked = search.anchors.to(where), search.relations.to(where)
        answers = float(search.known.counts(*asked, search.side).double().mean())
    query_bytes = 4 * 8 * width + 6 * 16 * search.k + 32 * (int(answers) + 1)
    return Cut.of(search.table, limit, 8 + 8 * int(search.model.dim), query_bytes)


def _sweep(
    search: Search,
    asks: list[_Ask],
    cut: Cut,
    keeping: tuple[Partial | None, int, str],
    advance: Any,
) -> None:
    """One pass over the file."""
    kept, number, name = keeping
    table, count, done = search.table, len(search.table), 0
    state = [part for ask in asks for part in (ask.scores, ask.best)]
    if kept is not None:
        done = kept.load(number, state)
        advance(done, 0)
    none = torch.empty(0, dtype=torch.int64, device=_CPU)

    def needed(first: int, last: int) -> bool:
        return any(has_any(ask.ids, first, last) for ask in asks)

    with swept(table, cut, done, none, needed) as blocks:
        for block in blocks:
            for ask in asks:
                try:
                    ask.take(block)
                except NonFiniteError as error:
                    ask.check_queries(search, name)
                    raise_named(error, table, block, none)
                    raise
            advance(block.stop - done, len(search.anchors))
            done = block.stop
            if kept is not None and cut.is_end(done, block.start, count):
                kept.save(number, state, done)
    if kept is not None and done < count:
        kept.save(number, state, count)
    advance(count - done, 0)


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


def _dims(search: Search) -> tuple[int] | None:
    return None if search.crop[1] is None else (search.crop[1],)


def _fingerprint(search: Search) -> str:
    """Of everything that the answers depend on."""
    found = Fingerprint()
    model, table = search.model, search.table
    found.add("topk", type(model).__name__, model.score, table.shape, table.dtype, table.facts)
    found.add(search.side, search.k, search.crop, search.anchors, search.relations)
    found.add(sample_of(table), *state_of(model))
    every = torch.arange(len(search.anchors), dtype=torch.int64, device=_CPU)
    pool = Pool(model, search.side, search.crop[0], _dims(search))
    for rows, ids in _parts(search, every):
        found.add(rows, ids)
        for part in rows.split(1 << 12):
            ask = _Ask(search, pool, part, ids)
            found.add(ask.queries, *(ask.known or ()))
    return found.text()
