"""Names, and triples as integers in (h, r, t) order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Protocol, overload

import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.graph.ids import INT64_MAX, as_integers
from kgfast.graph.nearest import did_you_mean
from kgfast.text import shown

_COLUMNS = ("head", "relation", "tail", "time")


class Vocabulary:
    """Immutable two-way mapping between names and the ids 0..len-1.

    Parameters
    ----------
    names
        The names, in id order.

    Attributes
    ----------
    names : tuple of str
        All names, in id order.
    labels : Mapping of str to str
        Labels of names, such as those of ``labels.tsv``, which are only shown beside the names.

    Raises
    ------
    TypeError, ValueError
        If a name is not a string, or occurs twice.

    Examples
    --------
    >>> animals = Vocabulary(["cat", "dog"])
    >>> animals["dog"], animals.name(0), len(animals), "cow" in animals
    (1, 'cat', 2, False)
    """

    __slots__ = ("_ids", "labels", "names")
    num_times: int | None = None  # of pairs of a relation and a time (quads.py)

    def __init__(self, names: Iterable[str]) -> None:
        if isinstance(names, str):
            raise TypeError("names must be a sequence of strings, got one string")
        self.names = tuple(names)
        self.labels: Mapping[str, str] = {}
        for i, name in enumerate(self.names):
            if not isinstance(name, str):
                raise TypeError(f"names must be strings, got names[{i}] = {shown(name)}")
        self._ids = dict(zip(self.names, range(len(self.names)), strict=True))
        if len(self._ids) != len(self.names):
            # `_ids` has the last place of each name
            i = next(i for i, name in enumerate(self.names) if self._ids[name] != i)
            raise ValueError(
                f"names[{self._ids[self.names[i]]}] = {shown(self.names[i])} is a duplicate of "
                "an earlier name"
            )

    def labelled(self, labels: Mapping[str, str]) -> "Vocabulary":
        """Return a vocabulary of these names with labels; names that ``labels`` lacks have none."""
        other = Vocabulary.__new__(Vocabulary)
        other.names, other._ids, other.labels = self.names, self._ids, labels
        return other

    def text(self, id: int) -> str:
        """Return the name of an id, with the label, if any, in brackets."""
        name, label = self.name(id), self.label(id)
        return name if label is None else f"{name} ({label})"

    def label(self, id: int) -> str | None:
        """Return the label of an id, if any; errors as :meth:`name`."""
        return self.labels.get(self.name(id))

    @property
    def columns(self) -> tuple["Vocabulary", ...]:
        """Return the vocabulary itself; of pairs, those of relations and of times."""
        return (self,)

    def name(self, id: int) -> str:
        """Return the name of an id; a ValueError for an id outside 0..len-1."""
        if not 0 <= id < len(self.names):
            raise ValueError(f"id {id} is outside 0..{len(self.names) - 1}")
        return self.names[id]

    def ids(self, names: Iterable[str]) -> Tensor:
        """Return the ids of names, int64 `[n]`; a ValueError suggests the nearest known names."""
        names = list(names)
        try:
            ids = list(map(self._ids.__getitem__, names))
        except KeyError as error:
            raise self._unknown(error.args[0]) from None
        return torch.tensor(ids, dtype=torch.int64, device="cpu")

    def names_of(self, ids: Tensor | Sequence[int]) -> list[str]:
        """Return the names of ids, an integer tensor or a sequence; errors as :meth:`name`."""
        return [self.name(i) for i in (ids.tolist() if isinstance(ids, Tensor) else ids)]

    def __getitem__(self, name: str) -> int:
        try:
            return self._ids[name]
        except KeyError:
            raise self._unknown(name) from None

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return self is other or self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        first = ", ".join(map(shown, self.names[:3])) + (", ..." if len(self) > 3 else "")
        return f"Vocabulary({len(self):,} names: {first})" if len(self) else "Vocabulary(0 names)"

    def _unknown(self, name: object) -> ValueError:
        hint = did_you_mean(name, self.names)
        return ValueError(f"unknown name {shown(name)} (of {len(self):,} names){hint}")


class Triples:
    """Triples (h, r, t) as ids, with sizes of the id spaces and, optionally, names.

    Parameters
    ----------
    hrt
        Tensor, array or sequence `[T, 3]` of any integer dtype; int64 is not copied.
    num_entities, num_relations
        Sizes of the id spaces; by default the sizes of the vocabularies, else the largest id + 1.
    entities, relations
        Names of the ids.
    num_times
        For quads `[T, 4]`, (h, r, t, time): the number of times. Relation and time become one id,
        ``relation * num_times + time``, of which there are `num_relations`.

    Raises
    ------
    TypeError, ValueError
        For another dtype or shape, an id out of range (the message names the first such row and the
        range), or a size that disagrees with a vocabulary.

    Examples
    --------
    >>> triples = Triples([[0, 0, 1], [1, 0, 2]])
    >>> triples
    Triples(2 triples, 3 entities, 1 relations)
    >>> triples[1], triples.tail_ids
    ((1, 0, 2), tensor([1, 2]))
    """

    __slots__ = ("entities", "hrt", "num_entities", "num_relations", "num_times", "relations")

    def __init__(
        self,
        hrt: "TriplesLike",
        *,
        num_entities: int | None = None,
        num_relations: int | None = None,
        entities: Vocabulary | None = None,
        relations: Vocabulary | None = None,
        num_times: int | None = None,
    ) -> None:
        self.num_times = num_times if relations is None else relations.num_times
        num_entities = _size("entities", num_entities, entities)
        num_relations = _size("relations", num_relations, relations)
        sizes: Any = {"num_entities": num_entities, "num_relations": num_relations}
        self.hrt = as_triples_tensor(hrt, **sizes, num_times=self.num_times, takes_pairs=True)
        self.entities = entities
        self.relations = relations
        if num_entities is None:
            num_entities = one_past_max(self.hrt[:, ::2])
        if num_relations is None:
            times = self.num_times or 1
            num_relations = -(-one_past_max(self.hrt[:, 1]) // times) * times
        self.num_entities = num_entities
        self.num_relations = num_relations

    @classmethod
    def from_names(
        cls, triples: Iterable[Sequence[str]], entities: Vocabulary, relations: Vocabulary
    ) -> "Triples":
        """Make triples from rows of three names; a ValueError for any other row or name.

        Quads have four, and ``relations`` then are :class:`kgfast.graph.TimedRelations`.
        """
        rows = list(triples)
        vocabularies = [entities, *relations.columns]
        vocabularies.insert(2, entities)
        expected = ", ".join(_COLUMNS[: len(vocabularies)])
        for i, row in enumerate(rows):
            if isinstance(row, str) or len(row) != len(vocabularies):
                raise ValueError(f"triples[{i}] = {shown(row)}: expected ({expected})")
        ids = [of.ids(row[i] for row in rows) for i, of in enumerate(vocabularies)]
        return cls(torch.stack(ids, dim=1), entities=entities, relations=relations)

    @property
    def quads(self) -> Tensor:
        """Return quads (h, r, t, time), int64 `[T, 4]`; the triples themselves without times."""
        return quads_of(self.hrt, self.num_times)

    @property
    def head_ids(self) -> Tensor:
        """Return heads, int64 `[T]`, a view."""
        return self.hrt[:, 0]

    @property
    def relation_ids(self) -> Tensor:
        """Return relations, int64 `[T]`, a view."""
        return self.hrt[:, 1]

    @property
    def tail_ids(self) -> Tensor:
        """Return tails, int64 `[T]`, a view."""
        return self.hrt[:, 2]

    def __len__(self) -> int:
        return int(self.hrt.shape[0])

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return (tuple(row) for row in self.hrt.tolist())

    @overload
    def __getitem__(self, index: int) -> tuple[int, int, int]: ...
    @overload
    def __getitem__(self, index: slice | Tensor | Sequence[int]) -> "Triples": ...
    def __getitem__(
        self, index: int | slice | Tensor | Sequence[int]
    ) -> "Triples | tuple[int, int, int]":
        if isinstance(index, int):
            head, relation, tail = self.hrt[index].tolist()
            return head, relation, tail
        some = copy(self)
        some.hrt = self.hrt[index].reshape(-1, 3)
        return some

    def __repr__(self) -> str:
        relations = f"{self.num_relations // (self.num_times or 1):,} relations"
        times = "" if self.num_times is None else f", {self.num_times:,} times"
        return f"Triples({len(self):,} triples, {self.num_entities:,} entities, {relations}{times})"


class HasTriples(Protocol):
    """Triples of another library, such as PyKEEN's triples factories."""

    @property
    def mapped_triples(self) -> Tensor:
        """Rows of ids ``[T, 3]``."""


TriplesLike = (
    Triples
    | HasTriples
    | Tensor
    | npt.NDArray[Any]
    | Sequence[Sequence[int]]
    | Sequence[Sequence[str]]
    | Sequence[Tensor]
)
"""Values that callers may pass as triples: rows of ids, or of names with a vocabulary."""


def as_triples_tensor(
    triples: TriplesLike,
    *,
    num_entities: int | None = None,
    num_relations: int | None = None,
    num_times: int | None = None,
    takes_pairs: bool = False,
    checks_ids: bool = True,
) -> Tensor:
    """Check triples and return one int64 tensor `[T, 3]`, on their device.

    Parameters
    ----------
    triples
        `Triples`, a tensor, an array or a sequence of rows, of any integer dtype, or an object with
        such `mapped_triples`. Int64 values are not copied; an empty sequence becomes `[0, 3]`.
    num_entities, num_relations
        Ids must lie below these, if given.
    num_times
        For a temporal model: rows must be quads `[T, 4]`, whose relation and time become one id.
    takes_pairs
        Take rows `[T, 3]` with times, too: their relations are such ids.
    checks_ids
        Check the ids, for which the host waits for a GPU.

    Raises
    ------
    TypeError, ValueError
        As :class:`Triples`.
    """
    rows = triples.hrt if isinstance(triples, Triples) else triples
    hrt = as_integers("triples", getattr(rows, "mapped_triples", rows))
    if hrt.shape == (0,):  # an empty sequence
        hrt = hrt.reshape(0, 3 if num_times is None else 4)
    sizes = [num_entities, num_relations, num_entities]
    if isinstance(triples, Triples) and triples.num_times is not None:
        if num_entities is not None and triples.num_times != num_times:
            theirs = "no times" if num_times is None else f"{num_times:,} times"
            raise ValueError(f"triples are quads of {triples.num_times:,} times, not {theirs}")
    elif num_times is not None and not (takes_pairs and hrt.shape[1:] == (3,)):
        num_relations = (INT64_MAX if num_relations is None else num_relations) // num_times
        sizes = [num_entities, num_relations, num_entities, num_times]
    if hrt.ndim != 2 or hrt.shape[1] != len(sizes):
        expected = "[T, 3] (h, r, t)" if len(sizes) == 3 else "[T, 4] (h, r, t, time)"
        advice = "; quads need a model with times, or num_times=" if hrt.shape[1:] == (4,) else ""
        raise ValueError(f"triples must have shape {expected}, got {list(hrt.shape)}{advice}")
    for column, size in enumerate(sizes if checks_ids and len(hrt) else ()):
        ids, limit = hrt[:, column], INT64_MAX if size is None else size
        low, high = torch.aminmax(ids)
        if int(low) < 0 or int(high) >= limit:
            row = int(((ids < 0) | (ids >= limit)).nonzero()[0])
            allowed = ">= 0" if limit == INT64_MAX else f"in 0..{limit - 1}"
            raise ValueError(
                f"triples[{row}] = {tuple(hrt[row].tolist())}: "
                f"{_COLUMNS[column]} {int(ids[row])} must be {allowed}"
            )
    if len(sizes) == 3:
        return hrt
    heads, relations, tails, times = hrt.unbind(1)
    return torch.stack([heads, relations * (num_times or 1) + times, tails], 1)


def with_times(columns: Mapping[str, Any], num_times: int | None) -> dict[str, Any]:
    """Return columns of ids with ``relations`` of pairs as relations and, last, ``times``."""
    if num_times is None or columns.get("relations") is None:
        return dict(columns)
    pairs = as_integers("relations", columns["relations"])
    return {**columns, "relations": pairs // num_times, "times": pairs % num_times}


def quads_of(hrt: Tensor, num_times: int | None) -> Tensor:
    """Return triples of pairs as quads, int64 ``[T, 4]``; without times the triples."""
    if num_times is None:
        return hrt
    heads, pairs, tails = hrt.unbind(1)
    return torch.stack([heads, pairs // num_times, tails, pairs % num_times], 1)


def _size(what: str, size: int | None, vocabulary: Vocabulary | None) -> int | None:
    if size is not None and size < 0:
        raise ValueError(f"num_{what} must be >= 0, got {size}")
    if vocabulary is None:
        return size
    if size is not None and size != len(vocabulary):
        raise ValueError(f"num_{what}={size}, but the vocabulary has {len(vocabulary)} {what}")
    return len(vocabulary)


def one_past_max(ids: Tensor) -> int:
    """Return the size of the smallest id space that holds the ids, 0 if there are none."""
    return int(ids.max()) + 1 if ids.numel() else 0
