"""Bases of results: named answers or triples, as text, tables of other programs, and files."""

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from kgfast.frames import Columns, needed, score_column, write_columns
from kgfast.graph import Vocabulary, VocabularyLike, named_columns, names_of
from kgfast.graph.named import Names
from kgfast.text import WIDTH, shortened

if TYPE_CHECKING:
    from pandas import DataFrame

_NAME = 17  # columns of a name in a repr: so a query and an answer fit a line


class Written(ABC):
    """Result with columns and names, which prints as a table and can be written to files."""

    _vocabularies: Names
    _shown = 5  # rows in a repr

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of queries or triples."""

    @abstractmethod
    def columns(self, vocabulary: VocabularyLike | None = None) -> Columns:
        """Return the columns, with the names of ``vocabulary`` or the names of the result."""

    def _columns(
        self,
        vocabulary: VocabularyLike | None,
        ids: dict[str, Tensor],
        own: dict[str, Any],
        query: Tensor | None = None,
    ) -> dict[str, Any]:
        """Return the columns of ids as names, then ``own`` columns, then labels."""
        names = self._vocabularies if vocabulary is None else names_of(vocabulary)
        named, labels = named_columns(ids, names)
        first = {} if query is None else {"query": query.tolist()}
        return {**first, **named, **own, **labels}

    @abstractmethod
    def _title(self) -> str: ...

    @abstractmethod
    def _line(self, row: int) -> str: ...

    def __repr__(self) -> str:
        lines = [self._line(row) for row in range(min(len(self), self._shown))]
        more = ["..."] if len(self) > self._shown else []
        return "\n".join([self._title(), *lines, *more])

    def named(self, vocabulary: VocabularyLike | None) -> Self:
        """Return the result with names, which the repr then shows.

        Parameters
        ----------
        vocabulary : pair of Vocabulary or lists of names, Dataset or Triples
            Names of entities and relations; each may be None.
        """
        found = copy.copy(self)
        found._vocabularies = names_of(vocabulary)
        return found

    def to_frame(self, vocabulary: VocabularyLike | None = None) -> "DataFrame":
        """Return one row per fact or answer, best first, as a pandas DataFrame.

        A column ``query`` becomes the index.

        Parameters
        ----------
        vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
            Names of entities and relations, instead of ids; by default the names given to
            ``named()``.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        pd = needed("pandas", f"{type(self).__name__}.to_frame()")
        columns = dict(self.columns(vocabulary))
        query = columns.pop("query", None)
        index = None if query is None else pd.Index(query, name="query", dtype="int64")
        frame: DataFrame = pd.DataFrame(columns, index=index)
        return frame

    def to_csv(self, path: str | os.PathLike[str], *, safe_cells: bool = False) -> Path:
        """Write the columns of :meth:`to_frame` as CSV, or as TSV for ``.tsv``; needs no pandas.

        Parameters
        ----------
        path
        safe_cells : bool
            Write for spreadsheets, which compute cells that begin with ``=``, ``+``, ``-`` or
            ``@``. A ``'`` is put before such names, and all text is quoted. Programs that read the
            file need unchanged names.
        """
        return write_columns(self.columns(), path, safe_cells=safe_cells)

    def to_parquet(self, path: str | os.PathLike[str]) -> Path:
        """Write the columns of :meth:`to_frame` as Parquet.

        Raises
        ------
        ImportError
            If pyarrow is not installed.
        """
        return write_columns(self.columns(), path)


class Answers(Written):
    """The answers to each of B queries, in ``tensors`` that are attributes."""

    tensors: tuple[str, ...] = ()
    scores: Tensor
    ids: Tensor

    @abstractmethod
    def _row(self, row: int) -> tuple[Tensor, Tensor]:
        """Return ids and scores of the answers to a query."""

    @abstractmethod
    def _ids_of(self, ids: Tensor, query: Tensor) -> dict[str, Tensor]:
        """Return the columns of all answers ``ids`` and their queries."""

    @abstractmethod
    def _question(self, row: int, width: int | None = None) -> str:
        """Return a query as text, names longer than ``width`` cut."""

    @property
    def _names_of_answers(self) -> Vocabulary | None:
        return self._vocabularies[0]

    def _of(self, some: Callable[[Tensor], Tensor]) -> Self:
        found = copy.copy(self)
        for name in self.tensors:
            setattr(found, name, some(getattr(self, name)))
        return found

    def to(self, device: torch.device | str) -> Self:
        return self._of(lambda values: values.to(device))

    def _line(self, row: int) -> str:
        question = self._question(row, _NAME)
        answers = self._texts(row, self._shown, _NAME)
        room = WIDTH - len(question) - 2
        for count in range(len(answers), 0, -1):
            dots = ", ..." if count < len(self._row(row)[0]) else ""
            text = ", ".join(answers[:count]) + dots
            if len(text) <= room or count == 1:
                return f"{question}  {text}"
        return question

    def _texts(self, row: int, most: int, width: int | None = None) -> list[str]:
        """Return answers as text, names longer than ``width`` cut."""
        ids, scores = (values[:most] for values in self._row(row))
        answers = texts(ids, self._names_of_answers, width)
        return [f"{it} {score_text(own)}" for it, own in zip(answers, scores.tolist(), strict=True)]

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
        return self._columns(vocabulary, self._ids_of(self.ids[is_answer], query), own, query)

    def _row(self, row: int) -> tuple[Tensor, Tensor]:
        is_answer = self.ids[row] >= 0
        return self.ids[row][is_answer], self.scores[row][is_answer]


def score_text(score: float) -> str:
    return f"{score + 0.0:.4g}"  # adding 0.0 drops the sign of a zero


def texts(ids: Tensor, names: Vocabulary | None, width: int | None = None) -> list[str]:
    """Return names with their labels, or the ids where there are no names.

    A text without a label has at most ``width`` columns. A text with a label has at most twice as
    many, since people read labels and not identifiers.
    """
    found = ids.tolist() if names is None else [names.text(id) for id in ids.tolist()]
    if width is None:
        return [str(it) for it in found]
    room = 2 * width if names is not None and names.labels else width
    return [shortened(str(it), room) for it in found]
