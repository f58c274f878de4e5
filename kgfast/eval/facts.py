"""top_facts(): the best new facts among all triples, or in a slice of all triples."""

import os
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.candidates import checked_ids_of
from kgfast.eval.driver import Call
from kgfast.eval.fact_search import FactSearch, Slice
from kgfast.eval.preparation import check_known, check_names, check_rankable, checked_batch_size
from kgfast.eval.written import Written, score_text, texts
from kgfast.frames import score_column
from kgfast.graph import IdsLike, KnownTriples, VocabularyLike, names_of
from kgfast.models import BlockScorer, RankableModel
from kgfast.ops.checks import check_unique
from kgfast.ops.topk import check_k

_NAME = 20  # columns of a name in a repr


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
) -> "Facts":
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
    check_known(known)
    check_k(k, None)
    names = names_of(vocabulary)
    check_names(names, model)
    entities, own = (int(model.num_entities), names[0]), (int(model.num_relations), names[1])
    given = Slice(
        _axis("heads", heads, *entities),
        _axis("relations", relations, *own),
        None if tails is None else _axis("tails", tails, *entities),
    )
    call = Call(model, "searching", max_memory=max_memory, partial=partial, progress=progress)
    search = FactSearch(call.model, given, known, k, checked_batch_size(batch_size, model), names)
    call.run(search)
    return Facts(*search.found, vocabulary=names)


def _axis(name: str, values: Any, count: int, names: Any) -> Tensor:
    """Return the ascending ids of a slice; all ids for None."""
    if values is None:
        return torch.arange(count, dtype=torch.int64, device="cpu")
    ids = checked_ids_of(name, values, count, names).reshape(-1).cpu()
    check_unique(name, ids)
    return ids.sort().values


class Facts(Written):
    """Triples from best to worst, and scores.

    Attributes
    ----------
    triples : Tensor
        int64 ``[k, 3]``, (h, r, t).
    scores : Tensor
        ``[k]``: canonical scores rounded once to float32; float64 for float64 tables. Facts are
        ordered by the scores before rounding, then by the lowest (h, r, t).

    Examples
    --------
    >>> import torch
    >>> from kgfast import Vocabulary
    >>> facts = Facts(torch.tensor([[0, 0, 1]]), torch.tensor([-0.5]))
    >>> facts.named((Vocabulary(["cat", "mouse"]), Vocabulary(["eats"])))
    1 fact
    (cat, eats, mouse)  -0.5
    """

    _shown = 10

    def __init__(
        self, triples: Tensor, scores: Tensor, *, vocabulary: VocabularyLike | None = None
    ) -> None:
        self.triples, self.scores = triples, scores
        self._vocabularies = names_of(vocabulary)

    def __len__(self) -> int:
        return len(self.triples)

    def columns(self, vocabulary: VocabularyLike | None = None) -> dict[str, Any]:
        """Return columns ``head``, ``relation``, ``tail`` of names or ids, and ``score``.

        Names with labels add columns ``head_label``, ``relation_label`` and ``tail_label``.
        """
        ids = dict(zip(("head", "relation", "tail"), self.triples.unbind(1), strict=True))
        return self._columns(vocabulary, ids, {"score": score_column(self.scores)})

    def _title(self) -> str:
        return f"{len(self):,} fact" + ("" if len(self) == 1 else "s")

    def _texts(self, row: int, width: int | None = None) -> tuple[str, str]:
        """Return a triple and its score, names longer than ``width`` cut."""
        entities, relations = self._vocabularies
        names = entities, relations, entities
        ids = self.triples[row].split(1)
        triple = [texts(*it, width)[0] for it in zip(ids, names, strict=True)]
        return f"({', '.join(triple)})", score_text(float(self.scores[row]))

    def _line(self, row: int) -> str:
        return "  ".join(self._texts(row, _NAME))
