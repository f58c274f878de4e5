"""Training examples: the terms of the mean that a training step minimizes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from kgfast.graph import KnownTriples
from kgfast.models import Side

Mode = Literal["negative", "1vsall", "kvsall"]
_COLUMNS = {"tail": [0, 1, 2], "head": [2, 1, 0]}  # anchor, relation, target of a triple


@dataclass(frozen=True, eq=False)
class ExampleQueries:
    """Examples of one side, int64 ``[B]`` each."""

    side: Side
    anchors: Tensor
    relations: Tensor
    targets: Tensor
    known: KnownTriples | None = None  # all answers of each query, instead of targets

    @classmethod
    def of(cls, hrt: Tensor, side: Side, known: KnownTriples | None = None) -> "ExampleQueries":
        """Make an example of each triple ``[B, 3]``."""
        anchors, relations, targets = hrt[:, _COLUMNS[side]].t().contiguous()
        return cls(side, anchors, relations, targets, known)

    def __len__(self) -> int:
        return len(self.anchors)

    def part(self, rows: slice | Tensor) -> "ExampleQueries":
        """Select examples by a slice or by row ids."""
        columns = self.anchors[rows], self.relations[rows], self.targets[rows]
        return ExampleQueries(self.side, *columns, known=self.known)

    def blocks(self, size: int) -> Iterator["ExampleQueries"]:
        """Cut examples into blocks; no examples are one empty block."""
        for first in range(0, max(1, len(self)), size):
            yield self.part(slice(first, first + size))

    def runs(self) -> Tensor:
        """Return for each example the number ``[B]`` of the run of equal queries, from 0."""
        if not len(self):
            return self.anchors
        is_other = self.anchors.diff().bool() | self.relations.diff().bool()
        return functional.pad(is_other.cumsum(0), (1, 0))

    def positives(self) -> tuple[Tensor, Tensor]:
        """Return the true answers of each example as CSR."""
        if self.known is not None:
            return self.known.exclude(self.anchors, self.relations, self.side)
        ends = torch.arange(len(self) + 1, dtype=torch.int64, device=self.targets.device)
        return ends, self.targets


@dataclass(frozen=True, eq=False)
class Examples:
    """Training examples: first all that predict tails, then all that predict heads.

    An example is a triple and a side, or (``kvsall``) a distinct query with all its answers, where
    the predicted entity is -1.
    """

    hrt: Tensor  # int64 [E, 3]
    num_tails: int
    known: KnownTriples | None

    @classmethod
    def of(cls, hrt: Tensor, mode: Mode) -> "Examples":
        """Make the examples of training triples, int64 ``[T, 3]``."""
        if mode != "kvsall":
            return cls(torch.cat([hrt, hrt]), len(hrt), None)
        tails, heads = (
            functional.pad(hrt[:, _COLUMNS[side][:2]].unique(dim=0), (0, 1), value=-1)
            for side in ("tail", "head")
        )
        known = KnownTriples(hrt).to(hrt.device)
        return cls(torch.cat([tails, heads.flip(1)]), len(tails), known)

    def __len__(self) -> int:
        return len(self.hrt)

    def side_of(self, example: int) -> Side:
        """Return the side that an example predicts."""
        return "tail" if example < self.num_tails else "head"

    def chunks(self, size: int) -> Iterator[tuple[Tensor, ExampleQueries]]:
        """Yield (ids, examples) of one side at a time; equal queries are neighbours."""
        count = self.num_tails
        of_sides: list[tuple[Side, int, int]] = [("tail", 0, count), ("head", count, len(self))]
        for side, first, last in of_sides:
            queries = ExampleQueries.of(self.hrt[first:last], side, self.known)
            by_relation = queries.relations.argsort(stable=True)
            by_query = by_relation[queries.anchors[by_relation].argsort(stable=True)]
            for rows in by_query.split(size):
                if len(rows):
                    yield rows + first, queries.part(rows)
