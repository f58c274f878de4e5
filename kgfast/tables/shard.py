"""The rows of a larger table that this process holds."""

import torch
from torch import Tensor

from kgfast.graph import shown
from kgfast.tables.protocol import (
    Table,
    WritableTable,
    checked_range,
    checked_row_ids,
    checked_update,
    device_of,
    is_table,
)


class Shard:
    """Rows ``start .. start + len(rows) - 1`` of a table of ``total_rows``.

    It has the shape and the ids of the whole table, and serves the rows that it holds. A model of
    it is ranked by all processes together (:mod:`kgfast.distributed`).

    Parameters
    ----------
    rows : Tensor or Table
        ``[n, G]`` floating point; n may be 0.
    start : int
        The id of the first of them.
    total_rows : int
        Rows of the whole table.

    Attributes
    ----------
    held : Tensor or Table
        ``rows``, as given.
    start, stop : int
        The ids held are ``start .. stop - 1``.

    Raises
    ------
    TypeError, ValueError
        For rows that are none, or do not lie within the whole table.

    Examples
    --------
    >>> shard = Shard(torch.tensor([[1.0], [2.0]]), start=3, total_rows=10)
    >>> shard
    Shard(rows 3 .. 4 of 10, 1 columns, float32)
    >>> shard.rows(torch.tensor([4, 3])).tolist()
    [[2.0], [1.0]]
    """

    def __init__(self, rows: Tensor | Table, *, start: int = 0, total_rows: int) -> None:
        if not (isinstance(rows, Tensor) or is_table(rows)):
            raise TypeError(f"rows must be a tensor or a Table; got {type(rows).__name__}")
        if len(rows.shape) != 2:
            raise ValueError(f"rows must have two axes; got shape {list(rows.shape)}")
        if not rows.dtype.is_floating_point:
            raise TypeError(f"rows must be floating point; got {rows.dtype}")
        for name, value in (("start", start), ("total_rows", total_rows)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int; got {shown(value)}")
        stop = start + rows.shape[0]
        if not 0 <= start <= stop <= total_rows:
            raise ValueError(
                f"rows {start} .. {stop - 1} must lie within total_rows = {total_rows}"
            )
        self.held = rows.detach() if isinstance(rows, Tensor) else rows
        self.start, self.stop, self.total_rows = start, stop, total_rows

    @property
    def shape(self) -> tuple[int, int]:
        """That of the whole table."""
        return self.total_rows, self.held.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers."""
        return self.held.dtype

    @property
    def device(self) -> torch.device:
        """Where rows are handed out."""
        return device_of(self.held)

    @property
    def is_complex(self) -> bool:
        """Whether rows are complex numbers."""
        return bool(getattr(self.held, "is_complex", False)) and is_table(self.held)

    def block(self, start: int, stop: int) -> Tensor:
        """Rows of the whole table that are held here.

        Raises
        ------
        IndexError
            For rows that are not.
        """
        checked_range(start, stop, self.total_rows)
        if start < stop and not (self.start <= start and stop <= self.stop):
            raise IndexError(
                f"rows {start} .. {stop - 1} are not all held here: this shard holds "
                f"{self.start} .. {self.stop - 1} of {self.total_rows}; kgfast.distributed ranks a "
                f"model of shards"
            )
        if start == stop:
            start = stop = self.start
        first, last = start - self.start, stop - self.start
        return (
            self.held[first:last] if isinstance(self.held, Tensor) else self.held.block(first, last)
        )

    def rows(self, ids: Tensor) -> Tensor:
        """Rows that are held here, by their ids in the whole table.

        Raises
        ------
        IndexError
            For an id of a row that is not.
        """
        own = checked_row_ids(ids, self.start, self.stop) - self.start
        if isinstance(self.held, Tensor):
            return self.held[own.to(self.held.device)]
        return self.held.rows(own)

    def update(self, ids: Tensor, rows: Tensor) -> None:
        """Write rows that are held here; into a tensor, or a table that can be written to.

        Raises
        ------
        TypeError, ValueError, IndexError
            As of any table; for a table that cannot be written to.
        """
        own = checked_update(ids, rows, self, self.start, self.stop) - self.start
        if isinstance(self.held, Tensor):
            self.held.index_copy_(0, own.to(self.held.device), rows.to(self.held.device))
        elif isinstance(self.held, WritableTable):
            self.held.update(own, rows)
        else:
            raise TypeError(f"a {type(self.held).__name__} cannot be written to")

    def __len__(self) -> int:
        return self.total_rows

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        held = f"rows {self.start} .. {self.stop - 1}" if self.start < self.stop else "no rows"
        return f"Shard({held} of {self.total_rows:,}, {self.shape[1]} columns, {dtype})"
