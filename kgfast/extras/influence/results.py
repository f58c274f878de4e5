"""Results: the strongest examples of each test triple."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kgfast.extras.influence.examples import Examples
from kgfast.frames import needed
from kgfast.graph import VocabularyLike, named_columns, names_of

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Strongest:
    """The k strongest examples of each test triple, the strongest first; ties by the lowest id.

    Attributes
    ----------
    ids : Tensor
        int64 ``[M, k]``, ids of examples.
    values : Tensor
        ``[M, k]``, influences.
    """

    ids: Tensor
    values: Tensor

    @classmethod
    def of(cls, matrix: Tensor, k: int, *, descending: bool) -> "Strongest":
        """Select the k strongest of influences ``[M, T]``."""
        k = min(k, matrix.shape[1])
        values = matrix.new_empty(len(matrix), k)
        ids = torch.empty(values.shape, dtype=torch.int64, device=values.device)
        for row, influences in enumerate(matrix):  # sorting all rows at once takes memory
            best = influences.sort(stable=True, descending=descending)
            values[row], ids[row] = best.values[:k], best.indices[:k]
        return cls(ids, values)


@dataclass(frozen=True, repr=False)
class Influences:
    """Influences of training examples on test triples.

    Attributes
    ----------
    proponents, opponents : Strongest
        The k highest and the k lowest influences: examples with gradients that agree most, and
        disagree most, with the gradient of the test triple. If fewer than k examples are
        proponents, the k highest influences have some below 0. Columns name each by its sign.
    examples : Examples
        The examples that ids refer to.
    test : Tensor
        int64 ``[M, 3]``.
    checkpoints : list of str
    rates : list of float
    matrix : Tensor
        All influences, ``[M, T]``.
    """

    proponents: Strongest
    opponents: Strongest
    examples: Examples
    test: Tensor
    checkpoints: list[str]
    rates: list[float]
    matrix: Tensor

    @property
    def ids(self) -> Tensor:
        """Ids of the proponents, int64 ``[M, k]``."""
        return self.proponents.ids

    @property
    def values(self) -> Tensor:
        """Influences of the proponents, ``[M, k]``, the strongest first."""
        return self.proponents.values

    def columns(self, vocabulary: VocabularyLike | None = None) -> dict[str, Any]:
        """Return a row for each test triple and example, as NumPy columns or lists.

        Parameters
        ----------
        vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
            Entities and relations, to have names instead of ids.

        Returns
        -------
        dict
            ``test`` (row of the test triple), ``kind`` (``proponent`` for influences above 0,
            ``opponent`` below 0, ``neutral`` for 0), ``influence``, ``head``, ``relation``,
            ``tail`` of the example, and the side that the example ``predicts``. If an example is a
            query with all its answers, the predicted entity is ``?`` (-1 without names). Names with
            labels add ``head_label``, ``relation_label`` and ``tail_label``.
        """
        ids = torch.cat([self.proponents.ids, self.opponents.ids], 1)
        influences = torch.cat([self.proponents.values, self.opponents.values], 1).flatten()
        tests = torch.arange(len(ids), dtype=torch.int64, device="cpu").repeat_interleave(
            ids.shape[1]
        )
        triples = self.examples.hrt[ids.flatten()].T.tolist()
        named, labels = named_columns(
            dict(zip(("head", "relation", "tail"), triples, strict=True)), names_of(vocabulary)
        )
        signs = influences.sign().int().tolist()
        return {
            "test": tests.tolist(),
            "kind": [("neutral", "proponent", "opponent")[sign] for sign in signs],
            "influence": influences.tolist(),
            **named,
            "predicts": [self.examples.side_of(example) for example in ids.flatten().tolist()],
            **labels,
        }

    def to_frame(self, vocabulary: VocabularyLike | None = None) -> "DataFrame":
        """Return :meth:`columns` as a pandas DataFrame."""
        frame: DataFrame = needed("pandas", "Influences.to_frame()").DataFrame(
            self.columns(vocabulary)
        )
        return frame

    def __repr__(self) -> str:
        tests, k = self.ids.shape
        return (
            f"Influences of {len(self.examples):,} training examples on {tests:,} test triples "
            f"at {len(self.checkpoints)} checkpoint{'' if len(self.checkpoints) == 1 else 's'}, "
            f"{k} proponents and opponents each"
        )
