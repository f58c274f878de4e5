"""top_facts(): the best new facts among all triples, or in a slice of all triples."""

import os
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.batches import (
    check_known,
    check_names,
    check_rankable,
    checked_batch_size,
    evaluating,
    host_model,
)
from kgfast.eval.best_facts import FactSearch, Grid, facts_in_memory, search_file
from kgfast.eval.candidate_ids import checked_ids_of
from kgfast.eval.counting import source_in_memory
from kgfast.eval.facts import Facts
from kgfast.eval.one_pass import FileCall, kept_in_memory
from kgfast.graph import IdsLike, KnownTriples, VocabularyLike, names_of
from kgfast.models import BlockScorer, RankableModel
from kgfast.ops.checks import check_unique
from kgfast.ops.topk import check_k
from kgfast.progress import progress_bar


def top_facts(
    model: RankableModel | BlockScorer,
    *,
    k: int = 100,
    known: KnownTriples | None = None,
    relations: IdsLike | None = None,
    heads: IdsLike | None = None,
    tails: IdsLike | None = None,
    vocabulary: VocabularyLike | None = None,
    batch_size: int | None = None,
    max_memory: int | str | None = None,
    partial: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Facts:
    """Find the ``k`` best new facts among all triples (h, r, t), exactly.

    The score of a triple is the score of the tail for (h, r). Triples are streamed: memory stays
    below 64 MiB beyond the model's tables and the result. Equal scores are ordered by the lowest
    (h, r, t), on every backend and device.

    Parameters
    ----------
    model : Model
        As :func:`kgfast.topk` takes it, also a :class:`kgfast.BlockScorer`. With ``nan="worst"``,
        triples that score NaN are no facts.
    k : int
        Number of facts; the result has fewer if fewer new triples exist.
    known : KnownTriples, optional
        Triples that are left out, so that all facts are new.
    relations, heads, tails : int, sequence of int or Tensor, or names, optional
        Unique ids of a slice: the search is among triples of these only.
    vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
        The names of the model's rows: slices may use names, and facts show them.
    batch_size : int, optional
        Queries (h, r) per batch. The default keeps a batch within 8 MiB; results do not depend on
        the batch size.
    max_memory : int or str, optional
        Memory for a model with a :class:`kgfast.tables.Table` of entities, as :func:`kgfast.rank`
        takes it. Each pass over the file serves as many queries (h, r) as fit, so give a slice.
    partial : path, optional
        A folder that saves the facts so far. If the call is killed, the same call resumes from
        there, with the same bits. A :class:`kgfast.BlockScorer` is refused.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Facts
        Facts on the CPU.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the model; the message names the argument and the first row.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> top_facts(model, k=2, known=KnownTriples([(0, 0, 1)]))
    2 facts
    (0, 0, 0)  -1
    (1, 0, 1)  -1
    """
    check_rankable(model)
    model = host_model(model)
    check_known(known)
    check_k(k, None)
    names = names_of(vocabulary)
    check_names(names, model)
    entities, own = (int(model.num_entities), names[0]), (int(model.num_relations), names[1])
    axes = _axis("heads", heads, *entities), _axis("relations", relations, *own)
    ids = None if tails is None else _axis("tails", tails, *entities)
    grid = Grid(*axes, checked_batch_size(batch_size, model))
    file = FileCall.of(model, max_memory, partial, (progress, "searching"))
    with evaluating(model), torch.no_grad():
        if file is None:
            source = source_in_memory(model, "tail", {None: None}, ids)
            search = FactSearch(source, grid, known, k)
            cut = max(1, sum(1 for _ in grid.batches())), grid.batch_size
            with (
                kept_in_memory(partial, source, cut, facts_in_memory(search)) as kept,
                progress_bar(progress, "searching", len(grid)) as done,
            ):
                search.run(done=done, kept=kept)
        else:
            search = search_file(file, grid, known, k, ids)
    return Facts(*search.found, vocabulary=names)


def _axis(name: str, values: Any, count: int, names: Any) -> Tensor:
    """Return the ascending ids of a slice; all ids for None."""
    if values is None:
        return torch.arange(count, dtype=torch.int64, device="cpu")
    ids = checked_ids_of(name, values, count, names).reshape(-1).cpu()
    check_unique(name, ids)
    return ids.sort().values
