"""Digests of datasets as graphs, which do not depend on order."""

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from kgfast.datasets.dataset import SPLITS, Dataset
from kgfast.rng import scrambled


def names_digest(dataset: Dataset) -> str:
    """Return a digest of the names in order."""
    return _digest_of_names(dataset.entities, *dataset.relations.columns)


def fingerprint(dataset: Dataset) -> dict[str, str]:
    """Return digests of the names and of each split, independent of order and ids.

    Examples
    --------
    >>> from kgfast.datasets import synthetic
    >>> one, other = (fingerprint(synthetic(200, 6, 500, 50, 50, seed=seed)) for seed in (0, 1))
    >>> one["names"] == other["names"], one["train"] == other["train"]
    (True, False)
    """
    digests = {"names": _digest_of_names(sorted(dataset.entities), sorted(dataset.relations))}
    entity, relation = _hashes(dataset.entities), _hashes(dataset.relations)
    for split in SPLITS:
        head, names, tail = dataset.split(split).hrt.cpu().T
        words = scrambled(scrambled(scrambled(entity[head]) + relation[names]) + entity[tail])
        value = np.sort(words.numpy().view(np.uint64))  # a multiset of triples of names
        digest = hashlib.blake2b(value.astype("<u8").tobytes(), digest_size=16)
        digests[split] = digest.hexdigest()
    return digests


def check_same_graph(run: Dataset, data: Dataset) -> None:
    """Raise a ValueError unless data are the graph of a run, in any order of names and lines."""
    stored, read = fingerprint(run), fingerprint(data)
    different = [name for name in stored if stored[name] != read[name]]
    if different:
        raise ValueError(
            f"dataset {data.name} is not the graph of this run: {', '.join(different)} differ"
        )


def _digest_of_names(*vocabularies: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for names in vocabularies:
        for name in names:
            text = name.encode("utf-8", "surrogatepass")
            digest.update(len(text).to_bytes(8, "little") + text)
        digest.update(b"\n")
    return digest.hexdigest()


def _hashes(names: Iterable[str]) -> Tensor:
    """Return a 64-bit hash of each name."""
    texts = (name.encode("utf-8", "surrogatepass") for name in names)
    digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return torch.from_numpy(np.frombuffer(digests, dtype="<i8").astype(np.int64))
