"""Compare datasets as graphs: digests that do not depend on order, and differences."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kgfast.datasets.dataset import SPLITS, Dataset
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
    problems = []
    for nouns in (("entity", "entities"), ("relation", "relations")):
        here, there = (getattr(dataset, nouns[1]).names for dataset in (own, other))
        problems += _differences("it", nouns, (here, there), whose)
    for split in () if problems else SPLITS:
        here, there = (_named(dataset, split) for dataset in (own, other))
        problems += _differences(split, ("triple", "triples"), (here, there), whose)
    return problems


def _named(dataset: Dataset, split: str) -> list[tuple[str, ...]]:
    names = dataset.entities.names, dataset.relations.names, dataset.entities.names
    columns = zip(names, dataset.split(split).hrt.T.tolist(), strict=True)
    return list(zip(*([own[id] for id in ids] for own, ids in columns), strict=True))


def _differences(
    what: str, nouns: tuple[str, str], both: tuple[Sequence[Any], Sequence[Any]], whose: str
) -> list[str]:
    here, there = (Counter(values) for values in both)
    problems = []
    for verb, more in (("lacks", here - there), (f"has beyond those of {whose}", there - here)):
        if count := more.total():
            first = ", ".join(map(shown, islice(more.elements(), _FIRST)))
            more_follow = ", ..." * (count > _FIRST)
            problems.append(f"{what} {verb} {count:,} {nouns[count > 1]}: {first}{more_follow}")
    return problems


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
