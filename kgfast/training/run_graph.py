"""The graph of a run: names and triples as they were when it began, and whether data are the same.

Rows of a table mean nothing without the names that they had. So a run keeps its vocabularies and
its triples once, in ``graph.safetensors``, and whatever data it is later given are read through
them: another order of names or of lines changes nothing, another graph is an error.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kgfast.datasets import Dataset
from kgfast.datasets.base import SPLITS
from kgfast.graph import Triples, Vocabulary
from kgfast.rng import scrambled
from kgfast.text import shown
from kgfast.training.checkpoint import load, save

_FIRST = 5  # of what differs, in a message
_WORD = np.uint64

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RunGraph:
    """The graph that a run began with.

    Attributes
    ----------
    entities, relations : Vocabulary
        In the order of the rows of the tables.
    splits : dict of str to Tensor
        int64 ``[T, 3]`` of train, valid and test, in the order in which a run draws batches.

    Examples
    --------
    >>> from kgfast.datasets import synthetic
    >>> graph = RunGraph.of(synthetic(200, 6, 500, 50, 50))
    >>> graph.fingerprint["train"] == RunGraph.of(synthetic(200, 6, 500, 50, 50, seed=1)).rows
    False
    """

    entities: Vocabulary
    relations: Vocabulary
    splits: Mapping[str, Tensor]

    @classmethod
    def of(cls, dataset: Dataset) -> "RunGraph":
        """That of a dataset; tensors on the CPU are shared with it."""
        splits = {name: dataset.split(name).hrt.cpu() for name in SPLITS}
        return cls(dataset.entities, dataset.relations, splits)

    @cached_property
    def rows(self) -> str:
        """Digest of the names in the order of rows: it ties a checkpoint to its vocabulary."""
        digest = hashlib.blake2b(digest_size=16)
        for names in (self.entities, self.relations):
            for name in names:
                digest.update(_with_length(name))
            digest.update(b"\n")
        return digest.hexdigest()

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """Digests of the names and of each split, by name: no order and no id changes them."""
        names = hashlib.blake2b(digest_size=16)
        for vocabulary in (self.entities, self.relations):
            for name in sorted(vocabulary):
                names.update(_with_length(name))
            names.update(b"\n")
        entity, relation = _hashes(self.entities), _hashes(self.relations)
        return {"names": names.hexdigest()} | {
            split: _digest_of_triples(hrt.numpy(), entity, relation)
            for split, hrt in self.splits.items()
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it, as :func:`kgfast.training.checkpoint.save` does."""
        tensors: dict[str, Tensor] = {}
        for what, names in (("entities", self.entities), ("relations", self.relations)):
            parts = [name.encode("utf-8", "surrogatepass") for name in names]
            joined = np.frombuffer(bytearray(b"".join(parts)), np.uint8)
            tensors[f"{what}.text"] = torch.from_numpy(joined)
            ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
            tensors[f"{what}.ends"] = torch.from_numpy(ends)
        is_small = max(len(self.entities), len(self.relations)) <= torch.iinfo(torch.int32).max
        dtype = torch.int32 if is_small else torch.int64
        tensors |= {name: hrt.to(dtype) for name, hrt in self.splits.items()}
        save(path, tensors, {"graph": self.rows, "fingerprint": self.fingerprint})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RunGraph":
        """Read it.

        Raises
        ------
        FileNotFoundError
            If there is none.
        ValueError
            If it is damaged, or holds something else; names the path.
        """
        tensors, meta = load(path)
        try:
            entities, relations = (_vocabulary(tensors, what) for what in ("entities", "relations"))
            splits = {
                name: Triples(tensors[name], entities=entities, relations=relations).hrt
                for name in SPLITS
            }
            graph = cls(entities, relations, splits)
            if meta["graph"] != graph.rows:
                raise ValueError("its digest is not that of its names")
        except KeyError as error:
            raise ValueError(f"{path}: not the graph of a run: {error} is missing") from None
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path}: not the graph of a run: {error}") from None
        return graph

    def read(self, dataset: Dataset, source: str) -> Dataset:
        """A dataset with the ids and the order that the run has, if it is the same graph.

        Parameters
        ----------
        dataset : Dataset
            In whatever order its folder has.
        source : str
            What to blame.

        Returns
        -------
        Dataset
            The one that was given, where nothing differs.

        Raises
        ------
        ValueError
            If names or triples are missing or new: the first five of each.
        """
        problems = [
            *_other_names("entity", "entities", self.entities, dataset.entities),
            *_other_names("relation", "relations", self.relations, dataset.relations),
        ]
        if not problems:
            if self._is(dataset):
                return dataset
            problems = self._other_triples(dataset)
        if problems:
            raise ValueError(f"{source} is not the graph of this run: {'; '.join(problems)}")
        return self.dataset(dataset.name)

    def dataset(self, name: str) -> Dataset:
        """The graph as a dataset."""
        train, valid, test = (
            Triples(self.splits[name], entities=self.entities, relations=self.relations)
            for name in SPLITS
        )
        return Dataset(name, train, valid, test, self.entities, self.relations)

    def _is(self, dataset: Dataset) -> bool:
        """Whether a dataset has the ids and the order of the run already."""
        if (dataset.entities, dataset.relations) != (self.entities, self.relations):
            return False
        rows = ((dataset.split(name).hrt.cpu(), own) for name, own in self.splits.items())
        return all(torch.equal(*pair) for pair in rows)

    def _other_triples(self, dataset: Dataset) -> list[str]:
        """What differs between the splits of the run and those of a dataset with its names."""
        entity = self.entities.ids(dataset.entities).numpy()
        relation = self.relations.ids(dataset.relations).numpy()
        problems = []
        for split in SPLITS:
            theirs = dataset.split(split).hrt.cpu().numpy()
            columns = [entity[theirs[:, 0]], relation[theirs[:, 1]], entity[theirs[:, 2]]]
            here, there = self.splits[split].numpy(), np.stack(columns, axis=1)
            if np.array_equal(_sorted(here), _sorted(there)):
                continue
            for what, rows in (
                ("lacks", _beyond(here, there)),
                ("has beyond those of the run", _beyond(there, here)),
            ):
                if len(rows):
                    triples = [self._named(row) for row in rows[:_FIRST].tolist()]
                    problems.append(
                        f"{split} {what} {len(rows):,} triple{'s'[: len(rows) != 1]}: "
                        + _listed(triples, len(rows))
                    )
        return problems

    def _named(self, row: list[int]) -> str:
        head, relation, tail = row
        names = self.entities.name(head), self.relations.name(relation), self.entities.name(tail)
        return f"({', '.join(map(shown, names))})"


def _vocabulary(tensors: Mapping[str, Tensor], what: str) -> Vocabulary:
    """The names that a file holds, end to end."""
    text = tensors[f"{what}.text"].numpy().tobytes()
    edges = [0, *tensors[f"{what}.ends"].tolist()]
    if edges != sorted(edges) or edges[-1] != len(text):
        raise ValueError(f"the ends of the names of {what} are not those of their text")
    return Vocabulary(
        text[start:end].decode("utf-8", "surrogatepass") for start, end in pairwise(edges)
    )


def _other_names(one: str, many: str, here: Vocabulary, there: Vocabulary) -> list[str]:
    """Which names a dataset lacks, and which it has beyond those of the run."""
    if here == there:
        return []
    problems = []
    for what, names in (
        ("lacks", [name for name in here if name not in there]),
        ("has beyond those of the run", [name for name in there if name not in here]),
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
    """The rows, in their order, that the others do not have, or not as often."""
    both = np.concatenate([others, rows])
    _, kind = np.unique(both, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    counts = np.bincount(kind[: len(others)], minlength=int(kind.max(initial=0)) + 1)
    of_rows = kind[len(others) :]
    order = np.argsort(of_rows, kind="stable")
    ordered = of_rows[order]
    starts = np.searchsorted(ordered, ordered)
    occurrence = np.empty_like(order)
    occurrence[order] = np.arange(len(order)) - starts  # how many equal rows stand before
    return rows[occurrence >= counts[of_rows]]


def _with_length(name: str) -> bytes:
    text = name.encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "little") + text


def _hashes(names: Iterable[str]) -> NDArray[Any]:
    """A 64-bit hash of each name."""
    encoded = (name.encode("utf-8", "surrogatepass") for name in names)
    parts = [hashlib.blake2b(text, digest_size=8).digest() for text in encoded]
    return np.frombuffer(b"".join(parts), dtype="<u8").astype(_WORD)


def _digest_of_triples(hrt: Ids, entity: NDArray[Any], relation: NDArray[Any]) -> str:
    """Of the multiset of triples of names: of their sorted hashes."""
    value = _mixed(entity[hrt[:, 0]])
    value = _mixed(value + relation[hrt[:, 1]])
    value = _mixed(value + entity[hrt[:, 2]])
    return hashlib.blake2b(np.sort(value).astype("<u8").tobytes(), digest_size=16).hexdigest()


def _mixed(value: NDArray[Any]) -> NDArray[Any]:
    """Return the words, uint64, scrambled."""
    return scrambled(torch.from_numpy(value.view(np.int64))).numpy().view(_WORD)
