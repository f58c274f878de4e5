"""Compare datasets as graphs: digests that do not depend on order, and differences."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kgfast.datasets.dataset import SPLITS, Dataset
from kgfast.graph import Vocabulary
from kgfast.rng import scrambled
from kgfast.text import shown

_FIRST = 5  # differences in a message
_WORD = np.uint64

Ids = NDArray[np.int64]


def names_digest(dataset: Dataset) -> str:
    """Return a digest of the names in order."""
    return _digest_of_names(dataset.entities, dataset.relations)


def fingerprint(dataset: Dataset) -> dict[str, str]:
    """Return digests of the names and of each split, independent of order and ids.

    Examples
    --------
    >>> from kgfast.datasets import synthetic
    >>> one, other = (fingerprint(synthetic(200, 6, 500, 50, 50, seed=it)) for it in (0, 1))
    >>> one["names"] == other["names"], one["train"] == other["train"]
    (True, False)
    """
    names = _digest_of_names(sorted(dataset.entities), sorted(dataset.relations))
    entity, relation = _hashes(dataset.entities), _hashes(dataset.relations)
    return {"names": names} | {
        split: _digest_of_triples(dataset.split(split).hrt.cpu().numpy(), entity, relation)
        for split in SPLITS
    }


def differences(own: Dataset, other: Dataset, whose: str) -> list[str]:
    """Say what another dataset lacks and what it has in addition: five of each.

    Triples are compared if both datasets have equal names. ``whose`` is the own dataset in words.
    """
    return [
        *_other_names("entity", "entities", (own.entities, other.entities), whose),
        *_other_names("relation", "relations", (own.relations, other.relations), whose),
    ] or _other_triples(own, other, whose)


def _other_triples(own: Dataset, other: Dataset, whose: str) -> list[str]:
    entity = own.entities.ids(other.entities).numpy()
    relation = own.relations.ids(other.relations).numpy()
    problems = []
    for split in SPLITS:
        theirs = other.split(split).hrt.cpu().numpy()
        columns = [entity[theirs[:, 0]], relation[theirs[:, 1]], entity[theirs[:, 2]]]
        here, there = own.split(split).hrt.cpu().numpy(), np.stack(columns, axis=1)
        if np.array_equal(_sorted(here), _sorted(there)):
            continue
        for what, rows in (
            ("lacks", _beyond(here, there)),
            (f"has beyond those of {whose}", _beyond(there, here)),
        ):
            if len(rows):
                triples = [_named(own, row) for row in rows[:_FIRST].tolist()]
                problems.append(
                    f"{split} {what} {len(rows):,} triple{'s'[: len(rows) != 1]}: "
                    + _listed(triples, len(rows))
                )
    return problems


def _named(dataset: Dataset, row: list[int]) -> str:
    head, relation, tail = row
    entities, relations = dataset.entities, dataset.relations
    names = entities.name(head), relations.name(relation), entities.name(tail)
    return f"({', '.join(map(shown, names))})"


def _other_names(one: str, many: str, both: tuple[Vocabulary, Vocabulary], whose: str) -> list[str]:
    here, there = both
    if here == there:
        return []
    problems = []
    for what, names in (
        ("lacks", [name for name in here if name not in there]),
        (f"has beyond those of {whose}", [name for name in there if name not in here]),
    ):
        if names:
            noun = one if len(names) == 1 else many
            first = [shown(name) for name in names[:_FIRST]]
            problems.append(f"it {what} {len(names):,} {noun}: {_listed(first, len(names))}")
    return problems


def _listed(first: list[str], count: int) -> str:
    return ", ".join(first) + (", ..." if count > len(first) else "")


def _sorted(rows: Ids) -> Ids:
    return rows[np.lexsort(rows.T)]


def _beyond(rows: Ids, others: Ids) -> Ids:
    """Return the rows, in order, that ``others`` lacks or has less often."""
    both = np.concatenate([others, rows])
    _, kind = np.unique(both, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    counts = np.bincount(kind[: len(others)], minlength=int(kind.max(initial=0)) + 1)
    of_rows = kind[len(others) :]
    order = np.argsort(of_rows, kind="stable")
    ordered = of_rows[order]
    starts = np.searchsorted(ordered, ordered)
    occurrence = np.empty_like(order)
    occurrence[order] = np.arange(len(order)) - starts  # number of equal rows before
    return rows[occurrence >= counts[of_rows]]


def _digest_of_names(*vocabularies: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for names in vocabularies:
        for name in names:
            text = name.encode("utf-8", "surrogatepass")
            digest.update(len(text).to_bytes(8, "little") + text)
        digest.update(b"\n")
    return digest.hexdigest()


def _hashes(names: Iterable[str]) -> NDArray[Any]:
    """Return a 64-bit hash of each name."""
    encoded = (name.encode("utf-8", "surrogatepass") for name in names)
    parts = [hashlib.blake2b(text, digest_size=8).digest() for text in encoded]
    return np.frombuffer(b"".join(parts), dtype="<u8").astype(_WORD)


def _digest_of_triples(hrt: Ids, entity: NDArray[Any], relation: NDArray[Any]) -> str:
    """Return a digest of the multiset of triples of names, from sorted hashes."""
    value = _mixed(entity[hrt[:, 0]])
    value = _mixed(value + relation[hrt[:, 1]])
    value = _mixed(value + entity[hrt[:, 2]])
    return hashlib.blake2b(np.sort(value).astype("<u8").tobytes(), digest_size=16).hexdigest()


def _mixed(value: NDArray[Any]) -> NDArray[Any]:
    return scrambled(torch.from_numpy(value.view(np.int64))).numpy().view(_WORD)
