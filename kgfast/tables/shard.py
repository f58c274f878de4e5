"""Shards: rows of a larger table, and several tables as one."""

import bisect
from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor

from kgfast.tables.protocol import (
    Rows,
    Table,
    TensorTable,
    as_rows,
    checked_range,
    checked_row_ids,
    is_table,
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
        self.device = held.device

    def block(self, start: int, stop: int) -> Tensor:
        """Return rows, by a range of the whole table; an IndexError for rows outside the shard."""
        checked_range(start, stop, self.total_rows)
        return self.held.block(*self._own(start, stop))

    def read_into(self, start: int, out: Tensor) -> None:
        """Fill ``out [n, G]``, contiguous, with rows of the shard from ``start`` on."""
        first, _ = self._own(start, start + len(out))
        self.held.read_into(first, out)

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows, by ids of the whole table; an IndexError for an id outside the shard."""
        return self.held.rows(checked_row_ids(ids, self.start, self.stop) - self.start)

    def where(self, row: int) -> str:
        if isinstance(self.held, TensorTable):
            return super().where(row)
        place = self.held.where(row - self.start)
        return f"{place} (row {row} of all {self.total_rows:,})"

    def _own(self, start: int, stop: int) -> tuple[int, int]:
        """Return a range of the whole table as a range of the shard."""
        if start == stop:
            return 0, 0
        if not (self.start <= start and stop <= self.stop):
            raise IndexError(
                f"rows {start} .. {stop - 1} are not all in this shard, which stores "
                f"{self.start} .. {self.stop - 1} of {self.total_rows}; kgfast.distributed ranks a "
                f"model of shards"
            )
        return start - self.start, stop - self.start

    def _held(self) -> str:
        held = f"{self.start} .. {self.stop - 1}" if self.start < self.stop else "none"
        return f"{held} of "


class Shards(Rows):
    """Tables of one width and dtype, one after the other; some may be empty.

    Parameters
    ----------
    tables : sequence of Table
        Tables in the order of their rows.

    Raises
    ------
    ValueError
        If there are no tables, if tables differ in dtype or width, or for a
        :class:`~kgfast.tables.Shard`.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        if not tables:
            raise ValueError("a list of tables must hold at least one")
        self.parts = [as_rows(table) for table in tables]
        first = self.parts[0]
        for number, table in enumerate(self.parts):
            if isinstance(table, Shard):
                raise ValueError(
                    f"tables[{number}] is a Shard: give its rows, shard.held, in order"
                )
            for what, value, other in (
                ("columns", table.shape[1], first.shape[1]),
                ("dtype", table.dtype, first.dtype),
                ("device", table.device, first.device),
            ):
                if value != other:
                    raise ValueError(
                        f"tables[{number}] = {table!r} must be as tables[0] = {first!r}: {what} "
                        f"{value} is not {other}"
                    )
        self.starts = [0, *accumulate(map(len, self.parts))]
        self.shape, self.dtype = (self.starts[-1], first.shape[1]), first.dtype
        self.device = first.device

    def read_into(self, start: int, out: Tensor) -> None:
        """Fill ``out [n, G]`` with the rows from ``start`` on."""
        checked_range(start, start + len(out), len(self))
        for table, begin in zip(self.parts, self.starts, strict=False):
            first, last = max(start, begin), min(start + len(out), begin + len(table))
            if first < last:
                table.read_into(first - begin, out[first - start : last - start])

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of ids ``[B]``, in any order."""
        ids = checked_row_ids(ids, 0, len(self))
        rows = self._empty(len(ids))
        for table, begin in zip(self.parts, self.starts, strict=False):
            here = ((ids >= begin) & (ids < begin + len(table))).nonzero()[:, 0]
            if len(here):
                rows[here.to(rows.device)] = table.rows(ids[here] - begin)
        return rows

    def where(self, row: int) -> str:
        number = bisect.bisect_right(self.starts, row) - 1
        return f"{self.parts[number].where(row - self.starts[number])} (row {row} of all shards)"

    def _held(self) -> str:
        return f"{len(self.parts)} shards, "
