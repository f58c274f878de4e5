"""Rows of a model's entities, read where they are needed: from files and shards."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from kgfast.eval.preparation import check_rankable
from kgfast.models.base import Candidates, Side, candidates_at, is_nested, queries_at
from kgfast.models.blocks import BlockScorer
from kgfast.models.reciprocal import holder_of
from kgfast.models.relations import blocks_at, is_in_blocks
from kgfast.tables import Rows, as_rows, is_table
from kgfast.tables.prefetch import RowBlock, prefetched
from kgfast.tables.protocol import TensorTable
from kgfast.tables.shard import Shard

PART_BYTES = 64 << 20  # bytes of a part of a table that is read at once


def entity_table(model: Any) -> Rows | None:
    """Return the table of entities in files; None for other models, an error for shards."""
    held = getattr(model, "entity", None)
    if isinstance(held, Tensor):
        return None
    model = holder_of(model)
    held = getattr(model, "entity", None)
    if not is_table(held) and not isinstance(model, nn.Module):
        held = next((it for it in getattr(model, "__dict__", {}).values() if is_table(it)), None)
    if not is_table(held):
        return None
    if isinstance(held, Shard) and (held.start, held.stop) != (0, held.total_rows):
        raise ValueError(
            f"entities are {held!r}: several processes rank their shards within "
            "kgfast.distributed.processes(), and kgfast.tables.open([...]) makes one table of the "
            "shards of one process"
        )
    return as_rows(held)


def own_reader(model: Any) -> "RowReader":
    """Return a reader of the rows of a model in this process: a shard, or all rows."""
    check_rankable(model)
    if is_in_blocks(model):
        raise TypeError(
            "model: a function that scores has no rows to share out; give each process a part of "
            "the triples, outside of kgfast.distributed.processes()"
        )
    entity = getattr(model, "entity", None)
    if entity is None:
        raise TypeError(f"{type(model).__name__} must have entity, its table of entities")
    if not isinstance(entity, Tensor) and not hasattr(model, "with_entity"):
        raise TypeError(
            f"{type(model).__name__} must have with_entity(rows), the same model of some of its "
            f"entities, to be ranked in parts"
        )
    if isinstance(entity, Shard):
        return RowReader.of_part(entity, entity.start, entity.stop)
    whole = entity if isinstance(entity, Tensor) else as_rows(entity)
    return RowReader.of_part(whole, 0, int(model.num_entities))


@dataclass(frozen=True)
class RowReader:
    """Rows ``start .. stop - 1`` of a model's entities, in blocks of ``block_rows``.

    ``gives_back`` lets the system forget pages that were read. ``in_place`` means that rows lie in
    memory, in one block.
    """

    entity: Any
    start: int
    stop: int
    block_rows: int
    gives_back: bool = False
    in_place: bool = False

    @classmethod
    def of_part(cls, entity: Any, start: int, stop: int) -> "RowReader":
        """Read a range of rows of a tensor, a table or a shard, whatever memory is free."""
        held = entity.held if isinstance(entity, Shard) else entity
        block_rows = max(1, PART_BYTES // (entity.shape[1] * entity.dtype.itemsize))
        in_place = isinstance(held, Tensor | TensorTable)
        return cls(entity, start, stop, block_rows, in_place=in_place)

    def in_blocks(self, most: int) -> "RowReader":
        """Return a reader of the rows, also rows in memory, in blocks of at most ``most`` bytes."""
        entity = TensorTable(self.entity) if isinstance(self.entity, Tensor) else self.entity
        block_rows = min(self.block_rows, max(1, most // max(1, entity.row_bytes)))
        return replace(self, entity=entity, block_rows=block_rows, in_place=False)

    @property
    def table(self) -> Rows | None:
        """Table of the rows; None for a tensor, whose model has all rows."""
        return None if isinstance(self.entity, Tensor) else self.entity

    @property
    def is_part(self) -> bool:
        """True if candidates are a shard or a range of a table."""
        return isinstance(self.entity, Shard) or not self.is_whole

    @property
    def is_whole(self) -> bool:
        """True if all rows of the table are candidates."""
        return (self.start, self.stop) == (0, self.num_rows)

    @property
    def device(self) -> torch.device:
        """Device of the rows that are handed out."""
        return torch.device(self.entity.device)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.entity.dtype
        return dtype

    @property
    def num_rows(self) -> int:
        """Rows of the whole table."""
        return int(self.entity.shape[0])

    @property
    def width(self) -> int:
        """Number of columns of a row."""
        return int(self.entity.shape[1])

    def holds(self, ids: Tensor) -> Tensor:
        """Return a mask of the ids that are among the rows."""
        return (ids >= self.start) & (ids < self.stop)

    def rows(self, ids: Tensor) -> Tensor | None:
        """Return rows by ids of the whole table; None for a tensor."""
        return None if self.table is None else self.table.rows(ids)

    def blocks(
        self, first: int, is_needed: Callable[[int, int], bool]
    ) -> AbstractContextManager[Iterator[RowBlock]]:
        """Open the needed blocks from row ``first`` on, in order."""
        table = self.table
        if table is None or self.in_place:
            own = self._in_place
            return nullcontext(iter([own] if is_needed(own.start, own.stop) else []))
        ranges = [span for span in self.ranges(first) if is_needed(*span)]
        return prefetched(table, ranges, gives_back=self.gives_back)

    def ranges(self, first: int = 0) -> list[tuple[int, int]]:
        """Return the ranges of blocks from row ``first`` on, in order."""
        starts = range(max(first, self.start), self.stop, self.block_rows)
        return [(it, min(it + self.block_rows, self.stop)) for it in starts]

    @cached_property
    def _in_place(self) -> RowBlock:
        start, stop = self.start, self.stop
        rows = self.entity[start:stop] if self.table is None else self.table.block(start, stop)
        return RowBlock(rows, start, stop)


class LocalModel:
    """Model of a few entities' rows that takes queries with ids of the whole table.

    ``rows_of`` returns the rows of distinct, ascending ids.
    """

    def __init__(self, model: Any, rows_of: Callable[[Tensor], Tensor], ids: Tensor) -> None:
        few = ids.unique()
        rows = rows_of(few)
        self.ids = few.to(rows.device)
        self.model = model.with_entity(rows)
        self.num_entities, self.num_relations = model.num_entities, model.num_relations
        self.score, self.dim, self.nested = model.score, model.dim, is_nested(model)
        self.query_maker = self.model

    def queries(
        self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None = None
    ) -> Tensor:
        """Make queries; of side relation, ``relations`` are tails."""
        others = self._own(relations) if side == "relation" else relations.to(self.ids.device)
        return queries_at(self.model, self._own(anchors), others, side, dims)

    def candidates(self, side: Side, dims: int | None = None) -> Candidates:
        """Return the candidates for side relation."""
        return candidates_at(self.model, side, dims)

    def crop_width(self, dim: int) -> int | None:
        width: int | None = self.model.crop_width(dim)
        return width

    def in_blocks(self, side: Side, dims: int | None = None) -> BlockScorer | None:
        """Return the scorer of relations for a model without queries for relations."""
        inner = blocks_at(self.model, side, dims, self.ids)
        if inner is None:
            return None
        outer, fn = copy.copy(inner), inner.fn

        def scores(anchors: Tensor, others: Tensor, side: Side, ids: Tensor) -> Tensor:
            return fn(self._own(anchors), self._own(others), side, ids)

        scores.__qualname__ = getattr(fn, "__qualname__", type(fn).__qualname__)
        outer.fn = scores
        return outer

    def _own(self, ids: Tensor) -> Tensor:
        return torch.searchsorted(self.ids, ids.to(self.ids.device).contiguous())


def local_model(model: Any, rows_of: Callable[[Tensor], Tensor], ids: Tensor) -> Any:
    """Return a model of some entities' rows, or the model itself if it cannot be cut."""
    return LocalModel(model, rows_of, ids) if hasattr(model, "with_entity") else model
