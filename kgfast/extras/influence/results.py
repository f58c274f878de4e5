"""Results: the strongest examples of each test triple."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kgfast.extras.influence.examples import ExampleQueries, Examples
from kgfast.frames import needed
from kgfast.graph import VocabularyLike, named_columns, names_of

if TYPE_CHECKING:
    from pandas import DataFrame


# Influences of examples on one test triple each, by the row of the test triple.
Products = Callable[[list[tuple[int, ExampleQueries]]], list[Tensor]]
_TRIPLE = ("head", "relation", "tail")


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
    def none(cls, count: int, dtype: torch.dtype, device: torch.device) -> "Strongest":
        """Return the empty result of ``count`` test triples."""
        ids = torch.empty(count, 0, dtype=torch.int64, device=device)
        return cls(ids, torch.empty(count, 0, dtype=dtype, device=device))

    def taking(self, ids: Tensor, values: Tensor, k: int, *, descending: bool) -> "Strongest":
        """Merge in examples ``ids [B]`` with influences ``values [M, B]``."""
        both = torch.cat([self.values, values], 1)
        rows, k = len(both), min(k, both.shape[1])
        worst = torch.topk(both, k, largest=descending, sorted=False).values
        worst = worst.amin(1, keepdim=True) if descending else worst.amax(1, keepdim=True)
        row, place = (both >= worst if descending else both <= worst).nonzero(as_tuple=True)
        found, earlier = both[row, place], self.ids.shape[1]
        of_found, is_earlier = ids[(place - earlier).clamp_min(0)], place < earlier
        of_found[is_earlier] = self.ids[row[is_earlier], place[is_earlier]]
        order = of_found.argsort(stable=True)
        order = order[found[order].argsort(stable=True, descending=descending)]
        order = order[row[order].argsort(stable=True)]
        row, found, of_found = row[order], found[order], of_found[order]
        first = torch.searchsorted(row, torch.arange(rows, dtype=torch.int64, device=row.device))
        best = first[:, None] + torch.arange(k, dtype=torch.int64, device=row.device)
        return Strongest(of_found[best], found[best])


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
    matrix : Tensor or None
        ``[M, T]``, mapped from the file ``out``.
    """

    proponents: Strongest
    opponents: Strongest
    examples: Examples
    test: Tensor
    checkpoints: list[str]
    rates: list[float]
    matrix: Tensor | None
    _products: Products

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
        pairs = self._pairs()
        triples = self.examples.hrt[[example for _, _, example, _ in pairs]].tolist()
        rows = [
            (test, _kind_of(value), value, *triple, self.examples.side_of(example))
            for (test, _, example, value), triple in zip(pairs, triples, strict=True)
        ]
        return _table(("test", "kind", "influence", *_TRIPLE, "predicts"), rows, vocabulary)

    def triples(self, vocabulary: VocabularyLike | None = None) -> dict[str, Any]:
        """Return a row for each training triple of the strongest examples, like :meth:`columns`.

        The loss of a query with all its answers is linear in its labels: the loss without answers,
        and a term for each answer. The share of a triple is the influence of the triple's term and
        of an equal part of the loss without answers. So the shares of a query add up to the
        influence of the query. A call computes gradients of these triples again at each checkpoint.

        Parameters
        ----------
        vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
            See :meth:`columns`.

        Returns
        -------
        dict
            The columns of :meth:`columns`, where ``influence`` is that of the triple. Before it
            stands ``of_query``, the influence of the whole query. If examples are triples, both are
            equal. Triples of a query are sorted by influence, as queries are.
        """
        if self.examples.known is None:
            columns = self.columns(vocabulary)
            front = {name: columns.pop(name) for name in ("test", "kind")}
            return front | {"of_query": columns["influence"]} | columns
        pairs = self._pairs()
        parts = [self.examples.by_answer(example) for _, _, example, _ in pairs]
        products = self._products(
            [(pair[0], part) for pair, part in zip(pairs, parts, strict=True)]
        )
        rows: list[tuple[Any, ...]] = []
        for (test, is_high, _, whole), part, own in zip(pairs, parts, products, strict=True):
            shares = own.double()
            shares += (whole - shares.sum()) / len(part)
            order = shares.argsort(stable=True, descending=is_high)
            triples = part.part(order).triples().tolist()
            for share, triple in zip(shares[order].tolist(), triples, strict=True):
                rows.append((test, _kind_of(whole), whole, share, *triple, part.side))
        names = ("test", "kind", "of_query", "influence", *_TRIPLE, "predicts")
        return _table(names, rows, vocabulary)

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

    def _pairs(self) -> list[tuple[int, bool, int, float]]:
        """List the row of a test triple, proponent or not, example and influence."""
        return [
            (test, is_high, example, value)
            for test in range(len(self.test))
            for is_high, found in ((True, self.proponents), (False, self.opponents))
            for example, value in zip(
                found.ids[test].tolist(), found.values[test].tolist(), strict=True
            )
        ]


def _table(
    names: Sequence[str], rows: Sequence[tuple[Any, ...]], vocabulary: VocabularyLike | None
) -> dict[str, Any]:
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    triples = {name: columns[name] for name in _TRIPLE}
    named, labels = named_columns(triples, names_of(vocabulary))
    return columns | named | labels


def _kind_of(influence: float) -> str:
    return "proponent" if influence > 0 else "opponent" if influence < 0 else "neutral"
