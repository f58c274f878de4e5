"""Shards: the rows of a larger table that this process holds."""

from torch import Tensor

from kgfast.tables.protocol import (
    Rows,
    Table,
    TensorTable,
    WritableTable,
    as_rows,
    checked_range,
    checked_row_ids,
    checked_update,
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
        if not isinstance(self.held, WritableTable):
            raise TypeError(f"{self.held!r} cannot be written to")
        self.held.update(own, rows)

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
