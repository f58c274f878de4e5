"""above(): all answers with scores that reach a threshold."""

from typing import Any

import torch
from torch import Tensor

from kgfast.eval.accumulators import AboveSoFar, Room
from kgfast.eval.answers import AskedQueries, Search
from kgfast.eval.batches import check_rankable, host_model
from kgfast.eval.candidate_ids import Allowed, CandidateIds, ExcludedIds
from kgfast.eval.exchange import Exchange
from kgfast.eval.index import Index, check_index
from kgfast.eval.one_pass import FileCall
from kgfast.eval.prediction import found_by
from kgfast.eval.predictions import AnswersAbove
from kgfast.eval.queries import CPU, Queries
from kgfast.eval.sources import CandidateSource
from kgfast.graph import IdsLike, KnownTriples, VocabularyLike
from kgfast.kernels.above import merged
from kgfast.kernels.operands import Above
from kgfast.models import BlockScorer, RankableModel
from kgfast.ops.above import (
    MAX_RESULTS,
    check_max_results,
    check_thresholds,
    thresholds_of,
    too_many,
)
from kgfast.ops.unchecked import refuse_unchecked
from kgfast.storage import digest


def above(
    model: RankableModel | BlockScorer,
    threshold: Tensor | float,
    *,
    heads: IdsLike | None = None,
    tails: IdsLike | None = None,
    relations: IdsLike | None = None,
    known: KnownTriples | None = None,
    exclude: ExcludedIds | None = None,
    candidate_ids: CandidateIds | None = None,
    dims: int | None = None,
    max_results: int = MAX_RESULTS,
    vocabulary: VocabularyLike | None = None,
    batch_size: int | None = None,
    max_memory: int | str | None = None,
    index: Index | None = None,
    progress: bool = False,
) -> AnswersAbove:
    """Find all tails of (head, relation, ?) with scores from a threshold on; or heads or relations.

    The result is exact: an answer is found if the score that :func:`kgfast.topk` returns is at
    least the threshold. So the k-th score as threshold returns the k best. Scores of all entities
    are never stored: memory stays below 64 MiB beyond the model's tables and the result.

    Parameters
    ----------
    model : Model
        As :func:`kgfast.topk` takes it.
    threshold : Tensor or float
        ``[B]`` floating point, one threshold for each query, or one for all; not NaN. Scores have
        no gamma, as in :func:`kgfast.topk`.
    heads, relations, tails : int, sequence of int or Tensor, or names
        As :func:`kgfast.topk` takes them.
    known : KnownTriples, optional
        Triples whose answers are left out, so that all answers are new.
    exclude, candidate_ids, dims : optional
        As :func:`kgfast.topk` takes them.
    max_results : int
        Maximal number of answers of all queries together.
    vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
        The names of the model's rows: queries may use names, and answers show them.
    batch_size : int, optional
        Queries per batch; results do not depend on the batch size.
    max_memory : int or str, optional
        Memory for a model with a :class:`kgfast.tables.Table` of entities, as :func:`kgfast.rank`
        takes it; the result comes on top.
    index : Index, optional
        The packed tables of the model, which speed up calls with few queries.
    progress : bool
        Show a progress bar.

    Returns
    -------
    AnswersAbove
        Answers to all queries, on the device of the candidates.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the model or each other, and for more than ``max_results``
        answers; the message names the first offending query, or says how many answers there are.
    NotImplementedError
        If the model cannot score relations.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> above(model, -1.0, heads=[0, 1], relations=0)
    4 answers to 2 tail queries
    (0, 0, ?)  0 -1, 1 0
    (1, 0, ?)  1 -1, 2 -1
    """
    refuse_unchecked("above()")
    check_rankable(model)
    check_index(index, model, dims)
    model = host_model(model)
    asked = AskedQueries(heads, relations, tails, vocabulary)
    allowed = Allowed(known, candidate_ids, exclude)
    search = AboveSearch(model, asked, threshold, max_results, allowed, dims, batch_size)
    file = FileCall.of(model, max_memory, None, (progress, "predicting"))
    return search.predictions(*found_by(search, file, index, progress=progress))


class AboveSearch(Search):
    """Checked arguments of a search for all answers above a threshold."""

    answer_bytes = 0  # results take no memory of the limit for reading a file

    def __init__(
        self,
        model: Any,
        asked: AskedQueries,
        threshold: Tensor | float,
        max_results: int,
        allowed: Allowed,
        dims: int | None,
        batch_size: Any,
    ) -> None:
        super().__init__(model, asked, 1, allowed, dims, batch_size, True)
        check_max_results(max_results)
        self.thresholds = thresholds_of(threshold, len(self), CPU)
        check_thresholds(self.thresholds)
        self.room = Room(max_results)

    @property
    def facts(self) -> dict[str, str]:
        return {"threshold": digest(self.thresholds), "max_results": str(self.room.most)}

    def accumulator(self, queries: Queries, source: CandidateSource) -> AboveSoFar:
        thresholds = self.thresholds[queries.rows].to(source.device)
        return AboveSoFar(queries, source, thresholds, self.room)

    def collected(
        self, parts: list[AboveSoFar], source: CandidateSource, exchange: Exchange
    ) -> Above:
        total = exchange.total(self.room.count)
        if total > self.room.most:
            raise too_many(total, self.room.most)
        if len(parts) == 1 and exchange.num_shares == 1:
            return parts[0].whole()
        is_double = any(part.dtype == torch.float64 for part in parts)
        like = torch.empty(
            0, dtype=torch.float64 if is_double else torch.float32, device=source.home
        )
        pieces = []
        for part in parts:
            rows = part.queries.rows.to(source.home)
            pieces += [(rows, it) for it in part.pieces]
            part.pieces.clear()
        return exchange.fill_in_rows(merged(pieces, len(self), like))

    def predictions(self, *found: Tensor) -> AnswersAbove:
        indptr, ids, scores = found
        asked = self.anchors.to(ids.device), self.others.to(ids.device), self.side
        return AnswersAbove(indptr, ids, scores, *asked, vocabulary=self.names)
