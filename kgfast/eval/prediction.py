"""topk(): the best answers to queries."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.asked import asked_for, check_finite_queries, check_full, query_in_words
from kgfast.eval.batches import (
    check_known,
    check_names,
    check_rankable,
    checked_batch_size,
    evaluating,
    prepared_candidates,
)
from kgfast.eval.blocks import BlockPool, Queries
from kgfast.eval.candidate_ids import (
    Given,
    ListedCandidates,
    candidates_of_sides,
    runs_of,
)
from kgfast.eval.excluded import Excluded, excluded_of, together
from kgfast.eval.host import host_model
from kgfast.eval.index import Index, check_index, panels_of
from kgfast.eval.predictions import Predictions
from kgfast.eval.rows import check_limits, entity_table, local_model
from kgfast.eval.streamed_topk import (
    Search,
    cut_of,
    listed_topk,
    queries_at_once,
    streamed_topk,
)
from kgfast.graph import KnownTriples, TypeConstraints, names_of
from kgfast.graph.memory import memory_limit
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.operands import Known, Lists, Operands, Prepared
from kgfast.models.base import Side, candidates_at, operator_width
from kgfast.models.evaluated import evaluated_queries
from kgfast.models.relations import blocks_at
from kgfast.ops import run
from kgfast.ops.checks import check_queries
from kgfast.ops.differentiable import full_precision
from kgfast.ops.topk import check_k
from kgfast.ops.unchecked import refuse_unchecked
from kgfast.progress import progress_bar, sweep_bar


def topk(
    model: Any,
    *,
    heads: Any = None,
    tails: Any = None,
    relations: Any = None,
    k: int,
    known: KnownTriples | None = None,
    exclude: Any = None,
    candidate_ids: Any = None,
    dims: int | None = None,
    pad: bool = False,
    vocabulary: Any = None,
    batch_size: int | None = None,
    max_memory: int | str | None = None,
    partial: Any = None,
    index: Index | None = None,
    progress: bool = False,
) -> Predictions:
    """Find the ``k`` best tails of (head, relation, ?), exactly, or heads, or relations.

    Scores of all entities are never stored, so memory stays below 64 MiB beyond the model's tables
    and the result. Equal scores are ordered by the lowest id, on every backend and device.

    Parameters
    ----------
    model : Model
        As :func:`kgfast.rank` takes it. Evaluated under ``no_grad`` in eval mode, which is
        restored.
    heads, relations, tails : int, sequence of int or Tensor, or names
        Exactly two of them: what is not given is predicted. Of the same length; one id or name,
        alone or in a list, goes with all of the other.
    k : int
        How many answers, at most the number of candidates.
    known : KnownTriples, optional
        Triples whose answers are left out, so that what is predicted is new.
    exclude : sequence of int or names, (indptr, ids), or "anchor", optional
        More ids that are no answers, beside those of ``known``: ``[M]`` for all queries; CSR, int64
        ``[B + 1]`` and ``[nnz]``, those of each query; or the entity that each query gives. Ids may
        repeat, and need not be candidates. Not of models whose entities are in files.
    candidate_ids : tensor or sequence of int, TypeConstraints, or those of each query, optional
        Unique ids, or names, of entities, or of relations where these are predicted: answer with
        these only, which saves the work of the others. Or those of each query or relation, as
        :func:`kgfast.rank` takes them.
    dims : int, optional
        Crop width: answers of a sub-model of croppable embeddings.
    pad : bool
        Give queries with fewer than ``k`` candidates the id -1 in the places that are left, instead
        of an error.
    vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
        The names of the model's rows: for queries by name, and for answers that show them.
    batch_size : int, optional
        Queries a batch. The default keeps a batch of queries within 8 MiB; results do not depend
        on it.
    max_memory, partial : optional
        Of models whose entities are a :class:`kgfast.tables.Table`, as :func:`kgfast.rank` takes
        them.
    index : Index, optional
        The model's tables, packed before: the same answers sooner, where queries are few.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Predictions
        On the device of the candidates.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the model or each other; the message names the first
        offending query.
    NotImplementedError
        For relations, of a model that has no scores for them.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> topk(model, heads=[0, 1], relations=0, k=2)
    Predictions of 2 tail queries, k = 2
    (0, 0, ?)  1 0, 0 -1
    (1, 0, ?)  1 -1, 2 -1
    """
    refuse_unchecked("topk()")
    check_rankable(model)
    check_index(index, model, dims)
    model = host_model(model)
    check_known(known)
    names = names_of(vocabulary)
    check_names(names, model)
    side, name, anchors, others = asked_for(model, heads, relations, tails, names)
    size = checked_batch_size(batch_size, model)
    excluded = excluded_of(exclude, side, anchors, model, names)
    if excluded is not None:
        size = min(size, excluded.batch_size())
    table = entity_table(model)
    check_limits(table, max_memory, partial)
    if table is not None and side == "relation":
        model = local_model(model, table, torch.cat([anchors, others]).cpu())
    elif table is not None:
        if excluded is not None:
            raise ValueError(
                "exclude: the entities of this model are read from files, in blocks; known= and "
                "candidate_ids= leave answers out there"
            )
        asked = anchors.cpu(), others.cpu()
        every = candidates_of_sides(candidate_ids, (side,), len(anchors), model, names)[side]
        whole = None if dims is None else operator_width(model, dims)
        inquiry = Search(model, table, side, name, *asked, k, known, every, (dims, whole))
        found = _from_file(inquiry, (max_memory, partial), pad=pad, progress=progress)
        return Predictions(*found, *asked, side, vocabulary=names)
    with (
        evaluating(model),
        torch.no_grad(),
        progress_bar(progress, "predicting", len(anchors)) as advance,
    ):
        given = candidates_of_sides(candidate_ids, (side,), len(anchors), model, names)[side]
        ids = given if isinstance(given, Tensor) else None
        width = None if dims is None else operator_width(model, dims)
        crop = None if width is None else (width,)
        pool = candidate_pool(model, side, ids, dims, crop, index)
        search = _Search(model, side, name, k, known, excluded, pool, dims, crop, pad, given)
        is_shared = given is None or isinstance(given, Tensor)
        check_k(k, search.num_candidates if len(anchors) and not pad and is_shared else None)
        if isinstance(given, ListedCandidates):
            size = min(size, given.batch_size())
        parts, first = [], 0
        for some, their in zip(anchors.split(size), others.split(size), strict=True):
            parts.append(search.run(first, some, their))
            advance(len(some))
            first += len(some)
    scores, ids = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
    device = ids.device
    return Predictions(scores, ids, anchors.to(device), others.to(device), side, vocabulary=names)


def _from_file(
    search: Search, limits: tuple[Any, Any], *, pad: bool, progress: bool
) -> tuple[Tensor, Tensor]:
    """Scores and ids where entities are a table in files."""
    table, given, count = search.table, search.given, len(search.anchors)
    is_shared = given is None or isinstance(given, Tensor)
    most = len(table) if given is None else len(given) if isinstance(given, Tensor) else 0
    check_k(search.k, most if count and not pad and is_shared else None)
    limit = memory_limit(limits[0])
    with evaluating(search.model), torch.no_grad():
        rows = -(-count // queries_at_once(search, cut_of(search, limit))) * len(table)
        with sweep_bar(progress, "predicting", rows, table.shape[1], table.row_bytes) as advance:
            if isinstance(given, ListedCandidates):
                scores, ids = listed_topk(search, limit, advance)
            else:
                scores, ids = streamed_topk(search, limit, limits[1], advance)
    if not pad:
        check_full(ids, search.query_in_words)
    return scores, ids


def candidate_pool(
    model: Any,
    side: Side,
    ids: Tensor | None,
    dim: int | None,
    crop: tuple[int] | None,
    index: Index | None = None,
) -> Prepared | BlockPool:
    """The checked candidates of a side: a table, or blocks of scores."""
    scorer = blocks_at(model, side, dim)
    if scorer is not None:
        return BlockPool.of(scorer, side, ids)
    candidates = candidates_at(model, side, dim)
    panels = panels_of(index, model, candidates, side, dim)
    return prepared_candidates(model, candidates, ids, crop, panels=panels)


@dataclass(frozen=True)
class _Search:
    """What the batches of one call share."""

    model: Any
    side: Side
    name: str  # of the argument that the anchors are
    k: int
    known: KnownTriples | None
    excluded: Excluded | None
    pool: Prepared | BlockPool
    dim: int | None  # the crop of the model
    crop: tuple[int] | None  # that of the operator
    pad: bool
    given: Given

    @property
    def device(self) -> torch.device:
        """Where the candidates are."""
        if isinstance(self.pool, BlockPool):
            return self.pool.scorer.device
        return self.pool.table.device

    @property
    def num_candidates(self) -> int:
        """How many there are before answers are left out."""
        return self.pool.num_candidates

    def run(self, first: int, anchors: Tensor, relations: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and ids of the queries from row ``first`` on, ``[B, k]``."""
        rows = range(first, first + len(anchors))
        if isinstance(self.given, TypeConstraints) and rows:
            return self._run_by_relation(first, anchors, relations)
        if not isinstance(self.given, ListedCandidates):
            return self._run_part(rows, anchors, relations, self.pool)
        num_rows = self.model.num_relations if self.side == "relation" else self.model.num_entities
        lists = self.given.lists(first, first + len(anchors), num_rows, self.device)
        if not isinstance(self.pool, BlockPool):
            return self._run_part(rows, anchors, relations, self.pool, lists)
        parts = [self._run_part(rows[:0], anchors[:0], relations[:0], self.pool)]
        for row in range(len(rows)):  # a function is asked for one list at a time
            one, pool = slice(row, row + 1), replace(self.pool, ids=lists.row(row))
            parts.append(self._run_part(rows[one], anchors[one], relations[one], pool))
        parts = parts[1:] or parts
        scores, ids = (torch.cat(column) for column in zip(*parts, strict=True))
        return scores, ids

    def _run_by_relation(
        self, first: int, anchors: Tensor, relations: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same where each relation has its candidates."""
        assert isinstance(self.given, TypeConstraints)
        on_host = relations.cpu()
        order = on_host.argsort(stable=True)
        parts = []
        for part, relation in runs_of(on_host[order]):
            allowed = self.given.candidates(relation, self.side).to(self.device)
            if isinstance(self.pool, BlockPool):
                pool: Prepared | BlockPool = replace(self.pool, ids=allowed)
            else:
                pool = self.pool.only(allowed)
            own = order[part].to(anchors.device)
            rows = (first + order[part]).tolist()
            parts.append(self._run_part(rows, anchors[own], relations[own], pool))
        scores, ids = (torch.cat(column) for column in zip(*parts, strict=True))
        back = order.argsort().to(self.device)
        return scores[back], ids[back]

    def _run_part(
        self,
        rows: Sequence[int],
        anchors: Tensor,
        relations: Tensor,
        pool: Prepared | BlockPool,
        lists: Lists | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Scores and ids of queries ``rows [B]``, which share their candidates or have lists."""
        anchors, relations = anchors.to(self.device), relations.to(self.device)
        known = None
        if self.known is not None:
            known = Known(*self.known.exclude(anchors, relations, self.side))
        if self.excluded is not None:
            known = together(known, self.excluded.of(rows, self.device))
        if isinstance(pool, BlockPool):
            scores, ids = pool.topk(Queries(anchors, relations), self.k, known)
        else:
            scores, ids = self._swept(pool, rows, (anchors, relations), known, lists)
        known_answers = 0 if known is None else len(known.indices)
        may_lack = lists is not None or self.k > pool.num_candidates - known_answers
        if may_lack and not self.pad:
            check_full(ids, self._query(rows, (anchors, relations)))
        return scores, ids

    def _swept(
        self,
        pool: Prepared,
        rows: Sequence[int],
        asked: tuple[Tensor, Tensor],
        known: Known | None,
        lists: Lists | None,
    ) -> tuple[Tensor, Tensor]:
        """Those of queries against a table."""
        queries = full_precision(evaluated_queries(self.model, *asked, self.side, self.dim))
        check_queries(queries, pool)
        operands = Operands(queries, pool, self.crop)
        checks = run.checks_for(self.device)
        try:
            scores, ids = run.topk(operands, self.k, known, checks, lists)
        except NonFiniteError:
            check_finite_queries(queries, self._query(rows, asked))
            raise
        return (scores, ids) if self.crop is None else (scores[0], ids[0])

    def _query(self, rows: Sequence[int], asked: tuple[Tensor, Tensor]) -> Callable[[int], str]:
        """What says each of some queries in words."""
        anchors, others = asked
        return lambda row: query_in_words(
            self.side, self.name, rows[row], anchors[row], others[row]
        )
