"""The result of top_facts(): the best new facts, with scores."""

from typing import Any

from torch import Tensor

from kgfast.eval.metric_tables import texts
from kgfast.eval.written import WrittenTriples
from kgfast.frames import score_column
from kgfast.graph import VocabularyLike, named_columns, names_of
from kgfast.text import html_table

_SHOWN, _SHOWN_IN_HTML = 10, 20
_NAME = 20  # columns of a name in a repr


class Facts(WrittenTriples):
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

    def __init__(
        self, triples: Tensor, scores: Tensor, *, vocabulary: VocabularyLike | None = None
    ) -> None:
        self.triples, self.scores = triples, scores
        self._vocabularies = names_of(vocabulary)

    def __len__(self) -> int:
        return len(self.triples)

    def named(self, vocabulary: VocabularyLike | None) -> "Facts":
        """Return the facts with names, which the repr then shows.

        Parameters
        ----------
        vocabulary : pair of Vocabulary or lists of names, Dataset or Triples
            Names of entities and relations; each may be None.
        """
        return Facts(self.triples, self.scores, vocabulary=vocabulary)

    def columns(self, vocabulary: VocabularyLike | None = None) -> dict[str, Any]:
        """Return columns ``head``, ``relation``, ``tail`` of names or ids, and ``score``.

        Names with labels add columns ``head_label``, ``relation_label`` and ``tail_label``.
        """
        names = self._vocabularies if vocabulary is None else names_of(vocabulary)
        columns = zip(("head", "relation", "tail"), self.triples.unbind(1), strict=True)
        triples, labels = named_columns(dict(columns), names)
        return {**triples, "score": score_column(self.scores), **labels}

    def _title(self) -> str:
        return f"{len(self):,} fact" + ("" if len(self) == 1 else "s")

    def _rows(self, most: int, width: int | None = None) -> list[tuple[str, str]]:
        entities, relations = self._vocabularies
        columns = [
            texts(ids, names, width)
            for ids, names in zip(
                self.triples[:most].unbind(1), (entities, relations, entities), strict=True
            )
        ]
        scores = self.scores[:most].tolist()
        return [
            (f"({', '.join(triple)})", f"{score + 0.0:.4g}")
            for *triple, score in zip(*columns, scores, strict=True)
        ]

    def __repr__(self) -> str:
        lines = [f"{triple}  {score}" for triple, score in self._rows(_SHOWN, _NAME)]
        more = ["..."] if len(self) > _SHOWN else []
        return "\n".join([self._title(), *lines, *more])

    def _repr_html_(self) -> str:
        rows = [(triple, [score]) for triple, score in self._rows(_SHOWN_IN_HTML)]
        note = f"... and {len(self) - len(rows):,} more" if len(self) > len(rows) else ""
        return html_table(self._title(), ["score"], rows, note)
