"""The result of a prediction: the best answers to each query, and their scores."""

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from kgfast.graph import Vocabulary, names_of

if TYPE_CHECKING:
    from pandas import DataFrame

_SHOWN = 5  # queries, and answers of each, in a repr


class Predictions:
    """The best ``k`` answers to each of B queries.

    Attributes
    ----------
    scores : Tensor
        ``[B, k]``, from best to worst; float32, float64 for float64 tables. -inf where there was
        no candidate left.
    ids : Tensor
        int64 ``[B, k]``, the entities of these scores; -1 where there was none.
    anchors, relations : Tensor
        int64 ``[B]``: the queries.
    side : {"head", "tail"}
        What is predicted.

    Examples
    --------
    >>> top = Predictions(torch.tensor([[0.0, -1.0]]), torch.tensor([[1, 0]]),
    ...                   torch.tensor([0]), torch.tensor([0]), "tail")
    >>> top[0]
    [(1, 0.0), (0, -1.0)]
    >>> top.named((Vocabulary(["cat", "mouse"]), Vocabulary(["eats"])))
    Predictions of 1 tail query, k = 2
    (cat, eats, ?)  mouse 0, cat -1
    """

    def __init__(
        self,
        scores: Tensor,
        ids: Tensor,
        anchors: Tensor,
        relations: Tensor,
        side: Literal["head", "tail"],
        *,
        vocabulary: Any = None,
    ) -> None:
        self.scores, self.ids, self.side = scores, ids, side
        self.anchors, self.relations = anchors, relations
        self._vocabularies = names_of(vocabulary)

    @property
    def k(self) -> int:
        """Answers to each query."""
        return self.ids.shape[1]

    def __len__(self) -> int:
        """Number of queries."""
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        """The (entity, score) pairs of one query, or the predictions of some."""
        if isinstance(index, int):
            return self._answers(index, self.k)
        return Predictions(
            self.scores[index],
            self.ids[index],
            self.anchors[index],
            self.relations[index],
            self.side,
            vocabulary=self._vocabularies,
        )

    def to(self, device: torch.device | str) -> "Predictions":
        """The same predictions on a device."""
        return Predictions(
            self.scores.to(device),
            self.ids.to(device),
            self.anchors.to(device),
            self.relations.to(device),
            self.side,
            vocabulary=self._vocabularies,
        )

    def named(self, vocabulary: Any) -> "Predictions":
        """The same predictions, shown with names.

        Parameters
        ----------
        vocabulary : pair of Vocabulary, Dataset or Triples
            Names of entities and relations; each may be None.
        """
        return Predictions(
            self.scores, self.ids, self.anchors, self.relations, self.side, vocabulary=vocabulary
        )

    def to_frame(self, vocabulary: Any = None) -> "DataFrame":
        """One row per query and answer, best first, as a pandas DataFrame.

        Parameters
        ----------
        vocabulary : pair of Vocabulary, Dataset or Triples, optional
            Names of entities and relations, instead of ids; those of :meth:`named` by default.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        import pandas as pd

        names = self._vocabularies if vocabulary is None else names_of(vocabulary)
        found = self.ids >= 0
        query, place = found.nonzero(as_tuple=True)
        anchors = _named(self.anchors[query], names[0])
        answers = _named(self.ids[found], names[0])
        heads, tails = (anchors, answers) if self.side == "tail" else (answers, anchors)
        columns = {
            "head": heads,
            "relation": _named(self.relations[query], names[1]),
            "tail": tails,
            "rank": (place + 1).tolist(),
            "score": self.scores[found].cpu().numpy(),
        }
        return pd.DataFrame(columns, index=pd.Index(query.tolist(), name="query", dtype="int64"))

    def __repr__(self) -> str:
        count = len(self)
        lines = [
            f"Predictions of {count:,} {self.side} {'query' if count == 1 else 'queries'}, "
            f"k = {self.k:,}"
        ]
        for row in range(min(count, _SHOWN)):
            answers = [
                f"{entity} {score + 0.0:.4g}" for entity, score in self._answers(row, _SHOWN)
            ]
            dots = ", ..." if self.k > _SHOWN else ""
            lines.append(f"{self._question(row)}  {', '.join(answers)}{dots}")
        return "\n".join(lines + (["..."] if count > _SHOWN else []))

    def _answers(self, row: int, most: int) -> list[tuple[Any, float]]:
        found = self.ids[row, :most] >= 0
        names = _named(self.ids[row, :most][found], self._vocabularies[0])
        return list(zip(names, self.scores[row, :most][found].tolist(), strict=True))

    def _question(self, row: int) -> str:
        (anchor,) = _named(self.anchors[row : row + 1], self._vocabularies[0])
        (relation,) = _named(self.relations[row : row + 1], self._vocabularies[1])
        return f"({anchor}, {relation}, ?)" if self.side == "tail" else f"(?, {relation}, {anchor})"


def _named(ids: Tensor, names: Vocabulary | None) -> list[Any]:
    return ids.tolist() if names is None else names.names_of(ids)
