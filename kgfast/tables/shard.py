"""Shards: rows of a larger table, and several tables as one."""

import bisect
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from kgfast.tables.protocol import (
    Rows,
    Table,
    TensorTable,
    as_rows,
    checked_range,
    checked_row_ids,
    checked_update,
    is_table,
    update_of,
)
from kgfast.text import shown


class Shard(Rows):
    """Rows ``start .. start + len(rows) - 1`` of a table of ``total_rows``.

    A shard has the shape and the ids of the whole table, and serves its own rows. All processes
    together rank a model of shards (:mod:`kgfast.distributed`).

    Parameters
    ----------
    rows : Tensor or Table
        ``[n, G]`` floating point; n may be 0.
    start : int
        The id of the first row.
    total_rows : int
        Rows of the whole table.

    Attributes
    ----------
    held : Table
        The rows of the shard, with ids counted from ``start``.
    start, stop : int
        The ids held are ``start .. stop - 1``.

    Raises
    ------
    TypeError, ValueError
        For ``rows`` of another kind, or that do not lie within the whole table.

    Examples
    --------
    >>> import torch
    >>> shard = Shard(torch.tensor([[1.0], [2.0]]), start=3, total_rows=10)
    >>> shard
    Shard(3 .. 4 of 10 rows, 1 columns, float32)
    >>> shard.rows(torch.tensor([4, 3])).tolist()
    [[2.0], [1.0]]
    """

    def __init__(self, rows: Tensor | Table, *, start: int = 0, total_rows: int) -> None:
        if not (isinstance(rows, Tensor) or is_table(rows)):
            raise TypeError(f"rows must be a tensor or a Table; got {type(rows).__name__}")
        held = TensorTable(rows) if isinstance(rows, Tensor) else as_rows(rows)
        for name, value in (("start", start), ("total_rows", total_rows)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int; got {shown(value)}")
        stop = start + len(held)
        if not 0 <= start <= stop <= total_rows:
            raise ValueError(
                f"rows {start} .. {stop - 1} must lie within total_rows = {total_rows}"
            )
        self.held = held
        self.start, self.stop, self.total_rows = start, stop, total_rows
        self.shape, self.dtype = (total_rows, held.shape[1]), held.dtype
        self.is_complex, self.device = held.is_complex, held.device

    def block(self, start: int, stop: int) -> Tensor:
        """Return rows of the shard, by a range of the whole table.

        Raises
        ------
        IndexError
            For rows outside the shard.
        """
        checked_range(start, stop, self.total_rows)
        if start == stop:
            return self.held.block(0, 0)
        self._check_held(start, stop)
        return self.held.block(start - self.start, stop - self.start)

    def read_into(self, start: int, out: Tensor) -> None:
        """Fill ``out [n, G]``, contiguous, with rows of the shard from ``start`` on."""
        if len(out):
            self._check_held(start, start + len(out))
            self.held.read_into(start - self.start, out)

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows of the shard, by ids of the whole table.

        Raises
        ------
        IndexError
            For an id outside the shard.
        """
        return self.held.rows(checked_row_ids(ids, self.start, self.stop) - self.start)

    def update(self, ids: Tensor, rows: Tensor) -> None:
        """Write rows of the shard; into a tensor, or a table that can be written to.

        Raises
        ------
        TypeError, ValueError, IndexError
            For ids and rows that do not fit; for a table that cannot be written to.
        """
        own = checked_update(ids, rows, self, self.start, self.stop) - self.start
        update_of(self.held)(own, rows)

    @property
    def facts(self) -> tuple[object, ...]:
        return (self.start, self.stop, self.held.facts)

    @property
    def tells(self) -> bool:
        return self.held.tells

    def give_back(self, start: int, stop: int) -> None:
        self._check_held(start, stop)
        self.held.give_back(start - self.start, stop - self.start)

    def where(self, row: int) -> str:
        if isinstance(self.held, TensorTable):
            return super().where(row)
        own = self.held.where(row - self.start)
        return f"{own} (row {row} of all {self.total_rows:,})"

    def _check_held(self, start: int, stop: int) -> None:
        if not (self.start <= start and stop <= self.stop):
            raise IndexError(
                f"rows {start} .. {stop - 1} are not all in this shard, which stores "
                f"{self.start} .. {self.stop - 1} of {self.total_rows}; kgfast.distributed ranks a "
                f"model of shards"
            )

    def _held(self) -> str:
        held = f"{self.start} .. {self.stop - 1}" if self.start < self.stop else "none"
        return f"{held} of "


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
        out = self._none().new_empty((stop - start, self.shape[1]))
        self.read_into(start, out)
        return out

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
        updates = {number: update_of(self.parts[number]) for number in owners.unique().tolist()}
        for number, update in updates.items():
            own = owners == number
            update(ids[own] - self.starts[number], rows[own.to(rows.device)])

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
    totals = {shard.total_rows for shard in shards}
    if len(totals) > 1:
        raise ValueError(f"shards must be of one table; total_rows are {sorted(totals)}")
    shards.sort(key=lambda shard: (shard.start, shard.stop))
    ranges = [(shard.start, shard.stop) for shard in shards if shard.start < shard.stop]
    done = 0
    for start, stop in [*ranges, (shards[0].total_rows,) * 2]:
        if start != done:
            where = "two shards" if start < done else "no shard"
            raise ValueError(f"rows {min(start, done)} .. {max(start, done) - 1} are in {where}")
        done = stop
    return [shard.held for shard in shards]
