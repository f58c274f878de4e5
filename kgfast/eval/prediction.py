"""topk(): the best answers to queries."""

import os
from typing import Any

import torch

from kgfast.eval.answers import AskedQueries, Search, answers, answers_of_file, asked_in_memory
from kgfast.eval.batches import check_rankable, evaluating, host_model
from kgfast.eval.candidate_ids import Allowed, CandidateIds, ExcludedIds
from kgfast.eval.counting import source_in_memory
from kgfast.eval.few_queries import few_answers
from kgfast.eval.index import Index, check_index
from kgfast.eval.one_pass import FileCall, kept_in_memory
from kgfast.eval.predictions import Predictions
from kgfast.eval.rows import local_model
from kgfast.graph import IdsLike, KnownTriples, VocabularyLike
from kgfast.models import BlockScorer, RankableModel
from kgfast.ops.unchecked import refuse_unchecked
from kgfast.progress import progress_bar


def topk(
    model: RankableModel | BlockScorer,
    *,
    heads: IdsLike | None = None,
    tails: IdsLike | None = None,
    relations: IdsLike | None = None,
    k: int,
    known: KnownTriples | None = None,
    exclude: ExcludedIds | None = None,
    candidate_ids: CandidateIds | None = None,
    dims: int | None = None,
    pad: bool = False,
    vocabulary: VocabularyLike | None = None,
    batch_size: int | None = None,
    max_memory: int | str | None = None,
    partial: str | os.PathLike[str] | None = None,
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
    k : int
        Number of answers, at most the number of candidates.
    known : KnownTriples, optional
        Triples whose answers are left out, so that all predictions are new.
    exclude : sequence of int or names, (indptr, ids), or "anchor", optional
        More ids that are no answers, besides known answers. A tensor ``[M]`` excludes ids for all
        queries; CSR, int64 ``[B + 1]`` and ``[nnz]``, excludes ids for each query; ``"anchor"``
        excludes the entity that each query gives. Ids may repeat, and need not be candidates.
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
    partial : path, optional
        A folder that saves the answers so far. If the call is killed, the same call resumes from
        there, with the same bits. A call with another model or other queries is an error. Answers
        that are relations are not saved, and a :class:`kgfast.BlockScorer` is refused.
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
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> topk(model, heads=[0, 1], relations=0, k=2)
    Predictions of 2 tail queries, k = 2
    (0, 0, ?)  1 0, 0 -1
    (1, 0, ?)  1 -1, 2 -1
    """
    refuse_unchecked("topk()")
    others = known, exclude, candidate_ids, dims, vocabulary, batch_size, max_memory, partial
    if index is not None and not progress and not [it for it in others if it is not None]:
        soon = few_answers(index, model, heads, tails, relations, k)
        if soon is not None:
            return soon
    check_rankable(model)
    check_index(index, model, dims)
    model = host_model(model)
    asked = AskedQueries(heads, relations, tails, vocabulary)
    allowed = Allowed(known, candidate_ids, exclude)
    search = Search(model, asked, k, allowed, dims, batch_size, pad)
    file = FileCall.of(model, max_memory, partial, (progress, "predicting"))
    found: Predictions = search.predictions(*found_by(search, file, index, partial, progress))
    return found


def found_by(
    search: Search,
    file: FileCall | None,
    index: Index | None = None,
    partial: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Any:
    """Return the answers; ``file`` is the call for entities that are read in blocks.

    ``partial`` is the folder of a call with candidates in memory.
    """
    model = search.model
    if search.side == "relation":  # few rows are read, and no answers are saved
        partial = None
        if file is not None:
            entities = torch.cat([search.anchors, search.others]).cpu()
            model, file = local_model(model, file.table, entities), None
    with evaluating(model), torch.no_grad():
        if file is not None:
            search.anchors, search.others = search.anchors.cpu(), search.others.cpu()
            return answers_of_file(search, file)
        source = source_in_memory(model, search.side, search.crop, search.ids, index=index)
        size, asked = search.size(search.batch_size), asked_in_memory(search, source)
        with (
            kept_in_memory(partial, source, (1, size), asked) as kept,
            progress_bar(progress, "predicting", len(search)) as advance,
        ):
            return answers(search, source, size, kept=kept, done=advance)
