"""Type constraints: the entities that a relation may have on each side."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from kgfast.graph.ids import INT64_MAX
from kgfast.graph.known import Side
from kgfast.graph.named import (
    Names,
    VocabularyLike,
    id_sets,
    ids_or_names,
    names_of,
    relation_names,
)
from kgfast.graph.triples import TriplesLike, one_past_max
from kgfast.text import shown

_SIDES: tuple[Side, Side] = ("head", "tail")


class TypeConstraints:
    """Candidates of each relation and side, to which rankings are restricted.

    Triples of a relation without candidates on a side are not ranked there.

    Parameters
    ----------
    mapping
        Relation, an id or a name, to a pair (heads, tails) or to `{"head": ..., "tail": ...}`, of
        ids or names. Relations that the mapping lacks have no candidates.
    vocabulary
        The ids of names, and the number of relations. Triples and models that are ranked with
        these constraints must have equal names. A relation of quads has one list for all times.

    Raises
    ------
    TypeError, ValueError
        For names without a vocabulary, unknown names and ids, and repeated ids.

    Examples
    --------
    >>> allowed = TypeConstraints({0: ([3, 1], [2])})
    >>> allowed.candidates(0, "head"), allowed.candidates(5, "tail")
    (tensor([1, 3]), tensor([], dtype=torch.int64))
    """

    def __init__(
        self, mapping: Mapping[Any, Any], *, vocabulary: VocabularyLike | None = None
    ) -> None:
        self.names: Names = names_of(vocabulary)
        entities, pairs = self.names
        relations, times = relation_names(pairs)
        lists: dict[int, list[Tensor]] = {}
        for key, value in mapping.items():
            relation = int(_checked("relation", [key], relations))
            if relation in lists:
                raise ValueError(f"relation {shown(key)} is given twice")
            sides = [value.get(side) for side in _SIDES] if isinstance(value, Mapping) else value
            is_pair = isinstance(sides, list | tuple) and len(sides) == 2
            if not is_pair or any(ids is None for ids in sides):
                raise TypeError(f"relation {shown(key)} must map to a pair of heads and tails")
            lists[relation] = [
                _checked(f"the {side}s of relation {shown(key)}", ids, entities)
                for side, ids in zip(_SIDES, sides, strict=True)
            ]
        count = max(lists, default=-1) + 1 if relations is None else len(relations)
        none = torch.empty(0, dtype=torch.int64, device="cpu")
        self._lists = [lists.get(relation, [none, none]) for relation in range(count)]
        self.num_times = 1 if times is None else len(times)

    @property
    def num_relations(self) -> int:
        """Return the number of relations with lists; others have no candidates."""
        return len(self._lists) * self.num_times

    @property
    def num_entities(self) -> int:
        """Return the size of the vocabulary if there is one, else the largest id + 1."""
        if self.names[0] is not None:
            return len(self.names[0])
        return max((one_past_max(ids) for sides in self._lists for ids in sides), default=0)

    def candidates(self, relation: int, side: Side) -> Tensor:
        """Return the candidates of one relation, int64, ascending; none for unknown relations."""
        if side not in _SIDES:
            raise ValueError(f"side must be 'head' or 'tail', got {side!r}")
        if not 0 <= relation < self.num_relations:
            return torch.empty(0, dtype=torch.int64, device="cpu")
        return self._lists[relation // self.num_times][_SIDES.index(side)]

    @classmethod
    def from_triples(cls, *triples: TriplesLike, vocabulary: VocabularyLike | None = None) -> Self:
        """Return the heads and tails that each relation has in triples, usually train.

        Arguments are those of :class:`KnownTriples`; labels are kept.

        Examples
        --------
        >>> TypeConstraints.from_triples([(0, 0, 1), (0, 0, 2)]).candidates(0, "tail")
        tensor([1, 2])
        """
        rows, names, num_times = id_sets(triples, vocabulary)
        hrt = torch.cat([torch.empty(0, 3, dtype=torch.int64, device="cpu"), *rows])
        hrt[:, 1] //= num_times or 1
        sides = []
        for column in (0, 2):
            pairs = hrt[:, [1, column]].unique(dim=0)
            lengths = torch.bincount(pairs[:, 0]).tolist()
            sides.append(pairs[:, 1].split(lengths) if lengths else ())
        constraints = cls(dict(enumerate(zip(*sides, strict=True))), vocabulary=names)
        constraints.num_times = num_times or 1
        return constraints

    @classmethod
    def from_types(
        cls,
        triples: TriplesLike,
        types: Iterable[tuple[Any, Any]],
        *,
        vocabulary: VocabularyLike | None = None,
    ) -> Self:
        """Return the entities with the types that each relation has in triples, usually train.

        An entity is allowed on a side of a relation if the triples have the entity there, or an
        entity that shares a type with it.

        Parameters
        ----------
        triples, vocabulary
            As for :meth:`from_triples`.
        types
            Pairs (entity, type): an id or name, and any value that can be hashed. Names that the
            vocabulary lacks are left out, so that one list serves many graphs.

        Raises
        ------
        TypeError, ValueError
            For names without a vocabulary, and if no pair is of an entity of this graph.

        Examples
        --------
        >>> types = [(0, "person"), (1, "person"), (2, "city"), (3, "city")]
        >>> allowed = TypeConstraints.from_types([(0, 0, 2)], types)
        >>> allowed.candidates(0, "head"), allowed.candidates(0, "tail")
        (tensor([0, 1]), tensor([2, 3]))
        """
        seen = cls.from_triples(triples, vocabulary=vocabulary)
        names, pairs = seen.names[0], list(types)
        kinds_of: dict[int, set[Any]] = {}
        with_kind: dict[Any, set[int]] = {}
        for entity, kind in pairs:
            if isinstance(entity, str):
                if names is None:
                    raise TypeError("types: names of entities need vocabulary=")
                if entity not in names:
                    continue
            id = int(ids_or_names("types", entity, names))
            kinds_of.setdefault(id, set()).add(kind)
            with_kind.setdefault(kind, set()).add(id)
        if pairs and not kinds_of:
            raise ValueError(
                f"types: no pair has an entity of this graph: the first is {shown(pairs[0][0])}"
            )

        def allowed(ids: Tensor) -> list[int]:
            here = set(ids.tolist())
            kinds = {kind for entity in here for kind in kinds_of.get(entity, ())}
            return sorted(here.union(*(with_kind[kind] for kind in kinds)))

        lists = {relation: tuple(map(allowed, sides)) for relation, sides in enumerate(seen._lists)}
        constraints = cls(lists, vocabulary=seen.names)
        constraints.num_times = seen.num_times
        return constraints

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TypeConstraints):
            return NotImplemented
        mine, theirs = (
            [ids.tolist() for sides in lists for ids in sides]
            for lists in (self._lists, other._lists)
        )
        return self.names == other.names and mine == theirs

    def __repr__(self) -> str:
        heads, tails = (sum(len(sides[side]) for sides in self._lists) for side in (0, 1))
        return (
            f"TypeConstraints({self.num_relations:,} relations, {heads:,} heads, {tails:,} tails)"
        )


def _checked(what: str, ids: Any, names: Any) -> Tensor:
    """Return ids or names as distinct ids, ascending."""
    ids = sorted(ids) if isinstance(ids, set | frozenset) else ids
    checked: Tensor = ids_or_names(what, ids, names).reshape(-1).cpu().sort().values
    outside = checked[(checked < 0) | (checked >= (INT64_MAX if names is None else len(names)))]
    if len(outside):
        limit = "" if names is None else len(names) - 1
        raise ValueError(f"{what} must be in 0..{limit}; got {int(outside[0])}")
    repeats = checked[1:][checked.diff() == 0]
    if len(repeats):
        raise ValueError(f"{what} must not repeat an id; got {int(repeats[0])} again")
    return checked
