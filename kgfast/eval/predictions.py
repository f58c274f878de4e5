"""The result of a prediction: the best answers to each query, and their scores."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from kgfast.eval.metric_tables import texts
from kgfast.frames import WrittenTriples, needed
from kgfast.graph import Vocabulary, named_columns, names_of
from kgfast.text import WIDTH, html_table

if TYPE_CHECKING:
    from pandas import DataFrame

_SHOWN, _SHOWN_IN_HTML = 5, 10  # queries, and answers of each, in a repr
_NAME = 17  # columns of a name in a repr: so a query and an answer fit a line


class Predictions(WrittenTriples):
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
        vocabulary: Any = None,
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

    @property
    def k(self) -> int:
        """Answers to each query."""
        return self.ids.shape[1]

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        """Return the (entity, score) pairs of one query, or the predictions of some."""
        if isinstance(index, int):
            ids, scores = self.ids[index], self.scores[index]
            names, found = self._names_of_answers, ids[ids >= 0]
            listed = found.tolist() if names is None else names.names_of(found)
            return list(zip(listed, scores[ids >= 0].tolist(), strict=True))
        return self._of(lambda values: values[index])

    def to(self, device: torch.device | str) -> "Predictions":
        """Return the predictions on a device."""
        return self._of(lambda values: values.to(device))

    def _of(self, some: Callable[[Tensor], Tensor]) -> "Predictions":
        scores, ids, anchors = some(self.scores), some(self.ids), some(self.anchors)
        others, names = some(self._others), self._vocabularies
        return Predictions(scores, ids, anchors, others, self.side, vocabulary=names)

    def named(self, vocabulary: Any) -> "Predictions":
        """Return the predictions, shown with names.

        Parameters
        ----------
        vocabulary : pair of Vocabulary or lists of names, Dataset or Triples
            Names of entities and relations; each may be None.
        """
        return Predictions(
            self.scores, self.ids, self.anchors, self._others, self.side, vocabulary=vocabulary
        )

    def to_frame(self, vocabulary: Any = None) -> "DataFrame":
        """Return one row per query and answer, best first, as a pandas DataFrame.

        Parameters
        ----------
        vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
            Names of entities and relations, instead of ids; those of :meth:`named` by default.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        pd = needed("pandas", "Predictions.to_frame()")
        columns = self.columns(vocabulary)
        query = columns.pop("query")
        index = pd.Index(query, name="query", dtype="int64")
        frame: DataFrame = pd.DataFrame(columns, index=index)
        return frame

    def columns(self, vocabulary: Any = None) -> dict[str, Any]:
        """Return columns of all answers: query, triple, place from 1 on, score, and labels."""
        names = self._vocabularies if vocabulary is None else names_of(vocabulary)
        is_answer = self.ids >= 0
        query, place = is_answer.nonzero(as_tuple=True)
        queries = {"head": self.heads, "relation": self.relations, "tail": self.tails}
        triples, labels = named_columns(
            {
                name: self.ids[is_answer] if given is None else given[query]
                for name, given in queries.items()
            },
            names,
        )
        return {
            "query": query.tolist(),
            **triples,
            "rank": (place + 1).tolist(),
            "score": self.scores[is_answer].cpu().numpy(),
            **labels,
        }

    def _title(self) -> str:
        queries = "query" if len(self) == 1 else "queries"
        return f"Predictions of {len(self):,} {self.side} {queries}, k = {self.k:,}"

    def __repr__(self) -> str:
        lines = [self._line(row) for row in range(min(len(self), _SHOWN))]
        more = ["..."] if len(self) > _SHOWN else []
        return "\n".join([self._title(), *lines, *more])

    def _line(self, row: int) -> str:
        """Return a query and as many answers as fit beside it, at least one."""
        question = self._question(row, _NAME)
        answers = self._shown(row, _SHOWN, _NAME)
        room = WIDTH - len(question) - 2
        for count in range(len(answers), 0, -1):
            dots = ", ..." if count < self.k and count < self._num_answers(row) else ""
            text = ", ".join(answers[:count]) + dots
            if len(text) <= room or count == 1:
                return f"{question}  {text}"
        return f"{question}  "

    def _repr_html_(self) -> str:
        columns = min(self.k, _SHOWN_IN_HTML)
        rows = [
            (self._question(row), self._padded(row, columns))
            for row in range(min(len(self), _SHOWN_IN_HTML))
        ]
        note = f"... and {len(self) - len(rows):,} more" if len(self) > len(rows) else ""
        names = [str(place) for place in range(1, columns + 1)]
        return html_table(self._title(), names, rows, note)

    def _padded(self, row: int, columns: int) -> list[str]:
        answers = self._shown(row, columns)
        return answers + [""] * (columns - len(answers))

    def _shown(self, row: int, most: int, width: int | None = None) -> list[str]:
        """Return answers as text, names longer than ``width`` cut."""
        ids, scores = self.ids[row, :most], self.scores[row, :most]
        found = texts(ids[ids >= 0], self._names_of_answers, width)
        return [_answer(*it) for it in zip(found, scores[ids >= 0].tolist(), strict=True)]

    @property
    def _names_of_answers(self) -> Vocabulary | None:
        return self._vocabularies[1 if self.side == "relation" else 0]

    def _num_answers(self, row: int) -> int:
        return int((self.ids[row] >= 0).sum())

    def _question(self, row: int, width: int | None = None) -> str:
        parts = []
        for given, names in (
            (self.heads, self._vocabularies[0]),
            (self.relations, self._vocabularies[1]),
            (self.tails, self._vocabularies[0]),
        ):
            parts += ["?"] if given is None else texts(given[row : row + 1], names, width)
        return f"({', '.join(parts)})"


def _answer(entity: str, score: float) -> str:
    return f"{entity} {score + 0.0:.4g}"  # without the sign of a zero
