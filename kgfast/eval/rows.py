"""Rows of a model's entities, read where they are needed: from files and shards."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from kgfast.eval.preparation import check_rankable
from kgfast.models.reciprocal import holder_of
from kgfast.models.relations import is_in_blocks
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
    held = getattr(holder_of(model), "entity", None)
    if not is_table(held):
        return None
    _check_rows(model)
    if isinstance(held, Shard) and (held.start, held.stop) != (0, held.total_rows):
        raise ValueError(
            f"entities are {held!r}: rank() and topk() read the shards of several processes within "
            "kgfast.distributed.processes(); kgfast.tables.open([shard.held, ...]) makes one table "
            "of the shards of one process"
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
    _check_rows(model)
    entity = model.entity
    if isinstance(entity, Shard):
        return RowReader(entity, entity.start, entity.stop)
    table = TensorTable(entity.resolve_neg()) if isinstance(entity, Tensor) else as_rows(entity)
    return RowReader(table, 0, len(table))


def _check_rows(model: Any) -> None:
    if getattr(model, "entity", None) is None or not hasattr(model, "with_entity"):
        raise TypeError(
            f"{type(model).__name__} must have entity, its table of entities, and "
            "with_entity(rows), the same model of some of its entities, to be ranked in parts"
        )


@dataclass(frozen=True)
class RowReader:
    """Rows ``start .. stop - 1`` of a table of entities, in blocks of ``block_rows``."""

    table: Rows
    start: int
    stop: int
    block_rows: int | None = None  # None: as many as PART_BYTES

    @property
    def is_whole(self) -> bool:
        """True if all rows of the table are candidates."""
        return (self.start, self.stop) == (0, len(self.table))

    @cached_property
    def in_place(self) -> bool:
        """True if rows lie in memory, in one block."""
        held = self.table.held if isinstance(self.table, Shard) else self.table
        return isinstance(held, TensorTable)

    def holds(self, ids: Tensor) -> Tensor:
        """Return a mask of the ids that are among the rows."""
        return (ids >= self.start) & (ids < self.stop)

    def blocks(
        self, is_needed: Callable[[int, int], bool]
    ) -> AbstractContextManager[Iterator[RowBlock]]:
        """Open the needed blocks, in order."""
        if self.in_place:
            needed = self.start < self.stop and is_needed(self.start, self.stop)
            return nullcontext(iter([self._block] if needed else []))
        step = self.block_rows or max(1, PART_BYTES // max(1, self.table.row_bytes))
        starts = range(self.start, self.stop, step)
        ranges = [(start, min(start + step, self.stop)) for start in starts]
        ranges = [ends for ends in ranges if is_needed(*ends)]
        return prefetched(self.table, ranges)

    @cached_property
    def _block(self) -> RowBlock:
        return RowBlock(self.table.block(self.start, self.stop), self.start, self.stop)
