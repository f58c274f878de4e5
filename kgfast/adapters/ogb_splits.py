"""Dicts of OGB's splits: triples and negatives as rows of a model."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgfast.graph import as_columns, as_integers
from kgfast.models import SIDES
from kgfast.text import shown

_PAIRS = 1 << 20  # ids of a block of negatives, both sides: 8 MiB as int64


class OgbSplit:
    """Split of OGB with ids as rows of a model."""

    def __init__(self, split: Mapping[str, Any], num_nodes: Any, num_entities: int | None) -> None:
        if not isinstance(split, Mapping):
            raise ValueError(f"split must be a mapping of get_edge_split(); got {shown(split)}")
        self._split = split
        self._num_nodes = None if num_nodes is None else _checked_counts(num_nodes)
        if self._num_nodes is not None and num_entities is not None:
            total = sum(self._num_nodes.values())
            if total != num_entities:
                raise ValueError(
                    f"num_nodes: {total:,} nodes of all types, but the model has "
                    f"{num_entities:,} entities"
                )
        named = {name: self._of(name) for name in ("head", "relation", "tail")}
        columns = [column.cpu() for column in as_columns(named)]
        self.types = [self._types_of(side, len(columns[0])) for side in SIDES]
        for side, column, types in zip(SIDES, (columns[0], columns[2]), self.types, strict=True):
            self._shift(side, column[:, None], types)
        if self.types[0] is not None:
            columns[0] = columns[0] + self._starts[self.types[0]]
            columns[2] = columns[2] + self._starts[self.types[1]]
        self.hrt = torch.stack(columns, 1)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of triples with negatives that are read together."""
        widths = []
        for name in ("head_neg", "tail_neg"):
            try:
                shape = np.shape(self._of(name))
            except ValueError:  # rows of unequal length
                shape = ()
            if len(shape) != 2 or shape[0] != len(self.hrt):
                raise ValueError(
                    f"{name} must have a row for each of {len(self.hrt)} triples; got shape "
                    f"{list(shape)}"
                )
            widths.append(shape[1])
        step = max(1, _PAIRS // max(1, sum(widths)))
        for first in range(0, max(1, len(self.hrt)), step):
            yield first, min(first + step, len(self.hrt))

    def negatives(self, column: int, first: int, last: int) -> Tensor:
        """Return the negatives of a range of triples on one side, as rows of the model."""
        name = f"{SIDES[column]}_neg"
        part = self._of(name)[first:last]
        if isinstance(part, np.memmap):
            part = np.array(part)
        rows = as_integers(name, part).cpu()
        types = self.types[column]
        return self._shift(name, rows, None if types is None else types[first:last], first)

    def groups(self) -> Iterator[tuple[Tensor, list[Tensor | None]]]:
        """Yield triples with equal types, and the entities of these types."""
        heads, tails = self.types
        if heads is None or tails is None:
            yield torch.arange(len(self.hrt), dtype=torch.int64, device="cpu"), [None, None]
            return
        for pair in torch.stack([heads, tails], 1).unique(dim=0):
            rows = ((heads == pair[0]) & (tails == pair[1])).nonzero()[:, 0]
            yield rows, [self._entities(int(kind)) for kind in pair]

    def _entities(self, kind: int) -> Tensor:
        assert self._num_nodes is not None
        start, count = int(self._starts[kind]), list(self._num_nodes.values())[kind]
        return torch.arange(start, start + count, dtype=torch.int64, device="cpu")

    @property
    def _starts(self) -> Tensor:
        assert self._num_nodes is not None
        sizes = [0, *self._num_nodes.values()]
        return torch.tensor(sizes, dtype=torch.int64, device="cpu").cumsum(0)[:-1]

    def _of(self, name: str) -> Any:
        if name not in self._split:
            raise KeyError(f"the split lacks {name!r}, and has {', '.join(map(str, self._split))}")
        return self._split[name]

    def _types_of(self, side: str, count: int) -> Tensor | None:
        name = f"{side}_type"
        if self._num_nodes is None:
            if name in self._split:
                raise ValueError(
                    f"the split has {name}, so that ids count from 0 within a type: pass "
                    'num_nodes=dataset[0]["num_nodes_dict"]'
                )
            return None
        numbers = {kind: number for number, kind in enumerate(self._num_nodes)}
        names = self._of(name)
        if not hasattr(names, "__len__") or len(names) != count:
            raise ValueError(f"{name} must name a type for each of {count} triples")
        for row, kind in enumerate(names):
            if not isinstance(kind, str) or kind not in numbers:
                known = ", ".join(map(str, numbers))
                raise ValueError(f"{name}[{row}] must be one of {known}; got {shown(kind)}")
        return torch.tensor([numbers[kind] for kind in names], dtype=torch.int64, device="cpu")

    def _shift(self, name: str, ids: Tensor, types: Tensor | None, first: int = 0) -> Tensor:
        """Return ids ``[b, K]`` of types ``[b]`` as rows of the model.

        Without types, ids are checked later, with the model.
        """
        if types is None or self._num_nodes is None:
            return ids
        sizes = torch.tensor(list(self._num_nodes.values()), dtype=torch.int64, device="cpu")[types]
        outside = ((ids < 0) | (ids >= sizes[:, None])).nonzero()
        if len(outside):
            row, column = (int(axis) for axis in outside[0])
            kind = list(self._num_nodes)[int(types[row])]
            place = f"{first + row}, {column}" if name.endswith("_neg") else f"{first + row}"
            raise ValueError(
                f"{name}[{place}] must be in 0 .. {int(sizes[row]) - 1}, as type {kind!r} has; "
                f"got {int(ids[row, column])}"
            )
        return ids + self._starts[types][:, None]


def _checked_counts(num_nodes: Any) -> dict[str, int]:
    is_one = isinstance(num_nodes, Mapping) and all(
        isinstance(kind, str) and hasattr(count, "__index__") and int(count) >= 0
        for kind, count in num_nodes.items()
    )
    if not is_one:
        raise ValueError(
            f"num_nodes must map names of types to numbers of nodes; got {shown(num_nodes)}"
        )
    return {kind: int(count) for kind, count in num_nodes.items()}
