"""Type constraints: the entities that a relation may have on each side."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgfast.graph.ids import as_integers
from kgfast.graph.known import Side
from kgfast.graph.named import Names, VocabularyLike, id_sets, ids_or_names, names_of
from kgfast.graph.triples import TriplesLike, Vocabulary, one_past_max
from kgfast.text import reading, shown
from kgfast.whole_files import write_whole

_SIDES: tuple[Side, Side] = ("head", "tail")
_FORMAT = "kgfast type constraints 1"


class TypeConstraints:
    """Candidates of each relation and side, to which rankings are restricted.

    Triples of a relation without candidates on a side are not ranked there. Constraints are made by
    :meth:`from_triples`, :meth:`from_openke`, :meth:`from_mapping` or :meth:`load`.

    Parameters
    ----------
    heads, tails
        A pair (indptr int64 `[R + 1]`, ids int64 `[nnz]`) each: the candidates of relation r are
        `ids[indptr[r]:indptr[r + 1]]`, each once.
    vocabulary
        A pair of vocabularies, or an object with vocabularies, if the ids have names. Triples and
        models that are ranked with these constraints must have equal names.

    Raises
    ------
    TypeError, ValueError
        For ids that are negative, unknown to the vocabulary or repeated within a relation, and for
        offsets that do not rise from 0 to the number of ids.

    Examples
    --------
    >>> allowed = TypeConstraints.from_triples([(0, 0, 2), (1, 0, 2), (2, 1, 0)])
    >>> allowed
    TypeConstraints(2 relations, 3 heads, 2 tails)
    >>> allowed.candidates(0, "head")
    tensor([0, 1])
    """

    def __init__(
        self,
        heads: tuple[Any, Any],
        tails: tuple[Any, Any],
        *,
        vocabulary: VocabularyLike | None = None,
    ) -> None:
        self.names: Names = names_of(vocabulary)
        self._heads = _checked("head", *heads, self.names)
        self._tails = _checked("tail", *tails, self.names)
        sizes = len(self._heads[0]) - 1, len(self._tails[0]) - 1
        if sizes[0] != sizes[1]:
            raise ValueError(f"heads are of {sizes[0]} relations, tails of {sizes[1]}")

    @property
    def num_relations(self) -> int:
        """Return the number of relations with lists; others have no candidates."""
        return len(self._heads[0]) - 1

    @property
    def num_entities(self) -> int:
        """Return the size of the vocabulary if there is one, else the largest id + 1."""
        if self.names[0] is not None:
            return len(self.names[0])
        return max(one_past_max(ids) for _, ids in (self._heads, self._tails))

    def lists(self, side: Side) -> tuple[Tensor, Tensor]:
        """Return the candidates of a side by relation: indptr `[R + 1]`, ids `[nnz]`, ascending.

        Raises
        ------
        ValueError
            If side is neither head nor tail.
        """
        if side not in _SIDES:
            raise ValueError(f"side must be 'head' or 'tail', got {side!r}")
        return self._heads if side == "head" else self._tails

    def candidates(self, relation: int, side: Side) -> Tensor:
        """Return the candidates of one relation, int64, ascending; none for unknown relations.

        Examples
        --------
        >>> allowed = TypeConstraints.from_mapping({0: ([3, 1], [2])})
        >>> allowed.candidates(0, "head"), allowed.candidates(5, "tail")
        (tensor([1, 3]), tensor([], dtype=torch.int64))
        """
        indptr, ids = self.lists(side)
        if not 0 <= relation < self.num_relations:
            return ids[:0]
        return ids[int(indptr[relation]) : int(indptr[relation + 1])]

    @classmethod
    def from_triples(
        cls, *triples: TriplesLike, vocabulary: VocabularyLike | None = None
    ) -> "TypeConstraints":
        """Return the heads and tails that each relation has in triples, usually train.

        Parameters
        ----------
        *triples
            Sets of triples, as :class:`KnownTriples` takes them. Labels are kept.
        vocabulary
            Vocabulary for rows of names.

        Examples
        --------
        >>> TypeConstraints.from_triples([(0, 0, 1), (0, 0, 2)]).candidates(0, "tail")
        tensor([1, 2])
        """
        rows, names = id_sets(triples, vocabulary)
        hrt = torch.cat([torch.empty(0, 3, dtype=torch.int64, device="cpu"), *rows])
        count = one_past_max(hrt[:, 1]) if names[1] is None else len(names[1])
        sides = []
        for column in (0, 2):
            pairs = hrt[:, [1, column]].unique(dim=0)
            lengths = torch.bincount(pairs[:, 0], minlength=count)
            sides.append((torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), pairs[:, 1]))
        return cls(sides[0], sides[1], vocabulary=names)

    @classmethod
    def from_types(
        cls,
        triples: TriplesLike,
        types: Iterable[tuple[Any, Any]],
        *,
        vocabulary: VocabularyLike | None = None,
    ) -> "TypeConstraints":
        """Return the entities with the types that each relation has in triples, usually train.

        An entity is allowed on a side of a relation if the triples have the entity there, or an
        entity that shares a type with it.

        Parameters
        ----------
        triples
            As for :meth:`from_triples`.
        types
            Pairs (entity, type): an id or name, and any value that can be hashed, such as text. An
            entity may have many types. Names that the vocabulary lacks are left out, so that one
            list serves many graphs.
        vocabulary
            Vocabulary for names.

        Raises
        ------
        TypeError
            For names without a vocabulary.
        ValueError
            If no pair is of an entity of this graph.

        Examples
        --------
        >>> types = [(0, "person"), (1, "person"), (2, "city"), (3, "city")]
        >>> allowed = TypeConstraints.from_types([(0, 0, 2)], types)
        >>> allowed.candidates(0, "head"), allowed.candidates(0, "tail")
        (tensor([0, 1]), tensor([2, 3]))
        """
        seen = cls.from_triples(triples, vocabulary=vocabulary)
        kinds: dict[Any, int] = {}
        rows, columns, first = [], [], None
        for entity, kind in types:
            first = entity if first is None else first
            if isinstance(entity, str):
                if seen.names[0] is None:
                    raise TypeError(f"types: {shown(entity)} is a name, which needs vocabulary=")
                if entity not in seen.names[0]:
                    continue
                entity = seen.names[0][entity]
            rows.append(entity)
            columns.append(kinds.setdefault(kind, len(kinds)))
        if not rows and first is not None:
            raise ValueError(
                f"types: no pair has an entity of this graph: the first is {shown(first)}"
            )
        entities, types_of = as_integers("types", rows).cpu(), as_integers("types", columns).cpu()
        count = max(seen.num_entities, one_past_max(entities))

        def with_types(ids: Tensor) -> Tensor:
            allowed = torch.zeros(count, dtype=torch.bool, device="cpu")
            allowed[ids] = True
            wanted = torch.zeros(len(kinds), dtype=torch.bool, device="cpu")
            wanted[types_of[allowed[entities]]] = True
            allowed[entities[wanted[types_of]]] = True
            return allowed.nonzero()[:, 0]

        lists = {
            relation: [with_types(seen.candidates(relation, side)) for side in _SIDES]
            for relation in range(seen.num_relations)
        }
        return cls.from_mapping(lists, vocabulary=seen.names)

    @classmethod
    def from_openke(
        cls, path: str | os.PathLike[str], *, vocabulary: VocabularyLike | None = None
    ) -> "TypeConstraints":
        """Read OpenKE's `type_constrain.txt`.

        The first line is the number of relations. Two lines follow for each relation, for heads and
        for tails: the relation's id, the number of entities, and the ids of the entities.

        Parameters
        ----------
        path
            The file, or the folder with the file.
        vocabulary
            The names of the ids, such as the dataset in the same folder.

        Raises
        ------
        FileNotFoundError
            If the file is not there.
        ValueError
            If a line is malformed: the message begins with `file:line`. If the vocabulary has
            another number of relations.
        """
        path = Path(path)
        path = path / "type_constrain.txt" if path.is_dir() else path
        text = path.read_bytes().decode(errors="replace")
        lines = [
            (number, _integers(path, number, line.split()))
            for number, line in enumerate(text.split("\n"), 1)
            if line.strip()
        ]
        (first, count), *rest = lines or [(1, [])]
        if len(count) != 1 or len(rest) != 2 * count[0]:
            raise ValueError(
                f"{path}:{first}: expected the number of relations, and two lines for each; "
                f"found {len(rest)} lines after {shown(count)}"
            )
        found: dict[int, list[list[int]]] = {}
        for number, (relation, *ids) in rest:
            if not ids or ids[0] != len(ids) - 1:
                raise ValueError(
                    f"{path}:{number}: expected a relation, how many ids, and those; got "
                    f"{shown([relation, *ids])}"
                )
            sides = found.setdefault(relation, [])
            sides.append(ids[1:])
            if len(sides) > 2 or relation >= count[0]:
                raise ValueError(
                    f"{path}:{number}: relation {relation} must be below {count[0]}, the number of "
                    "relations, and have two lines"
                )
        relations = names_of(vocabulary)[1]
        if relations is not None and len(relations) != count[0]:
            raise ValueError(
                f"{path}:{first}: types of {count[0]:,} relations; the graph has {len(relations):,}"
            )
        with reading(path, "not the constraints of this graph"):
            return cls.from_mapping(found, vocabulary=vocabulary)

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[Any, Any], *, vocabulary: VocabularyLike | None = None
    ) -> "TypeConstraints":
        """Return the constraints of a mapping.

        Parameters
        ----------
        mapping
            Relation, an id or a name, to a pair (heads, tails) or to `{"head": ..., "tail": ...}`,
            of ids or names. Relations that the mapping lacks have no candidates.
        vocabulary
            The ids of names, and the number of relations.

        Raises
        ------
        TypeError, ValueError
            For names without a vocabulary, unknown names and ids, and repeated ids.

        Examples
        --------
        >>> people = Vocabulary(["ann", "bob"]), Vocabulary(["knows"])
        >>> allowed = TypeConstraints.from_mapping(
        ...     {"knows": {"head": ["bob"], "tail": ["ann", "bob"]}}, vocabulary=people)
        >>> allowed.candidates(0, "head")
        tensor([1])
        """
        names = names_of(vocabulary)
        sides: dict[int, list[Tensor]] = {}
        for key, value in mapping.items():
            relation = int(ids_or_names("relation", key, names[1]))
            if relation < 0 or (names[1] is not None and relation >= len(names[1])):
                limit = "" if names[1] is None else len(names[1]) - 1
                raise ValueError(f"relation {relation} must be in 0..{limit}")
            if relation in sides:
                raise ValueError(f"relation {shown(key)} is given twice")
            sides[relation] = [
                ids_or_names(f"the {side}s of relation {shown(key)}", ids, names[0])
                .reshape(-1)
                .cpu()
                for side, ids in zip(_SIDES, _two_sides(key, value), strict=True)
            ]
        count = max(sides, default=-1) + 1 if names[1] is None else len(names[1])
        none = torch.empty(0, dtype=torch.int64, device="cpu")
        lists = [sides.get(relation, [none, none]) for relation in range(count)]
        heads, tails = (
            (np.cumsum([0, *map(len, side)]), torch.cat([none, *side]))
            for side in ([pair[0] for pair in lists], [pair[1] for pair in lists])
        )
        return cls(heads, tails, vocabulary=names)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the constraints, with names, to a safetensors file; whole or not at all."""
        from safetensors.torch import save_file

        tensors = {
            f"{side}_{part}": values
            for side in _SIDES
            for part, values in zip(("indptr", "ids"), self.lists(side), strict=True)
        }
        for what, names in zip(("entities", "relations"), self.names, strict=True):
            if names is not None:
                text = json.dumps(names.names).encode("ascii")
                tensors[what] = torch.tensor(list(text), dtype=torch.uint8, device="cpu")
        if not Path(path).parent.is_dir():
            raise FileNotFoundError(f"{Path(path).parent}: no such folder")
        write_whole(path, lambda beside: save_file(tensors, beside, {"format": _FORMAT}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "TypeConstraints":
        """Read a file that :meth:`save` wrote.

        Raises
        ------
        FileNotFoundError
            If the file is not there.
        ValueError
            If the file is no such file.
        """
        from safetensors import safe_open

        if not Path(path).is_file():
            raise FileNotFoundError(f"{path}: no such file of type constraints")
        with reading(path, "no file of TypeConstraints.save"), safe_open(path, "pt") as file:
            written = (file.metadata() or {}).get("format", "")
            if written != _FORMAT:
                raise ValueError(
                    f"{path}: not a file of TypeConstraints.save, or of another version: this "
                    f"kgfast reads {_FORMAT!r}, not {shown(written)}"
                )
            tensors = {name: file.get_tensor(name) for name in tuple(file.keys())}
            names = [
                Vocabulary(json.loads(tensors[what].numpy().tobytes())) if what in tensors else None
                for what in ("entities", "relations")
            ]
            heads, tails = ((tensors[f"{side}_indptr"], tensors[f"{side}_ids"]) for side in _SIDES)
            return cls(heads, tails, vocabulary=(names[0], names[1]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TypeConstraints):
            return NotImplemented
        lists = zip((*self._heads, *self._tails), (*other._heads, *other._tails), strict=True)
        return self.names == other.names and all(torch.equal(*pair) for pair in lists)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"TypeConstraints({self.num_relations:,} relations, {len(self._heads[1]):,} heads, "
            f"{len(self._tails[1]):,} tails)"
        )


def _checked(side: Side, indptr: Any, ids: Any, names: Names) -> tuple[Tensor, Tensor]:
    """Return the lists of one side, ascending; raise if the arrays are no lists of ids."""
    indptr, ids = (as_integers(f"{side}s", part).cpu() for part in (indptr, ids))
    if indptr.ndim != 1 or ids.ndim != 1 or not len(indptr):
        raise ValueError(f"{side}s must be indptr [R + 1] and ids [nnz]")
    if int(indptr[0]) or int(indptr[-1]) != len(ids) or bool((indptr.diff() < 0).any()):
        raise ValueError(f"{side}s: indptr must rise from 0 to the number of ids, {len(ids)}")
    if names[1] is not None and len(names[1]) != len(indptr) - 1:
        raise ValueError(
            f"{side}s are of {len(indptr) - 1} relations, but the vocabulary names {len(names[1])}"
        )
    relations = torch.repeat_interleave(indptr.diff(), output_size=len(ids))
    limit = None if names[0] is None else len(names[0])
    outside = (ids < 0) if limit is None else (ids < 0) | (ids >= limit)
    if bool(outside.any()):
        place = int(outside.nonzero()[0])
        raise ValueError(
            f"the {side}s of relation {int(relations[place])} must be in "
            f"0..{'' if limit is None else limit - 1}; got {int(ids[place])}"
        )
    order = torch.from_numpy(np.lexsort((ids.numpy(), relations.numpy())))
    ids = ids[order]
    repeats = ((ids[1:] == ids[:-1]) & (relations[1:] == relations[:-1])).nonzero()
    if len(repeats):
        place = int(repeats[0])
        raise ValueError(
            f"the {side}s of relation {int(relations[place])} must not repeat an id; got "
            f"{int(ids[place])} again"
        )
    return indptr, ids


def _two_sides(key: Any, value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        if set(value) != set(_SIDES):
            said = shown(sorted(map(str, value)))
            raise ValueError(f"relation {shown(key)} must map to 'head' and 'tail'; got {said}")
        return [_listed(value[side]) for side in _SIDES]
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise TypeError(f"relation {shown(key)} must map to a pair of heads and tails")
    return [_listed(ids) for ids in value]


def _listed(ids: Any) -> Any:
    return sorted(ids) if isinstance(ids, set | frozenset) else ids


def _integers(path: Path, number: int, fields: Iterable[str]) -> list[int]:
    for field in fields:
        if not (field.isascii() and field.isdigit() and len(field) < 19):
            raise ValueError(f"{path}:{number}: {shown(field)} is not an id")
    return [int(field) for field in fields]
