"""rank(): filtered and raw ranks of test triples."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from torch import Tensor

from kgfast.datasets import Dataset
from kgfast.eval.candidates import Allowed, CandidateIds
from kgfast.eval.counting import Ranking
from kgfast.eval.driver import Call, several
from kgfast.eval.excluded import ExcludedIds
from kgfast.eval.index import Index
from kgfast.eval.ranks import GroupedRanks, Ranks
from kgfast.graph import KnownTriples, Triples, TriplesLike, VocabularyLike
from kgfast.graph.named import Names
from kgfast.graph.triples import quads_of
from kgfast.models import BlockScorer, RankableModel
from kgfast.models.base import SIDES, Side
from kgfast.text import shown

Models = RankableModel | BlockScorer


@overload
def rank(
    model: Models, triples: TriplesLike | Dataset, *, dims: int | None = ..., **options: Any
) -> Ranks: ...
@overload
def rank(
    model: Models, triples: TriplesLike | Dataset, *, dims: Sequence[int], **options: Any
) -> GroupedRanks: ...
def rank(  # type: ignore[misc] # the signatures name the option that decides
    model: RankableModel | BlockScorer,
    triples: TriplesLike | Dataset,
    *,
    known: KnownTriples | Literal["dataset"] | None = "dataset",
    sides: Sequence[Side] = SIDES,
    candidate_ids: CandidateIds | None = None,
    exclude: ExcludedIds | Mapping[Any, ExcludedIds | None] | None = None,
    dims: int | Sequence[int] | None = None,
    batch_size: int | None = None,
    nan: Literal["error", "worst"] = "error",
    vocabulary: VocabularyLike | None = None,
    max_memory: int | str | None = None,
    index: Index | None = None,
    progress: bool = False,
) -> Ranks | GroupedRanks:
    """Rank the true entity, or relation, of every triple among all candidates, exactly.

    Scores are never stored: each score is compared and counted where it is computed, so memory
    stays below 64 MiB beyond the model's tables. Every backend and device returns the integers of
    the float64 specification (:mod:`kgfast.kernels.reference.rank`).

    Parameters
    ----------
    model : Model
        Any object with ``score``, ``num_entities``, ``num_relations``, ``dim``, ``queries`` and
        ``candidates`` as :class:`kgfast.Model` has them, or a :class:`kgfast.BlockScorer`. The
        model is evaluated under ``no_grad`` in eval mode; the old mode is restored.
    triples : Triples, Tensor, array, sequence or Dataset
        int64 ``[T, 3]``, (h, r, t), or rows of names; an object with such ``mapped_triples``; or a
        dataset, for its test split. Triples may repeat, and there may be none. A temporal model
        ranks quads, ``[T, 4]``, (h, r, t, time).
    known : KnownTriples, optional
        Triples to filter by (train, valid and test). With None, filtered ranks equal raw ranks. The
        default is all splits if ``triples`` is a dataset, else None.
    sides : sequence of {"head", "relation", "tail"}
        Sides to predict. Relations are ranked among all relations, and filtered by (h, t). Metrics
        of relations and of entities are separate.
    candidate_ids : tensor or sequence of int, TypeConstraints, or those of each triple, optional
        Unique entity ids or names: the only candidates. Only these are scored. A target outside is
        ranked against these candidates. A triple without any is not ranked: a warning counts such
        triples, and metrics leave them out. A :class:`TypeConstraints` has candidates for each
        relation and side. A tensor or array ``[T, K]`` has candidates for each triple, -1 for none;
        an array may be memory-mapped. A dict ``{"head": ..., "tail": ...}`` has any of these except
        constraints for each side. Relations are always ranked among all relations.
    exclude : sequence of int or names, (indptr, ids), "anchor", or those of each side, optional
        Entities that are no candidates, beside known answers: for all triples, for each triple as
        CSR (``indptr [T + 1]``), or the head where tails are ranked and the tail where heads are. A
        dict ``{"head": ..., "tail": ...}`` has any of these for each side. The target of a triple
        always is a candidate. Raw ranks and relations leave nothing out.
    dims : int or sequence of int, optional
        Crop widths, for croppable embeddings (MED). A sequence gives a result for each width. If
        crops are prefixes of the model's rows, on a CPU all results come from one sweep over the
        widest crop.
    batch_size : int, optional
        Triples per batch. The default keeps a batch of queries within 8 MiB. Results do not depend
        on the batch size, unless a function's scores do.
    nan : {"error", "worst"}
        Treatment of a NaN or an infinity in the embeddings: an error that names the row, or the
        worst rank.
    vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
        The names of the model's rows: triples may use names, and groups show them. Labels of the
        triples must be equal to these names.
    max_memory : int or str, optional
        Bytes, or a text like ``"4GiB"``, for the blocks and queries of a model whose entities are a
        :class:`kgfast.tables.Table`: one pass over the file serves as many queries as fit. The
        default is a quarter of free memory. Tensors in memory take no limit.
    index : Index, optional
        The packed tables of the model, which speed up calls with few triples.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Ranks, or GroupedRanks
        For a sequence of ``dims``, a dict from int to Ranks that prints as one table.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the model; the message names the first offending row.
    NotImplementedError
        If the model cannot score relations.

    Examples
    --------
    >>> import torch
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> ranks = rank(model, [(0, 0, 1), (1, 0, 2)])
    >>> ranks.side("tail").realistic.tolist()
    [[1.0], [1.5]]
    """
    with several("rank") as steps:
        options: dict[str, Any] = {"max_memory": max_memory, "index": index, "progress": progress}
        call = Call(model, "ranking", steps, dims=dims, **options)
        if known == "dataset":
            known = triples.known() if isinstance(triples, Dataset) else None
        if isinstance(triples, Dataset):
            vocabulary = triples if vocabulary is None else vocabulary
            triples = triples.test
        allowed, more = Allowed(known, candidate_ids, exclude), (nan, vocabulary)
        job = Ranking(model, triples, sides, allowed, dims, batch_size, more)
        call.run(job)
    triples = job.hrt if job.num_times is None else quads_of(job.hrt, job.num_times)
    if job.names != (None, None):
        entities, relations = job.names
        times = job.num_times if relations is None else None
        triples = Triples(job.hrt, entities=entities, relations=relations, num_times=times)
    ranks, is_filtered = {}, known is not None or exclude is not None
    for crops, counts in zip(job.crops, job.counts, strict=True):
        for dim, of_crop in zip(crops, counts.unbind(1), strict=True):
            ranks[dim] = ranks_of(of_crop, triples, job.sides, known, is_filtered=is_filtered)
    warn_without_candidates(job.counts[0][5, 0], job.hrt, job.sides, job.names)
    if isinstance(dims, Sequence):
        return GroupedRanks("dim", {dim: ranks[dim] for dim in dims})
    return ranks[dims]


def ranks_of(
    counts: Tensor,
    triples: Tensor | Triples,
    sides: tuple[Any, ...],
    known: KnownTriples | None,
    *,
    is_filtered: bool,
    kind: type[Ranks] = Ranks,
) -> Ranks:
    """Return the result of one crop, from the counts ``[6, T, S]``."""
    greater, equal, beaten, tied, answers, sizes = counts.unbind()
    raw = kind(greater, equal, sizes, sides, triples, known=known)
    if not is_filtered:
        return raw
    greater, equal, sizes = greater - beaten, equal - tied, sizes - answers
    return kind(greater, equal, sizes, sides, triples, raw=raw, known=known)


def warn_without_candidates(
    sizes: Tensor, hrt: Tensor, sides: tuple[Side, ...], names: Names
) -> None:
    """Count triples without candidates in a warning, from numbers of candidates ``[T, S]``."""
    missing = (sizes == 0).nonzero()
    if len(missing):
        row, column = missing[0].tolist()
        relation = int(hrt[row, 1])
        name = shown(relation if names[1] is None else names[1].name(relation))
        warnings.warn(
            f"candidate_ids: {len(missing[:, 0].unique()):,} of {len(sizes):,} triples have no "
            f"candidates on a side, first triples[{row}], of relation {name}, on the side "
            f"{sides[column]}: their rank there is 0, and metrics leave them out",
            stacklevel=3,
        )
