"""A small graph and models of it, whole and in shards."""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

import kgfast
from kgfast.tables import Shard

N, RELATIONS, DIM = 97, 5, 4


class Graph(NamedTuple):
    """Triples to rank, and those to filter by."""

    hrt: Tensor
    facts: Tensor

    @property
    def known(self) -> kgfast.KnownTriples:
        return kgfast.KnownTriples(self.facts)


@cache
def example() -> Graph:
    generator = torch.Generator().manual_seed(0)

    def some(count: int) -> Tensor:
        sizes = (N, RELATIONS, N)
        return torch.stack(
            [torch.randint(size, (count,), generator=generator) for size in sizes], 1
        )

    hrt = some(40)
    return Graph(hrt, torch.cat([hrt, some(400)]))


def tables_of(name: str) -> tuple[Tensor, Tensor]:
    """Make entities with many ties, some of which float32 cannot tell apart, and relations."""
    generator = torch.Generator().manual_seed(1)
    entity = torch.randint(-2, 3, (N, 2 * DIM), generator=generator).float()
    entity[1::3] += 1e-7 * torch.randn(entity[1::3].shape, generator=generator)
    width = {"RotatE": DIM}.get(name, 2 * DIM)
    rows = 2 * RELATIONS if name == "Reciprocal" else RELATIONS
    return entity, torch.randn(rows, width, generator=generator)


def model_of(name: str, span: tuple[int, int] | None = None) -> Any:
    """Make a model of all rows, or of those of a span."""
    if name == "ConvE":
        return kgfast.ConvE.init(N, RELATIONS, 8, seed=0, embedding_height=2, kernel_size=2)
    entity, relation = tables_of(name)
    table = entity if span is None else Shard(entity[slice(*span)], start=span[0], total_rows=N)
    if name == "Reciprocal":
        return kgfast.Reciprocal(kgfast.DistMult(table, relation))
    return getattr(kgfast, name)(table, relation)


class FileTable:
    """Rows that are handed out in blocks, as those of a file are."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self.longest = 0

    @property
    def shape(self) -> tuple[int, int]:
        return self._rows.shape[0], self._rows.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self._rows.dtype

    def block(self, start: int, stop: int) -> Tensor:
        self.longest = max(self.longest, stop - start)
        return self._rows[start:stop].clone()

    def rows(self, ids: Tensor) -> Tensor:
        return self._rows[ids]
