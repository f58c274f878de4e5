"""Results: the strongest examples of each test triple."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kgfast.extras.influence.training_examples import ExampleQueries, Examples
from kgfast.frames import needed
from kgfast.graph import VocabularyLike, named_columns, names_of

if TYPE_CHECKING:
    from pandas import DataFrame


# Influences of examples on one test triple each, by the row of the test triple.
Products = Callable[[list[tuple[int, ExampleQueries]]], list[Tensor]]


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
    num_seen : int
        Number of examples that were seen: all, unless ``minutes`` were over.
    matrix : Tensor or None
        ``[M, T]``, mapped from the file ``out``.
    """

    proponents: Strongest
    opponents: Strongest
    examples: Examples
    test: Tensor
    checkpoints: list[str]
    rates: list[float]
    num_seen: int
    matrix: Tensor | None = None
    _products: Products | None = None  # None: examples are triples already

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
        parts = [self._columns_of(found) for found in (self.proponents, self.opponents)]
        joined = {name: [it for part in parts for it in part[name]] for name in parts[0]}
        order = sorted(range(len(joined["test"])), key=lambda row: joined["test"][row])
        columns = {name: [values[row] for row in order] for name, values in joined.items()}
        triples = {name: columns[name] for name in ("head", "relation", "tail")}
        found, labels = named_columns(triples, names_of(vocabulary))
        return columns | found | labels

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
        if self._products is None:
            columns = self.columns(vocabulary)
            front = {name: columns.pop(name) for name in ("test", "kind")}
            return front | {"of_query": columns["influence"]} | columns
        pairs = [
            (test, is_high, int(found.ids[test, place]), float(found.values[test, place]))
            for test in range(len(self.test))
            for is_high, found in ((True, self.proponents), (False, self.opponents))
            for place in range(found.ids.shape[1])
        ]
        parts = [self.examples.by_answer(pair[2]) for pair in pairs]
        products = self._products(
            [(pair[0], part) for pair, part in zip(pairs, parts, strict=True)]
        )
        rows = []
        for (test, is_high, _, whole), part, own in zip(pairs, parts, products, strict=True):
            shares = own.double()
            shares += (whole - shares.sum()) / len(part)
            order = shares.argsort(stable=True, descending=is_high)
            assert part.targets is not None
            sorted_ = part.part(order)
            both = sorted_.anchors, sorted_.targets
            heads, tails = both if part.side == "tail" else both[::-1]
            assert heads is not None
            assert tails is not None
            cells = (shares[order], heads, sorted_.relations, tails)
            for cell in zip(*(it.tolist() for it in cells), strict=True):
                rows.append((test, _kind_of(whole), whole, *cell, part.side))
        names = ("test", "kind", "of_query", "influence", "head", "relation", "tail", "predicts")
        columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
        triples = {name: columns[name] for name in ("head", "relation", "tail")}
        found_names, labels = named_columns(triples, names_of(vocabulary))
        return columns | found_names | labels

    def _columns_of(self, found: Strongest) -> dict[str, list[Any]]:
        rows, k = found.ids.shape
        of = self.examples.columns(found.ids)
        return {
            "test": [row for row in range(rows) for _ in range(k)],
            "kind": [_kind_of(it) for it in found.values.flatten().tolist()],
            "influence": found.values.flatten().tolist(),
            **{name: of[name].flatten().tolist() for name in ("head", "relation", "tail")},
            "predicts": ["head" if it else "tail" for it in of["predicts_head"].flatten().tolist()],
        }

    def to_frame(self, vocabulary: VocabularyLike | None = None) -> "DataFrame":
        """Return :meth:`columns` as a pandas DataFrame."""
        frame: DataFrame = needed("pandas", "Influences.to_frame()").DataFrame(
            self.columns(vocabulary)
        )
        return frame

    def __repr__(self) -> str:
        tests, k = self.ids.shape
        of = "" if self.num_seen == len(self.examples) else f"{self.num_seen:,} of "
        return (
            f"Influences of {of}{len(self.examples):,} training examples on {tests:,} test triples "
            f"at {len(self.checkpoints)} checkpoint{'' if len(self.checkpoints) == 1 else 's'}, "
            f"{k} proponents and opponents each"
        )


def _kind_of(influence: float) -> str:
    return "proponent" if influence > 0 else "opponent" if influence < 0 else "neutral"
