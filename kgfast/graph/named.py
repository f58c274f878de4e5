"""Names and labels of triples, as text, or as objects of other libraries."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.graph.ids import as_integers
from kgfast.graph.triples import Triples, TriplesLike, Vocabulary, as_triples_tensor
from kgfast.text import shown

Names = tuple[Vocabulary | None, Vocabulary | None]  # vocabularies of entities and of relations
_NamesLike = Vocabulary | Sequence[str] | npt.NDArray[Any] | None


class HasNames(Protocol):
    """Object with names: a dataset, triples, or the vocabulary of a run."""

    @property
    def entities(self) -> Vocabulary | None: ...

    @property
    def relations(self) -> Vocabulary | None: ...


VocabularyLike = HasNames | tuple[_NamesLike, _NamesLike]
"""Values that callers may pass as vocabulary: names of entities and of relations."""


def names_of(vocabulary: VocabularyLike | None) -> Names:
    """Return the names of entities and relations, of a pair or of anything that has both.

    Raises TypeError for anything else, and ValueError if a list repeats a name.
    """
    if vocabulary is None:
        return None, None
    pair: Any = vocabulary
    if hasattr(pair, "entities") and hasattr(pair, "relations"):
        pair = pair.entities, pair.relations
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError("vocabulary must be a pair: names of entities and of relations")
    return _names("entities", pair[0]), _names("relations", pair[1])


def _names(what: str, names: Any) -> Vocabulary | None:
    if names is None or isinstance(names, Vocabulary):
        return names
    if not isinstance(names, list | tuple | np.ndarray):
        raise TypeError(
            f"vocabulary must hold Vocabulary, lists of names or None; got {type(names).__name__}"
        )
    try:
        return Vocabulary(names.tolist() if isinstance(names, np.ndarray) else names)
    except (TypeError, ValueError) as error:
        raise type(error)(f"vocabulary: {what}: {error}") from None


def with_names(triples: TriplesLike, vocabulary: VocabularyLike | None = None) -> tuple[Any, Names]:
    """Return triples as ids, and the names of the ids.

    Labels are those of `Triples`, and of PyKEEN's triples factories (`entity_to_id`,
    `relation_to_id`). Raises TypeError for names without a vocabulary, and ValueError for an
    unknown name, and for labels that differ from the vocabulary's.
    """
    entities, relations = names_of(vocabulary)
    if entities is not None and relations is not None:
        rows = _array_of(triples)
        if _holds_names(rows):
            return Triples.from_names(rows, entities, relations), (entities, relations)
    labels: Names = None, None
    ids = triples
    if isinstance(triples, Triples):
        labels = triples.entities, triples.relations
    elif hasattr(triples, "mapped_triples"):
        ids = triples.mapped_triples
        labels = (
            _labels(getattr(triples, "entity_to_id", None)),
            _labels(getattr(triples, "relation_to_id", None)),
        )
    if vocabulary is not None:
        check_same_names(labels, (entities, relations))
    return ids, (labels[0] or entities, labels[1] or relations)


def id_sets(
    triples: Iterable[Any], vocabulary: VocabularyLike | None, num_times: int | None = None
) -> tuple[list[Tensor], Names, int | None]:
    """Return sets of triples as ids on the CPU, their names, and the number of times of quads."""
    tensors, names = [], names_of(vocabulary)
    counts: set[int | None] = set() if num_times is None else {num_times}
    for some in triples:
        rows = list(some) if isinstance(some, set | frozenset) else some
        ids, labels = with_names(rows, vocabulary)
        check_same_names(labels, names, "the parts before")
        names = names[0] or labels[0], names[1] or labels[1]
        tensors.append(as_triples_tensor(ids, num_times=num_times).cpu())
        counts.add(getattr(ids, "num_times", num_times))
    if len(counts) > 1:
        raise ValueError(f"all parts must have one number of times; got {sorted(counts, key=str)}")
    return tensors, names, counts.pop() if counts else None


def check_same_names(names: Names, theirs: Names, whose: str = "vocabulary") -> None:
    """Raise for the first id that two pairs of vocabularies name differently."""
    for what, one, other in zip(("entity", "relation"), names, theirs, strict=True):
        if one is None or other is None or one == other:
            continue
        if len(one) != len(other):
            raise ValueError(
                f"the triples have names for {len(one):,} ids ({what}), {whose} for "
                f"{len(other):,}: the same ids must have the same names"
            )
        place = next(i for i in range(len(one)) if one.name(i) != other.name(i))
        raise ValueError(
            f"{what} {place} is {shown(one.name(place))} in the triples, but "
            f"{shown(other.name(place))} in {whose}: the same ids must have the same names"
        )


def ids_or_names(name: str, values: object, names: Vocabulary | None) -> Tensor:
    """Return ids of at most one axis, given as ids or as names.

    Raises TypeError for names without a vocabulary, and ValueError for an unknown name.
    """
    values = _array_of(values)
    if names is None or not _is_text(values):
        return as_integers(name, values)
    try:
        if isinstance(values, str):
            return torch.tensor(names[values], dtype=torch.int64, device="cpu")
        return names.ids(values)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def named_columns(
    columns: Mapping[str, Tensor | list[int]], names: Names
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Return columns ``head``, ``relation``, ``tail`` of names, and columns of labels.

    With a column ``time``, relations are no pairs. Ids without a vocabulary stay ids, and -1
    becomes ``?``. A name without a label has the label None. A vocabulary without labels has no
    column of labels.
    """
    named: dict[str, list[Any]] = {}
    labels: dict[str, list[Any]] = {}
    of_relations = relation_names(names[1]) if "time" in columns else (names[1],)
    vocabularies = dict(zip(("relation", "time"), of_relations, strict=False))
    for column, ids in columns.items():
        vocabulary = vocabularies.get(column, names[0])
        listed = ids.tolist() if isinstance(ids, Tensor) else ids
        if vocabulary is not None:
            if vocabulary.labels:
                of_ids = [vocabulary.label(id) if id >= 0 else None for id in listed]
                labels[f"{column}_label"] = of_ids
            listed = [vocabulary.name(id) if id >= 0 else "?" for id in listed]
        named[column] = listed
    return named, labels


def relation_names(relations: Vocabulary | None) -> tuple[Vocabulary | None, Vocabulary | None]:
    """Return the names of relations and of times, of pairs or of relations alone."""
    both = (relations,) if relations is None else relations.columns
    return both[0], both[1] if len(both) > 1 else None


def _array_of(values: Any) -> Any:
    """Return the array of a column or frame of pandas or polars; other values as they are."""
    return values.to_numpy() if hasattr(values, "to_numpy") else values


def _holds_names(rows: object) -> TypeGuard[Sequence[Sequence[str]]]:
    if isinstance(rows, np.ndarray):
        return rows.size > 0 and _is_text(rows.reshape(-1))
    return isinstance(rows, list | tuple) and len(rows) > 0 and _is_text(rows[0])


def _is_text(values: object) -> TypeGuard[str | Sequence[str]]:
    if isinstance(values, str):
        return True
    if isinstance(values, np.ndarray):
        return values.dtype.kind == "U" or (values.dtype.kind == "O" and _is_text(list(values)))
    return isinstance(values, list | tuple) and any(isinstance(value, str) for value in values)


def _labels(ids: Any) -> Vocabulary | None:
    """Return the vocabulary of a mapping of names to the ids 0 .. n - 1."""
    if not isinstance(ids, Mapping) or sorted(ids.values()) != list(range(len(ids))):
        return None
    return Vocabulary(sorted(ids, key=ids.__getitem__))
