"""topk(): the best answers to queries; above(): all answers from a score on."""

from typing import Any

from torch import Tensor

from kgfast.eval.answers import AnswersAbove, Predictions
from kgfast.eval.candidates import CandidateIds
from kgfast.eval.driver import Call, several
from kgfast.eval.excluded import ExcludedIds
from kgfast.eval.index import Index
from kgfast.eval.searches import AboveSearch, Arguments, BestSearch
from kgfast.graph import IdsLike, KnownTriples, VocabularyLike
from kgfast.models import BlockScorer, RankableModel


def topk(
    model: RankableModel | BlockScorer,
    *,
    heads: IdsLike | None = None,
    tails: IdsLike | None = None,
    relations: IdsLike | None = None,
    times: IdsLike | None = None,
    k: int,
    known: KnownTriples | None = None,
    exclude: ExcludedIds | None = None,
    candidate_ids: CandidateIds | None = None,
    dims: int | None = None,
    pad: bool = False,
    vocabulary: VocabularyLike | None = None,
    batch_size: int | None = None,
    max_memory: int | str | None = None,
    index: Index | None = None,
    progress: bool = False,
) -> Predictions:
    """Find the ``k`` best tails of (head, relation, ?), exactly; or the best heads or relations.

    Scores of all entities are never stored, so memory stays below 64 MiB beyond the model's tables
    and the result. Equal scores are ordered by the lowest id, on every backend and device.

    Parameters
    ----------
    model : Model
        As :func:`kgfast.rank` takes it. The model is evaluated under ``no_grad`` in eval mode; the
        old mode is restored.
    heads, relations, tails : int, sequence of int or Tensor, or names
        Exactly two of these three; the third is predicted. Both have one length; a single id or
        name, alone or in a list, goes with all ids of the other argument.
    times : int, sequence of int or Tensor, or names, optional
        For a temporal model: the time of each query, or of all.
    k : int
        Number of answers, at most the number of candidates.
    known : KnownTriples, optional
        Triples whose answers are left out, so that all predictions are new.
    exclude : sequence of int or names, (indptr, ids), or "anchor", optional
        More ids that are no answers: for all queries, or, as CSR ``[B + 1]`` and ``[nnz]``, for
        each query; ``"anchor"`` is the entity of each query. Ids may repeat, and need not be
        candidates.
    candidate_ids : tensor or sequence of int, TypeConstraints, or those of each query, optional
        Unique ids or names of entities, or of relations if relations are predicted: the only
        candidates. Only these are scored. Candidates of each query or relation are given as
        :func:`kgfast.rank` takes them.
    dims : int, optional
        Crop width: answers of a sub-model of croppable embeddings.
    pad : bool
        Fill the answers of queries with fewer than ``k`` candidates with the id -1, instead of
        raising an error.
    vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
        The names of the model's rows: queries may use names, and answers show them.
    batch_size : int, optional
        Queries per batch. The default keeps a batch of queries within 8 MiB; results do not depend
        on the batch size.
    max_memory : int or str, optional
        Memory for a model with a :class:`kgfast.tables.Table` of entities, as :func:`kgfast.rank`
        takes it.
    index : Index, optional
        The packed tables of the model, which speed up calls with few queries.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Predictions
        Answers to all queries, on the device of the candidates.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the model or each other; the message names the first
        offending query.
    NotImplementedError
        If the model cannot score relations.

    Examples
    --------
    >>> import torch
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> topk(model, heads=[0, 1], relations=0, k=2)
    Predictions of 2 tail queries, k = 2
    (0, 0, ?)  1 0, 0 -1
    (1, 0, ?)  1 -1, 2 -1
    """
    queries = heads, relations, tails, times, vocabulary
    arguments = Arguments(*queries, known, candidate_ids, exclude, dims, batch_size)
    options = {"max_memory": max_memory, "index": index, "progress": progress}
    return Predictions(*_searched(BestSearch, model, arguments, (k, pad), options))


def above(
    model: RankableModel | BlockScorer,
    threshold: Tensor | float,
    *,
    heads: IdsLike | None = None,
    tails: IdsLike | None = None,
    relations: IdsLike | None = None,
    times: IdsLike | None = None,
    known: KnownTriples | None = None,
    exclude: ExcludedIds | None = None,
    candidate_ids: CandidateIds | None = None,
    dims: int | None = None,
    max_results: int = 10_000_000,
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
    heads, relations, tails, times : int, sequence of int or Tensor, or names
        As :func:`kgfast.topk` takes them.
    max_results : int
        Maximal number of answers of all queries together.
    known, exclude, candidate_ids, dims, vocabulary, batch_size, max_memory, index, progress
        As :func:`kgfast.topk` takes them, but no lists of candidates for each query.

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
    >>> import torch
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> above(model, -1.0, heads=[0, 1], relations=0)
    4 answers to 2 tail queries
    (0, 0, ?)  0 -1, 1 0
    (1, 0, ?)  1 -1, 2 -1
    """
    queries = heads, relations, tails, times, vocabulary
    arguments = Arguments(*queries, known, candidate_ids, exclude, dims, batch_size)
    options = {"max_memory": max_memory, "index": index, "progress": progress}
    limits = threshold, max_results
    return AnswersAbove(*_searched(AboveSearch, model, arguments, limits, options))


def _searched(
    kind: Any, model: Any, arguments: Arguments, more: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Any, ...]:
    """Search; return the answers, anchors, others, side, names, and number of times."""
    with several(kind.name) as steps:
        call = Call(model, "predicting", steps, dims=arguments.dims, **options)
        search = kind(model, arguments, *more)
        call.run(search)
        answers = search.collected()
    home, num_times = answers[0].device, getattr(model, "num_times", None)
    anchors, others = search.anchors.to(home), search.others.to(home)
    return *answers, anchors, others, search.section.side, search.names, num_times
