"""The result of a prediction: the best answers to each query, and their scores."""

from collections.abc import Callable
from typing import Literal, Self

from torch import Tensor

from kgfast.eval.best_answers import BestAnswers
from kgfast.eval.metric_tables import texts
from kgfast.eval.written import WrittenTriples
from kgfast.graph import Vocabulary, VocabularyLike, names_of


class Predictions(BestAnswers, WrittenTriples):
    """The best ``k`` answers to each of B queries.

    Attributes
    ----------
    scores : Tensor
        ``[B, k]``, from best to worst; float32, float64 for float64 tables. -inf where there was
        no candidate left.
    ids : Tensor
        int64 ``[B, k]``, the entities (of side ``"relation"``, the relations) of these scores; -1
        where there was none.
    heads, relations, tails : Tensor or None
        int64 ``[B]``: the queries; None of what is predicted.
    anchors : Tensor
        int64 ``[B]``: the heads, or the tails where heads are predicted.
    side : {"head", "relation", "tail"}
        What is predicted.

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

    def __init__(
        self,
        scores: Tensor,
        ids: Tensor,
        anchors: Tensor,
        others: Tensor,
        side: Literal["head", "relation", "tail"],
        *,
        vocabulary: VocabularyLike | None = None,
    ) -> None:
        self.scores, self.ids, self.side = scores, ids, side
        self.anchors, self._others = anchors, others
        self._vocabularies = names_of(vocabulary)

    @property
    def heads(self) -> Tensor | None:
        """The heads of the queries, where they are not predicted."""
        return None if self.side == "head" else self.anchors

    @property
    def relations(self) -> Tensor | None:
        """The relations of the queries, where they are not predicted."""
        return None if self.side == "relation" else self._others

    @property
    def tails(self) -> Tensor | None:
        """The tails of the queries, where they are not predicted."""
        return {"head": self.anchors, "relation": self._others}.get(self.side)

    def _of(self, some: Callable[[Tensor], Tensor]) -> Self:
        scores, ids, anchors = some(self.scores), some(self.ids), some(self.anchors)
        others, names = some(self._others), self._vocabularies
        return type(self)(scores, ids, anchors, others, self.side, vocabulary=names)

    def _ids_of(self, is_answer: Tensor, query: Tensor) -> dict[str, Tensor]:
        queries = {"head": self.heads, "relation": self.relations, "tail": self.tails}
        return {
            name: self.ids[is_answer] if given is None else given[query]
            for name, given in queries.items()
        }

    @property
    def _names_of_answers(self) -> Vocabulary | None:
        return self._vocabularies[1 if self.side == "relation" else 0]

    def _title(self) -> str:
        queries = "query" if len(self) == 1 else "queries"
        return f"Predictions of {len(self):,} {self.side} {queries}, k = {self.k:,}"

    def _question(self, row: int, width: int | None = None) -> str:
        parts = []
        for given, names in (
            (self.heads, self._vocabularies[0]),
            (self.relations, self._vocabularies[1]),
            (self.tails, self._vocabularies[0]),
        ):
            parts += ["?"] if given is None else texts(given[row : row + 1], names, width)
        return f"({', '.join(parts)})"
