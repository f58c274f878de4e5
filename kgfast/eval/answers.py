"""Results of searches: facts, and answers to queries, with names, as text and as tables."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kgfast.frames import FRAMES, needed, score_column
from kgfast.graph import Vocabulary, VocabularyLike, named_columns, names_of
from kgfast.graph.named import Names, relation_names
from kgfast.models.base import Side
from kgfast.text import WIDTH, shortened

if TYPE_CHECKING:
    from pandas import DataFrame

_NAME = 17  # columns of a name in a repr: a query and an answer fit a line
_ANSWERS = 5  # answers to a query, and queries, in a repr


class SearchResult(ABC):
    """Rows with names and scores, which print as lines and make a table."""

    scores: Tensor
    _vocabularies: Names
    _shown = _ANSWERS  # rows of a repr

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _columns(self) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
        """Return the column of queries, columns of ids, and columns of numbers."""

    @abstractmethod
    def _title(self) -> str: ...

    @abstractmethod
    def _line(self, row: int) -> str: ...

    def __repr__(self) -> str:
        lines = [self._line(row) for row in range(min(len(self), self._shown))]
        return "\n".join([self._title(), *lines, *["..."] * (len(self) > self._shown)])

    def columns(self, vocabulary: VocabularyLike | None = None) -> dict[str, Any]:
        """Return columns of all rows: query, ids or names, rank, score, and labels of names.

        Facts have no query and no rank. ``vocabulary`` takes the place of the names of the result.
        """
        names = self._vocabularies if vocabulary is None else names_of(vocabulary)
        queries, ids, numbers = self._columns()
        named, labels = named_columns(ids, names)
        return {**queries, **named, **numbers, **labels}

    def to_frame(self, vocabulary: VocabularyLike | None = None) -> "DataFrame":
        """Return :meth:`columns` as a pandas DataFrame, best first; the index is the query.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        pd = needed("pandas", f"{type(self).__name__}.to_frame()", FRAMES)
        columns = self.columns(vocabulary)
        query = columns.pop("query", None)
        index = None if query is None else pd.Index(query, name="query", dtype="int64")
        frame: DataFrame = pd.DataFrame(columns, index=index)
        return frame


class Facts(SearchResult):
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
    >>> names = ["cat", "mouse"], ["eats"]
    >>> Facts(torch.tensor([[0, 0, 1]]), torch.tensor([-0.5]), vocabulary=names)
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

    def _columns(self) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
        ids = dict(zip(("head", "relation", "tail"), self.triples.unbind(1), strict=True))
        return {}, ids, {"score": score_column(self.scores)}

    def _title(self) -> str:
        return f"{len(self):,} fact" + ("" if len(self) == 1 else "s")

    def _line(self, row: int) -> str:
        triple = _triple(self.triples[row].tolist(), self._vocabularies)
        return f"{triple}  {_score_text(float(self.scores[row]))}"


class Answers(SearchResult):
    """Answers to each of B queries (h, r, ?), (?, r, t) or (h, ?, t)."""

    ids: Tensor

    def __init__(
        self, anchors: Tensor, others: Tensor, side: Side, names: Names, num_times: int | None
    ) -> None:
        self.anchors, self.side, self._vocabularies = anchors, side, names
        self.times = None if num_times is None else others % num_times
        self.heads = None if side == "head" else anchors
        relations = others if num_times is None else others // num_times
        self.relations = None if side == "relation" else relations
        self.tails = {"head": anchors, "relation": others}.get(side)

    def __len__(self) -> int:
        return len(self.anchors)

    def __getitem__(self, row: int) -> list[tuple[Any, float]]:
        """Return the (answer, score) pairs of one query."""
        ids, scores = self._row(range(len(self))[row])
        names = self._names_of_answers
        listed = ids.tolist() if names is None else names.names_of(ids)
        return list(zip(listed, scores.tolist(), strict=True))

    @abstractmethod
    def _row(self, row: int) -> tuple[Tensor, Tensor]:
        """Return ids and scores of the answers to a query."""

    @property
    def _names_of_answers(self) -> Vocabulary | None:
        return self._vocabularies[1 if self.side == "relation" else 0]

    def _ids_of(self, ids: Tensor, query: Tensor) -> dict[str, Tensor]:
        """Return the columns of answers ``ids`` and their queries."""
        queries = {"head": self.heads, "relation": self.relations, "tail": self.tails}
        if self.times is not None:
            queries["time"] = self.times
        return {name: ids if fixed is None else fixed[query] for name, fixed in queries.items()}

    def _line(self, row: int) -> str:
        ids, scores = (values.tolist() for values in self._row(row))
        answers = [
            f"{_text(id, self._names_of_answers)} {_score_text(score)}"
            for id, score in zip(ids[:_ANSWERS], scores, strict=False)
        ]
        queries = [self.heads, self.relations, self.tails]
        queries += [] if self.times is None else [self.times]
        triple = [None if fixed is None else int(fixed[row]) for fixed in queries]
        line = question = _triple(triple, self._vocabularies)
        for count in range(1, len(answers) + 1):
            dots = ", ..." if count < len(ids) else ""
            longer = f"{question}  {', '.join(answers[:count])}{dots}"
            if count > 1 and len(longer) > WIDTH:
                break
            line = longer
        return line

    def _kind(self) -> str:
        return f"{len(self):,} {self.side} {'query' if len(self) == 1 else 'queries'}"


class Predictions(Answers):
    """Best ``k`` answers to each of B queries.

    Attributes
    ----------
    scores : Tensor
        ``[B, k]``, from best to worst; float32, float64 for float64 tables. -inf for missing
        answers.
    ids : Tensor
        int64 ``[B, k]``, the entities (of side ``"relation"``, the relations) of these scores; -1
        for missing answers.
    heads, relations, tails, times : Tensor or None
        int64 ``[B]``: the queries; None for the predicted side, and for times of a model without.
    anchors : Tensor
        int64 ``[B]``: the heads, or the tails where heads are predicted.
    side : {"head", "relation", "tail"}
        The predicted side.

    Examples
    --------
    >>> import torch
    >>> top = Predictions(torch.tensor([[0.0, -1.0]]), torch.tensor([[1, 0]]), torch.tensor([0]),
    ...                   torch.tensor([0]), "tail")
    >>> top
    Predictions of 1 tail query, k = 2
    (0, 0, ?)  1 0, 0 -1
    >>> top[0]
    [(1, 0.0), (0, -1.0)]
    """

    def __init__(
        self,
        scores: Tensor,
        ids: Tensor,
        anchors: Tensor,
        others: Tensor,
        side: Side,
        names: Names = (None, None),
        num_times: int | None = None,
    ) -> None:
        super().__init__(anchors, others, side, names, num_times)
        self.scores, self.ids = scores, ids

    @property
    def k(self) -> int:
        """Number of answers to each query."""
        return self.ids.shape[1]

    def _columns(self) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
        is_answer = self.ids >= 0
        query, place = is_answer.nonzero(as_tuple=True)
        numbers = {"rank": (place + 1).tolist(), "score": score_column(self.scores[is_answer])}
        return {"query": query.tolist()}, self._ids_of(self.ids[is_answer], query), numbers

    def _row(self, row: int) -> tuple[Tensor, Tensor]:
        is_answer = self.ids[row] >= 0
        return self.ids[row][is_answer], self.scores[row][is_answer]

    def _title(self) -> str:
        return f"Predictions of {self._kind()}, k = {self.k:,}"


class AnswersAbove(Answers):
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
    heads, relations, tails, times, anchors, side
        The queries, as in :class:`Predictions`.

    Examples
    --------
    >>> answers = AnswersAbove(torch.tensor([0, 2, 2]), torch.tensor([1, 4]), torch.ones(2),
    ...                        torch.tensor([0, 3]), torch.tensor([0, 0]), "tail")
    >>> answers
    2 answers to 2 tail queries
    (0, 0, ?)  1 1, 4 1
    (3, 0, ?)
    >>> answers[0]
    [(1, 1.0), (4, 1.0)]
    """

    def __init__(
        self,
        indptr: Tensor,
        ids: Tensor,
        scores: Tensor,
        anchors: Tensor,
        others: Tensor,
        side: Side,
        names: Names = (None, None),
        num_times: int | None = None,
    ) -> None:
        super().__init__(anchors, others, side, names, num_times)
        self.indptr, self.ids, self.scores = indptr, ids, scores

    def _columns(self) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
        query = torch.repeat_interleave(self.indptr.diff(), output_size=len(self.ids))
        numbers = {"score": score_column(self.scores)}
        return {"query": query.tolist()}, self._ids_of(self.ids, query), numbers

    def _row(self, row: int) -> tuple[Tensor, Tensor]:
        answers = slice(int(self.indptr[row]), int(self.indptr[row + 1]))
        return self.ids[answers], self.scores[answers]

    def _title(self) -> str:
        answers = "answer" if len(self.ids) == 1 else "answers"
        return f"{len(self.ids):,} {answers} to {self._kind()}"


def _score_text(score: float) -> str:
    return f"{score + 0.0:.4g}"  # adding 0.0 drops the sign of a zero


def _triple(ids: Sequence[int | None], names: Names) -> str:
    of_relations = relation_names(names[1]) if len(ids) == 4 else (names[1],)
    columns = zip(ids, (names[0], of_relations[0], names[0], *of_relations[1:]), strict=True)
    words = ("?" if id is None else _text(id, vocabulary) for id, vocabulary in columns)
    return f"({', '.join(words)})"


def _text(id: int, names: Vocabulary | None) -> str:
    """Return an id, or its name with its label, cut to the width of a name, or twice of a label."""
    if names is None:
        return str(id)
    return shortened(names.text(id), 2 * _NAME if names.labels else _NAME)
