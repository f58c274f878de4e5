"""rank_rows() and topk_rows(): queries and rows that are vectors of any origin, without a graph."""

from typing import Any, cast

import torch
from torch import Tensor

from kgfast import tables
from kgfast.eval.candidates import Allowed
from kgfast.eval.counting import Ranking
from kgfast.eval.driver import Call
from kgfast.eval.excluded import Excluded, ExcludedIds
from kgfast.eval.job import Job
from kgfast.eval.queries import Queries
from kgfast.eval.ranking import ranks_of
from kgfast.eval.ranks import RowRanks
from kgfast.eval.searches import Arguments, BestSearch
from kgfast.graph import IdsLike, KnownTriples, as_integers
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.ieee import ieee_arithmetic
from kgfast.kernels.operands import Prepared
from kgfast.kernels.scores import get_score
from kgfast.models.base import Candidates
from kgfast.models.tables import Table, from_array
from kgfast.ops.checks import check_candidates, check_queries, check_shape
from kgfast.ops.differentiable import full_precision
from kgfast.ops.lists import lists_of
from kgfast.ops.values import check_rows
from kgfast.text import shown

_SCORES = ("dot", "cosine", "l1", "l2")


def rank_rows(
    queries: Tensor,
    rows: Table,
    targets: IdsLike | tuple[Tensor, Tensor],
    *,
    exclude: ExcludedIds | None = None,
    bias: Tensor | None = None,
    candidate_ids: IdsLike | None = None,
    score: str = "dot",
    batch_size: int | None = None,
    progress: bool = False,
) -> RowRanks:
    """Rank the target rows of each query among all rows, exactly, as :func:`kgfast.rank` ranks.

    Parameters
    ----------
    queries : Tensor or array
        ``[B, D]`` floating point, on the device of the rows.
    rows : Tensor, array or Table
        ``[N, D]`` floating point, at least one row; a :class:`kgfast.tables.Table` is read in
        blocks.
    targets : sequence of int, or (indptr, ids)
        The row of each query, ``[B]``; or CSR, ``indptr [B + 1]`` and ``ids [P]``, where queries
        have several. Each then has a rank, among which other targets of its query do not count;
        ``.raw`` counts them.
    exclude : sequence of int, or (indptr, ids), optional
        Rows that are no candidates: for all queries, or, as CSR, for each. A target always is a
        candidate. Raw ranks leave nothing out.
    bias : Tensor, optional
        ``[N]`` floating point, added to the scores of each row.
    candidate_ids : sequence of int, or those of each query, optional
        Unique rows: the only candidates; or a tensor or array ``[B, K]``, -1 for none. A target
        outside is ranked against these candidates.
    score : {"dot", "cosine", "l1", "l2"}
        Distances are negative. For cosines each row is divided by its length in float64 and
        rounded once, in a copy of a tensor; a row of zeros has the cosine 0 with every row.
    batch_size : int, optional
        Pairs of a query and a target per batch; results do not depend on it.
    progress : bool
        Show a progress bar.

    Returns
    -------
    RowRanks
        A rank for each target.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit each other, a target that is no row, and a number that is not
        finite; the message names the argument and the first row.

    Examples
    --------
    >>> images, texts = torch.eye(2), torch.tensor([[1.0, 0.0], [3.0, 2.0], [0.0, 1.0]])
    >>> ranks = rank_rows(images, texts, (torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2])))
    >>> ranks.realistic[:, 0].tolist(), ranks.raw.realistic[:, 0].tolist(), ranks.best().hits(1)
    ([1.0, 1.0, 2.0], [2.0, 1.0, 2.0], 0.5)
    """
    model = _model(queries, rows, score, bias, exclude)
    count, num_rows = model.num_relations, model.num_entities
    wanted = Excluded.listed("targets", targets, count, (num_rows, None))
    if wanted.indptr is None:
        check_shape("targets", wanted.ids, (count,))
    triples = _triples(wanted, count)
    lists = [] if wanted.indptr is None else [triples]
    if exclude is not None:
        left_out = Excluded.listed("exclude", exclude, count, (num_rows, None))
        exclude = left_out.ids if left_out.indptr is None else None
        lists += [] if left_out.indptr is None else [_triples(left_out, count)]
    if getattr(candidate_ids, "ndim", 1) == 2 and wanted.indptr is not None:
        of_queries = as_integers("candidate_ids", candidate_ids)
        check_shape("candidate_ids", of_queries, (count, None))
        lists_of(of_queries, num_rows)  # names a wrong row
        candidate_ids = of_queries[triples[:, 1].to(of_queries.device)]
    known = KnownTriples(*lists) if lists else None
    allowed = Allowed(known, candidate_ids, exclude)
    job = Ranking(model, triples, ("tail",), allowed, None, batch_size)
    _run(model, job, progress)
    counts, is_filtered = job.counts[0][:, 0], known is not None or exclude is not None
    facts = counts, job.hrt[:, 1:], ("row",), None
    return cast(RowRanks, ranks_of(*facts, is_filtered=is_filtered, kind=RowRanks))


def topk_rows(
    queries: Tensor,
    rows: Table,
    k: int,
    *,
    exclude: ExcludedIds | None = None,
    bias: Tensor | None = None,
    candidate_ids: IdsLike | None = None,
    score: str = "dot",
    pad: bool = False,
    batch_size: int | None = None,
    progress: bool = False,
) -> tuple[Tensor, Tensor]:
    """Find the ``k`` best rows of each query, exactly, as :func:`kgfast.topk` finds answers.

    Parameters
    ----------
    queries, rows, exclude, bias, candidate_ids, score, batch_size, progress
        As :func:`kgfast.rank_rows` takes them.
    k : int
        Number of rows, at most the number of candidates.
    pad : bool
        Fill up queries with fewer candidates by the id -1 and the score -inf.

    Returns
    -------
    scores, ids : Tensor
        ``[B, k]``, from best to worst, the lowest id first among equals; ids are int64.

    Raises
    ------
    ValueError, TypeError
        As :func:`kgfast.rank_rows`; without ``pad`` for a query with fewer than ``k`` candidates.

    Examples
    --------
    >>> rows = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 0.0]])
    >>> scores, ids = topk_rows(torch.tensor([[1.0, 0.0]]), rows, 2)
    >>> scores.tolist(), ids.tolist()
    ([[2.0, 1.0]], [[1, 2]])
    """
    model = _model(queries, rows, score, bias, exclude)
    count = model.num_relations
    numbers = torch.arange(count, dtype=torch.int64, device="cpu")
    facts: Any = 0, numbers, None, None, None, None, candidate_ids, exclude, None, batch_size
    job = RowSearch(model, Arguments(*facts), k, pad)
    _run(model, job, progress)
    return job.collected()


class RowSearch(BestSearch):
    """Search for the best rows."""

    def words(self, queries: Queries, place: int) -> str:
        """Return a query in words, for errors."""
        return f"queries[{int(queries.rows[place])}]"


class RowModel:
    """Model whose relations number queries: triple (0, i, n) has the score of query i and row n."""

    def __init__(self, vectors: Tensor, entity: Any, score: str, bias: Tensor | None) -> None:
        self.vectors, self.entity, self.score, self.bias = vectors, entity, score, bias
        self.num_relations = len(vectors)
        self.num_entities, self.dim = entity.shape

    def queries(self, anchors: Tensor, relations: Tensor, side: str) -> Tensor:
        return full_precision(self.vectors[relations])

    def candidates(self, side: str) -> Candidates:
        return Candidates(self.entity, self.bias)

    def with_entity(self, entity: Any) -> "RowModel":
        return RowModel(self.vectors, entity, self.score, self.bias)


def _model(queries: Any, rows: Any, score: str, bias: Any, exclude: Any) -> RowModel:
    if score not in _SCORES:
        raise ValueError(f"score must be one of {', '.join(_SCORES)}; got {shown(score)}")
    if isinstance(exclude, str):
        raise ValueError(f"exclude must be ids of rows, or (indptr, ids); got {shown(exclude)}")
    vectors: Any = from_array("queries", queries).detach()
    entity: Any = from_array("rows", rows).detach() if not tables.is_table(rows) else rows
    few = entity if isinstance(entity, Tensor) else (entity := tables.as_rows(entity)).block(0, 0)
    prepared = Prepared(few, get_score("dot" if score == "cosine" else score))
    check_candidates(prepared, None, "rows")
    check_queries(full_precision(vectors), prepared)
    if not len(entity):
        raise ValueError(f"rows must hold at least one row; got shape {list(entity.shape)}")
    check_rows("queries", vectors)
    if bias is not None:
        bias = from_array("bias", bias)
        check_shape("bias", bias, (len(entity),))
    if score == "cosine":
        with ieee_arithmetic():
            vectors = tables.UnitRows.of(vectors).block(0, len(vectors))
            unit = tables.UnitRows.of(entity)
            entity = unit.block(0, len(unit)) if isinstance(entity, Tensor) else unit
    return RowModel(vectors, entity, prepared.score.name, bias)


def _triples(listed: Excluded, count: int) -> Tensor:
    """Return (0, query, row) of each id, int64 ``[P, 3]``."""
    owners = torch.arange(count, dtype=torch.int64, device="cpu")
    owners = owners if listed.indptr is None else owners.repeat_interleave(listed.indptr.diff())
    return torch.stack([torch.zeros_like(owners), owners, listed.ids], 1)


def _run(model: RowModel, job: Job, progress: bool) -> None:
    try:
        Call(model, "ranking rows", progress=progress).run(job)
    except NonFiniteError as error:
        where = str(error).replace("candidates: row", "rows: row").rpartition(" (")[0]
        raise NonFiniteError(where or str(error)) from None
