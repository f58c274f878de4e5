"""Searches of rows that are given, with an index: as the peers', which build one first."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import kgfast
from lib.peers.nearest import Search


def normal_like(rows: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Draw rows of normal numbers that have the mean and covariance of a table's."""
    generator = np.random.default_rng(0)
    root = np.linalg.cholesky(np.cov(rows.T) + 1e-9 * np.eye(rows.shape[1]) * rows.var())
    return generator.normal(size=(count, rows.shape[1])) @ root.T + rows.mean(0)


class RowsModel:
    """A model whose queries are the rows of a search, one after the other."""

    num_relations = 1

    def __init__(self, search: Search, score: str) -> None:
        self._search, self.score = search, score
        self.num_entities, self.dim = search.table.shape

    def queries(self, anchors: Tensor, relations: Tensor, side: Any) -> Tensor:
        """Return the rows of these numbers, ``[B, F]``."""
        return self._search.queries[anchors]

    def candidates(self, side: Any) -> Tensor:
        """Return the table."""
        return self._search.table


class Indexed:
    """`kgfast.topk` with an index that was built before; calls return ids ``[B, k]``."""

    def __init__(self, search: Search, score: str) -> None:
        self._model = RowsModel(search, score)
        self._asked = {"heads": torch.arange(len(search.queries)), "relations": 0, "k": search.k}
        self._index = kgfast.Index(self._model)

    def __call__(self) -> Tensor:
        """Search."""
        return kgfast.topk(self._model, **self._asked, index=self._index).ids
