"""The graph of a run: the names and triples at its beginning.

A run stores its vocabularies and triples once, in ``graph.safetensors``, because they define the
entity of each row of a table. Later data are read through this file: another order of names or
lines changes nothing, another graph is an error.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from kgfast.datasets import Dataset
from kgfast.datasets.dataset import SPLITS
from kgfast.datasets.identity import differences, fingerprint, names_digest
from kgfast.graph import Triples, Vocabulary
from kgfast.training.checkpoint import load, save


class RunGraph:
    """Graph at the beginning of a run.

    Parameters
    ----------
    dataset : Dataset
        Names in the order of the rows of tables; triples in the order from which batches are drawn.

    Attributes
    ----------
    entities, relations : Vocabulary
    splits : dict of str to Tensor
        Train, valid and test, int64 ``[T, 3]``, on the CPU.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.entities, self.relations = dataset.entities, dataset.relations
        self.splits = {name: dataset.split(name).hrt.cpu() for name in SPLITS}

    @cached_property
    def rows(self) -> str:
        """Digest of the names in the order of rows, which a checkpoint stores too."""
        return names_digest(self._dataset)

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """Digests of the names and of each split, which depend on no order and no id."""
        return fingerprint(self._dataset)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph by :func:`kgfast.training.checkpoint.save`."""
        tensors: dict[str, Tensor] = {}
        for what, names in (("entities", self.entities), ("relations", self.relations)):
            texts = [name.encode("utf-8", "surrogatepass") for name in names]
            joined = np.frombuffer(bytearray(b"".join(texts)), np.uint8)
            tensors[f"{what}.text"] = torch.from_numpy(joined)
            ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
            tensors[f"{what}.ends"] = torch.from_numpy(ends)
        is_small = max(len(self.entities), len(self.relations)) <= torch.iinfo(torch.int32).max
        dtype = torch.int32 if is_small else torch.int64
        tensors |= {name: hrt.to(dtype) for name, hrt in self.splits.items()}
        save(path, tensors, {"graph": self.rows, "fingerprint": self.fingerprint})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RunGraph":
        """Read a graph that :meth:`save` wrote; a ValueError names a damaged file."""
        tensors, meta = load(path)
        try:
            names = _vocabulary(tensors, "entities"), _vocabulary(tensors, "relations")
            train, valid, test = (
                Triples(tensors[name], entities=names[0], relations=names[1]) for name in SPLITS
            )
            graph = cls(Dataset("", train, valid, test, *names))
            if meta["graph"] != graph.rows:
                raise ValueError("the digest is not that of the names")
        except KeyError as error:
            raise ValueError(f"{path}: not the graph of a run: {error} is missing") from None
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path}: not the graph of a run: {error}") from None
        return graph

    def read(self, dataset: Dataset, source: str) -> Dataset:
        """Return a dataset with the ids and the order of the run, if both have one graph.

        Names and triples may be in any order. A ValueError lists the first five names or triples
        that are missing or new; ``source`` names the dataset there.
        """
        same_names = (dataset.entities, dataset.relations) == (self.entities, self.relations)
        if same_names and all(
            torch.equal(dataset.split(name).hrt.cpu(), hrt) for name, hrt in self.splits.items()
        ):
            return dataset
        problems = differences(self._dataset, dataset, "the run")
        if problems:
            raise ValueError(f"{source} is not the graph of this run: {'; '.join(problems)}")
        return self.named(dataset.name)

    def named(self, name: str) -> Dataset:
        """Return the graph as a dataset of a name."""
        return replace(self._dataset, name=name)


def _vocabulary(tensors: Mapping[str, Tensor], what: str) -> Vocabulary:
    text = tensors[f"{what}.text"].numpy().tobytes()
    edges = [0, *tensors[f"{what}.ends"].tolist()]
    if edges != sorted(edges) or edges[-1] != len(text):
        raise ValueError(f"the ends of the names of {what} are not those of their text")
    return Vocabulary(
        text[start:end].decode("utf-8", "surrogatepass") for start, end in pairwise(edges)
    )
