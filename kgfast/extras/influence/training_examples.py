"""Training examples: the terms of the mean that a training step minimizes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from kgfast.graph import KnownTriples
from kgfast.models import Side

Mode = Literal["negative", "1vsall", "kvsall"]


@dataclass(frozen=True, eq=False)
class ExampleQueries:
    """Examples of one side, int64 ``[B]`` each."""

    side: Side
    anchors: Tensor
    relations: Tensor
    targets: Tensor | None  # None if a query has all its answers
    known: KnownTriples | None  # the answers, if targets is None

    def __len__(self) -> int:
        return len(self.anchors)

    def part(self, rows: slice | Tensor) -> "ExampleQueries":
        """Select examples by a slice or by row ids."""
        targets = None if self.targets is None else self.targets[rows]
        return replace(
            self, anchors=self.anchors[rows], relations=self.relations[rows], targets=targets
        )

    def by_query(self) -> Tensor:
        """Return row ids ``[B]`` sorted by anchor, then relation; stable."""
        rows = self.relations.argsort(stable=True)
        return rows[self.anchors[rows].argsort(stable=True)]

    def runs(self) -> Tensor:
        """Return for each example the number ``[B]`` of the run of equal queries, from 0."""
        if not len(self):
            return self.anchors
        is_other = self.anchors.diff().bool() | self.relations.diff().bool()
        return functional.pad(is_other.cumsum(0), (1, 0))

    def positives(self) -> tuple[Tensor, Tensor]:
        """Return the true answers of each example as CSR."""
        if self.targets is not None:
            count = len(self.targets)
            return torch.arange(count + 1, dtype=torch.int64, device=self.targets.device), (
                self.targets
            )
        assert self.known is not None
        return self.known.exclude(self.anchors, self.relations, self.side)


@dataclass(frozen=True, eq=False)
class Examples:
    """Training examples: first all that predict tails, then all that predict heads.

    An example is a triple and a side, or (``kvsall``) a distinct query with all its answers.
    """

    tails: ExampleQueries
    heads: ExampleQueries

    @classmethod
    def of(cls, hrt: Tensor, mode: Mode) -> "Examples":
        """Make the examples of training triples, int64 ``[T, 3]``."""
        if mode == "kvsall":
            known = KnownTriples(hrt).to(hrt.device)
            pairs = hrt[:, :2].unique(dim=0), hrt[:, [2, 1]].unique(dim=0)
            tails, heads = (pair.t().contiguous() for pair in pairs)
            return cls(
                ExampleQueries("tail", tails[0], tails[1], None, known),
                ExampleQueries("head", heads[0], heads[1], None, known),
            )
        h, r, t = hrt.t().contiguous()
        return cls(ExampleQueries("tail", h, r, t, None), ExampleQueries("head", t, r, h, None))

    def __len__(self) -> int:
        return len(self.tails) + len(self.heads)

    def chunks(self, size: int) -> Iterator[tuple[Tensor, ExampleQueries]]:
        """Yield (ids, examples) of one side at a time; equal queries are neighbours."""
        first = 0
        for queries in (self.tails, self.heads):
            for rows in queries.by_query().split(size):
                if len(rows):
                    yield rows + first, queries.part(rows)
            first += len(queries)

    def columns(self, ids: Tensor) -> dict[str, Tensor]:
        """Return columns ``head``, ``relation``, ``tail``, ``predicts_head`` for example ids.

        The predicted entity is -1 if an example is a query with all its answers.
        """
        flat = ids.flatten().to(self.tails.anchors.device)
        is_head = flat >= len(self.tails)
        both = {}
        for name in ("anchors", "relations", "targets"):
            parts = [self._column(queries, name) for queries in (self.tails, self.heads)]
            both[name] = torch.cat(parts).index_select(0, flat)
        found = {
            "head": torch.where(is_head, both["targets"], both["anchors"]),
            "relation": both["relations"],
            "tail": torch.where(is_head, both["anchors"], both["targets"]),
            "predicts_head": is_head,
        }
        return {name: column.view(ids.shape).cpu() for name, column in found.items()}

    def by_answer(self, example: int) -> ExampleQueries:
        is_head = example >= len(self.tails)
        queries, row = (self.heads, example - len(self.tails)) if is_head else (self.tails, example)
        query = queries.part(slice(row, row + 1))
        answers = query.positives()[1]
        each = torch.zeros_like(answers)
        return replace(query.part(each), targets=answers, known=None)

    @staticmethod
    def _column(queries: ExampleQueries, name: str) -> Tensor:
        found: Any = getattr(queries, name)
        return torch.full_like(queries.anchors, -1) if found is None else found


def asked(hrt: Tensor, side: Side) -> ExampleQueries:
    """Make an example of each triple ``[M, 3]``, with a single answer."""
    h, r, t = hrt.t().contiguous()
    anchors, targets = (h, t) if side == "tail" else (t, h)
    return ExampleQueries(side, anchors, r, targets, None)
