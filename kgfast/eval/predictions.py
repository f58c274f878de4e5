"""The results of predictions: the best answers to each query, or all above a threshold."""

from typing import Any

import torch
from torch import Tensor

from kgfast.eval.written import Answers, BestAnswers, texts
from kgfast.frames import score_column
from kgfast.graph import Vocabulary, VocabularyLike, names_of
from kgfast.models.base import Side


class _OfTriples(Answers):
    """Answers to queries (h, r, ?), (?, r, t) or (h, ?, t)."""

    anchors: Tensor
    side: Side
    _others: Tensor

    @property
    def heads(self) -> Tensor | None:
        """Heads of the queries; None where heads are predicted."""
        return None if self.side == "head" else self.anchors

    @property
    def relations(self) -> Tensor | None:
        """Relations of the queries; None where relations are predicted."""
        return None if self.side == "relation" else self._others

    @property
    def tails(self) -> Tensor | None:
        """Tails of the queries; None where tails are predicted."""
        return {"head": self.anchors, "relation": self._others}.get(self.side)

    def _ids_of(self, ids: Tensor, query: Tensor) -> dict[str, Tensor]:
        queries = {"head": self.heads, "relation": self.relations, "tail": self.tails}
        return {name: ids if given is None else given[query] for name, given in queries.items()}

    @property
    def _names_of_answers(self) -> Vocabulary | None:
        return self._vocabularies[1 if self.side == "relation" else 0]

    def _question(self, row: int, width: int | None = None) -> str:
        parts = []
        for given, names in (
            (self.heads, self._vocabularies[0]),
            (self.relations, self._vocabularies[1]),
            (self.tails, self._vocabularies[0]),
        ):
            parts += ["?"] if given is None else texts(given[row : row + 1], names, width)
        return f"({', '.join(parts)})"


class Predictions(BestAnswers, _OfTriples):
    """Best ``k`` answers to each of B queries.

    Attributes
    ----------
    scores : Tensor
        ``[B, k]``, from best to worst; float32, float64 for float64 tables. -inf for missing
        answers.
    ids : Tensor
        int64 ``[B, k]``, the entities (of side ``"relation"``, the relations) of these scores; -1
        for missing answers.
    heads, relations, tails : Tensor or None
        int64 ``[B]``: the queries; None for the predicted side.
    anchors : Tensor
        int64 ``[B]``: the heads, or the tails where heads are predicted.
    side : {"head", "relation", "tail"}
        The predicted side.

    Examples
    --------
    >>> import torch
    >>> top = Predictions(torch.tensor([[0.0, -1.0]]), torch.tensor([[1, 0]]),
    ...                   torch.tensor([0]), torch.tensor([0]), "tail")
    >>> top[0]
    [(1, 0.0), (0, -1.0)]
    >>> from kgfast import Vocabulary
    >>> top.named((Vocabulary(["cat", "mouse"]), Vocabulary(["eats"])))
    Predictions of 1 tail query, k = 2
    (cat, eats, ?)  mouse 0, cat -1
    """

    tensors = ("scores", "ids", "anchors", "_others")

    def __init__(
        self,
        scores: Tensor,
        ids: Tensor,
        anchors: Tensor,
        others: Tensor,
        side: Side,
        *,
        vocabulary: VocabularyLike | None = None,
    ) -> None:
        self.scores, self.ids, self.side = scores, ids, side
        self.anchors, self._others = anchors, others
        self._vocabularies = (None, None) if vocabulary is None else names_of(vocabulary)

    def _title(self) -> str:
        queries = "query" if len(self) == 1 else "queries"
        return f"Predictions of {len(self):,} {self.side} {queries}, k = {self.k:,}"


class AnswersAbove(_OfTriples):
    """All answers to each of B queries with scores that reach a threshold, as CSR.

    Attributes
    ----------
    indptr : Tensor
        int64 ``[B + 1]``: query i has the answers ``indptr[i] .. indptr[i + 1] - 1``.
    ids : Tensor
        int64 ``[nnz]``, ascending in each row: the entities (of side ``"relation"``, the relations)
        of these scores.
    scores : Tensor
        ``[nnz]``; float32, float64 for float64 tables.
    heads, relations, tails : Tensor or None
        int64 ``[B]``: the queries; None for the predicted side.
    anchors : Tensor
        int64 ``[B]``: the heads, or the tails where heads are predicted.
    side : {"head", "relation", "tail"}
        The predicted side.

    Examples
    --------
    >>> found = AnswersAbove(torch.tensor([0, 2, 2]), torch.tensor([1, 4]), torch.ones(2),
    ...                      torch.tensor([0, 3]), torch.tensor([0, 0]), "tail")
    >>> found
    2 answers to 2 tail queries
    (0, 0, ?)  1 1, 4 1
    (3, 0, ?)
    >>> found[0]
    [(1, 1.0), (4, 1.0)]
    """

    tensors = ("indptr", "ids", "scores", "anchors", "_others")

    def __init__(
        self,
        indptr: Tensor,
        ids: Tensor,
        scores: Tensor,
        anchors: Tensor,
        others: Tensor,
        side: Side,
        *,
        vocabulary: VocabularyLike | None = None,
    ) -> None:
        self.indptr, self.ids, self.scores, self.side = indptr, ids, scores, side
        self.anchors, self._others = anchors, others
        self._vocabularies = (None, None) if vocabulary is None else names_of(vocabulary)

    def __len__(self) -> int:
        return len(self.anchors)

    def __getitem__(self, row: int) -> list[tuple[Any, float]]:
        """Return the (answer, score) pairs of one query, ids ascending."""
        return self._pairs(range(len(self))[row])

    def columns(self, vocabulary: VocabularyLike | None = None) -> dict[str, Any]:
        """Return columns of all answers: query, ids or names, score, labels."""
        query = torch.repeat_interleave(self.indptr.diff(), output_size=len(self.ids))
        own = {"score": score_column(self.scores)}
        return self._columns(vocabulary, self._ids_of(self.ids, query), own, query)

    def _row(self, row: int) -> tuple[Tensor, Tensor]:
        own = slice(int(self.indptr[row]), int(self.indptr[row + 1]))
        return self.ids[own], self.scores[own]

    def _title(self) -> str:
        answers = "answer" if len(self.ids) == 1 else "answers"
        queries = "query" if len(self) == 1 else "queries"
        return f"{len(self.ids):,} {answers} to {len(self):,} {self.side} {queries}"
