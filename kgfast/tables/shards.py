"""Several tables as one table: the rows of all tables in turn."""

import bisect
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from kgfast.tables.protocol import (
    Rows,
    Table,
    WritableTable,
    as_rows,
    checked_range,
    checked_row_ids,
    checked_update,
)
from kgfast.tables.shard import Shard


class Shards(Rows):
    """Tables of one width and dtype, one after the other; some may be empty.

    Parameters
    ----------
    tables : sequence of Table
        Tables in the order of their rows; or only :class:`~kgfast.tables.Shard`, in any order.

    Raises
    ------
    ValueError
        If there are no tables, if tables differ in dtype or width, or if shards overlap or miss
        rows.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        if not tables:
            raise ValueError("a list of shards must hold at least one")
        parts = [as_rows(table) for table in tables]
        for number, part in enumerate(parts):
            for what, own, first in (
                ("columns", part.shape[1], parts[0].shape[1]),
                ("dtype", part.dtype, parts[0].dtype),
                ("is_complex", part.is_complex, parts[0].is_complex),
                ("device", part.device, parts[0].device),
            ):
                if own != first:
                    raise ValueError(
                        f"shards[{number}] = {part!r} must be as shards[0] = {parts[0]!r}: {what} "
                        f"{own} is not {first}"
                    )
        self.parts = _in_order(parts)
        sizes = [len(part) for part in self.parts]
        self.starts = [0, *accumulate(sizes)]
        self.shape = (self.starts[-1], parts[0].shape[1])
        self.dtype, self.is_complex = parts[0].dtype, parts[0].is_complex
        self.device = parts[0].device

    def block(self, start: int, stop: int) -> Tensor:
        """Return rows ``start .. stop - 1`` of any number of shards."""
        checked_range(start, stop, self.shape[0])
        found = [self.parts[number].block(*its) for number, its in self._cut(start, stop)]
        return found[0] if len(found) == 1 else torch.cat([self._none(), *found])

    def read_into(self, start: int, out: Tensor) -> None:
        """Fill ``out [n, G]`` with the rows from ``start`` on."""
        checked_range(start, start + len(out), self.shape[0])
        done = 0
        for number, (first, last) in self._cut(start, start + len(out)):
            self.parts[number].read_into(first, out[done : done + last - first])
            done += last - first

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of ids ``[B]``, in any order."""
        ids = checked_row_ids(ids, 0, self.shape[0])
        owners = self._owners(ids)
        found = self._none().new_empty((len(ids), self.shape[1]))
        for number in owners.unique().tolist():
            own = owners == number
            found[own.to(found.device)] = self.parts[number].rows(ids[own] - self.starts[number])
        return found

    def update(self, ids: Tensor, rows: Tensor) -> None:
        """Write rows, if the shards can be written to.

        Raises
        ------
        TypeError, ValueError, IndexError
            For ids and rows that do not fit, and for shards that cannot be written to; then no
            shard is written to.
        """
        ids = checked_update(ids, rows, self, 0, self.shape[0])
        owners = self._owners(ids)
        writable = {}
        for number in owners.unique().tolist():
            part = self.parts[number]
            if not isinstance(part, WritableTable):
                raise TypeError(f"shards[{number}] = {part!r} cannot be written to")
            writable[number] = part
        for number, part in writable.items():
            own = owners == number
            part.update(ids[own] - self.starts[number], rows[own.to(rows.device)])

    @property
    def facts(self) -> tuple[object, ...]:
        return tuple((len(part), part.facts) for part in self.parts)

    @property
    def tells(self) -> bool:
        return all(part.tells for part in self.parts)

    def give_back(self, start: int, stop: int) -> None:
        for number, its in self._cut(start, stop):
            self.parts[number].give_back(*its)

    def where(self, row: int) -> str:
        number = bisect.bisect_right(self.starts, row) - 1
        return f"{self.parts[number].where(row - self.starts[number])} (row {row} of all shards)"

    def _cut(self, start: int, stop: int) -> list[tuple[int, tuple[int, int]]]:
        found = []
        for number, begins in enumerate(self.starts[:-1]):
            ends = self.starts[number + 1]
            first, last = max(start, begins), min(stop, ends)
            if first < last:
                found.append((number, (first - begins, last - begins)))
        return found

    def _owners(self, ids: Tensor) -> Tensor:
        ends = torch.tensor(self.starts[1:], dtype=torch.int64, device="cpu")
        return torch.searchsorted(ends, ids, right=True)

    def _none(self) -> Tensor:
        return torch.empty((0, self.shape[1]), dtype=self.dtype, device=self.device)

    def _held(self) -> str:
        return f"{len(self.parts)} shards, "


def _in_order(parts: list[Rows]) -> list[Rows]:
    """Return tables in the given order; shards by start, checked to be one table."""
    shards = [part for part in parts if isinstance(part, Shard)]
    if not shards:
        return parts
    if len(shards) != len(parts):
        raise ValueError(
            "a list of shards must hold kgfast.tables.Shard throughout, or nowhere: other tables "
            "do not know the place of their rows"
        )
    total = {shard.total_rows for shard in shards}
    if len(total) > 1:
        raise ValueError(f"shards must be of one table; total_rows are {sorted(total)}")
    shards.sort(key=lambda shard: (shard.start, shard.stop))
    done = 0
    for shard in shards:
        if shard.start == shard.stop:
            continue
        if shard.start < done:
            last = min(done, shard.stop) - 1
            raise ValueError(f"shards overlap: rows {shard.start} .. {last} are in two shards")
        if shard.start > done:
            raise ValueError(f"shards miss rows {done} .. {shard.start - 1}")
        done = shard.stop
    if done != shards[0].total_rows:
        raise ValueError(f"shards miss rows {done} .. {shards[0].total_rows - 1}")
    return [shard.held for shard in shards]
