"""Base of results: the answers to each query, the best ones or all above a threshold, as text."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from kgfast.eval.written import Written, texts
from kgfast.frames import score_column
from kgfast.graph import Vocabulary, VocabularyLike, named_columns, names_of
from kgfast.graph.named import Names
from kgfast.text import WIDTH, html_table

_SHOWN, _SHOWN_IN_HTML = 5, 10  # queries in a repr, and answers of each
_NAME = 17  # columns of a name in a repr: so a query and an answer fit a line


class Answers(Written):
    """The answers to each of B queries."""

    scores: Tensor
    ids: Tensor
    _vocabularies: Names

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of queries."""

    @abstractmethod
    def _of(self, some: Callable[[Tensor], Tensor]) -> Self: ...

    @abstractmethod
    def _row(self, row: int) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def _longest(self) -> int: ...

    @abstractmethod
    def columns(self, vocabulary: VocabularyLike | None = None) -> dict[str, Any]:
        """Return columns of all answers: query, ids or names, score, labels."""

    @abstractmethod
    def _ids_of(self, ids: Tensor, query: Tensor) -> dict[str, Tensor]:
        """Return the columns of all answers ``ids`` and their queries."""

    @abstractmethod
    def _title(self) -> str: ...

    @abstractmethod
    def _question(self, row: int, width: int | None = None) -> str:
        """Return a query as text, names longer than ``width`` cut."""

    @property
    def _names_of_answers(self) -> Vocabulary | None:
        return self._vocabularies[0]

    def to(self, device: torch.device | str) -> Self:
        return self._of(lambda values: values.to(device))

    def named(self, vocabulary: VocabularyLike | None) -> Self:
        """Return the answers with names, which the repr then shows.

        Parameters
        ----------
        vocabulary : pair of Vocabulary or lists of names, Dataset or Triples
            Names of entities and relations; each may be None.
        """
        found = self._of(lambda values: values)
        found._vocabularies = names_of(vocabulary)
        return found

    def _columns(
        self, vocabulary: VocabularyLike | None, query: Tensor, ids: Tensor, own: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the columns of answers ``ids`` to queries, with ``own`` columns before labels."""
        names = self._vocabularies if vocabulary is None else names_of(vocabulary)
        named, labels = named_columns(self._ids_of(ids, query), names)
        return {"query": query.tolist(), **named, **own, **labels}

    def __repr__(self) -> str:
        lines = [self._line(row) for row in range(min(len(self), _SHOWN))]
        more = ["..."] if len(self) > _SHOWN else []
        return "\n".join([self._title(), *lines, *more])

    def _line(self, row: int) -> str:
        question = self._question(row, _NAME)
        answers = self._shown(row, _SHOWN, _NAME)
        room = WIDTH - len(question) - 2
        for count in range(len(answers), 0, -1):
            dots = ", ..." if count < len(self._row(row)[0]) else ""
            text = ", ".join(answers[:count]) + dots
            if len(text) <= room or count == 1:
                return f"{question}  {text}"
        return question

    def _repr_html_(self) -> str:
        columns = min(self._longest(), _SHOWN_IN_HTML)
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
        ids, scores = (values[:most] for values in self._row(row))
        found = texts(ids, self._names_of_answers, width)
        return [_answer(*it) for it in zip(found, scores.tolist(), strict=True)]

    def _pairs(self, row: int) -> list[tuple[Any, float]]:
        """Return the (answer, score) pairs of a query."""
        ids, scores = self._row(row)
        names = self._names_of_answers
        listed = ids.tolist() if names is None else names.names_of(ids)
        return list(zip(listed, scores.tolist(), strict=True))


class BestAnswers(Answers):
    """Best ``k`` answers to each of B queries: ``scores`` and ``ids [B, k]``, -1 for none."""

    @property
    def k(self) -> int:
        """Number of answers to each query."""
        return self.ids.shape[1]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        """Return the (answer, score) pairs of one query, or the answers to some queries."""
        if isinstance(index, int):
            return self._pairs(index)
        return self._of(lambda values: values[index])

    def columns(self, vocabulary: VocabularyLike | None = None) -> dict[str, Any]:
        """Return columns of all answers: query, ids or names, place from 1 on, score, labels."""
        is_answer = self.ids >= 0
        query, place = is_answer.nonzero(as_tuple=True)
        scores = score_column(self.scores[is_answer])
        own = {"rank": (place + 1).tolist(), "score": scores}
        return self._columns(vocabulary, query, self.ids[is_answer], own)

    def _row(self, row: int) -> tuple[Tensor, Tensor]:
        is_answer = self.ids[row] >= 0
        return self.ids[row][is_answer], self.scores[row][is_answer]

    def _longest(self) -> int:
        return self.k


def _answer(entity: str, score: float) -> str:
    return f"{entity} {score + 0.0:.4g}"  # adding 0.0 drops the sign of a zero
