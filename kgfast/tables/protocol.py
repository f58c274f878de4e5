"""Protocol of tables that are read by block or id, never at once; tensors as tables."""

from abc import ABC, abstractmethod
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Table(Protocol):
    """Rows of one width, read in blocks or by ids.

    Every model takes such a table as an entity table. Any object with these four members will do.
    An optional attribute is ``device``, the device of returned rows (the CPU by default).

    Attributes
    ----------
    shape : tuple of int
        ``(N, G)``: all rows, in any place.
    dtype : torch.dtype
        float32, float16, bfloat16 or float64.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape ``(N, G)``."""

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the numbers."""

    def block(self, start: int, stop: int) -> Tensor:
        """Return rows ``start .. stop - 1``, ``[n, G]``; callers must not write to the result."""

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows ``[B, G]`` of int64 ``ids [B]``, in order: a new tensor."""


class Rows(ABC):
    """Base of this package's tables, with the attributes of a tensor that models read.

    Attributes
    ----------
    device : torch.device
        The device of returned rows.
    requires_grad : bool
        False: no gradients flow to rows that are read.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    device = torch.device("cpu")
    requires_grad: bool = False
    ndim: int = 2

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return self.shape[1] * self.dtype.itemsize

    @abstractmethod
    def rows(self, ids: Tensor) -> Tensor:
        """Return rows as :meth:`Table.rows` does."""

    def block(self, start: int, stop: int) -> Tensor:
        """Return rows as :meth:`Table.block` does; a subclass has this method or `read_into`."""
        checked_range(start, stop, len(self))
        out = self._empty(stop - start)
        self.read_into(start, out)
        return out

    def read_into(self, start: int, out: Tensor) -> None:
        """Fill ``out [n, G]``, contiguous, with the rows from ``start`` on."""
        out.copy_(self.block(start, start + len(out)))

    def where(self, row: int) -> str:
        """Return the place of a row, for errors."""
        return f"the entity table: row {row}"

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        columns = f"{self.shape[1]} columns"
        return f"{type(self).__name__}({self._held()}{self.shape[0]:,} rows, {columns}, {dtype})"

    def _held(self) -> str:
        return ""

    def _empty(self, count: int) -> Tensor:
        return torch.empty((count, self.shape[1]), dtype=self.dtype, device=self.device)


class Given(Rows):
    """Table of any other class, with the attributes that models read."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.shape, self.dtype = (int(table.shape[0]), int(table.shape[1])), table.dtype
        self.device = torch.device(getattr(table, "device", "cpu"))

    def block(self, start: int, stop: int) -> Tensor:
        return self._checked(self.table.block(start, stop), stop - start, "block")

    def rows(self, ids: Tensor) -> Tensor:
        return self._checked(self.table.rows(ids), len(ids), "rows")

    def _checked(self, rows: Any, count: int, method: str) -> Tensor:
        name, shape = type(self.table).__name__, (count, self.shape[1])
        if not isinstance(rows, Tensor):
            raise TypeError(f"{name}.{method} must return a tensor; got {type(rows).__name__}")
        if rows.shape != shape or rows.dtype != self.dtype:
            raise ValueError(
                f"{name}.{method} must return {list(shape)} of {self.dtype}; got "
                f"{list(rows.shape)} of {rows.dtype}"
            )
        return rows

    def _held(self) -> str:
        return f"{type(self.table).__name__}: "


class TensorTable(Rows):
    """Rows of a floating-point tensor ``[N, G]``, read in place."""

    def __init__(self, values: Tensor) -> None:
        if values.ndim != 2:
            raise ValueError(f"rows must have two axes; got shape {list(values.shape)}")
        if not values.dtype.is_floating_point:
            raise TypeError(f"rows must be floating point; got {values.dtype}")
        if values.is_neg():
            raise ValueError(
                "rows must hold their numbers as they are; got a tensor that is negated lazily "
                "(its negative bit is set): pass its .resolve_neg()"
            )
        self.values = values.detach()
        self.shape, self.dtype = (len(values), int(values.shape[1])), values.dtype
        self.device = values.device

    def block(self, start: int, stop: int) -> Tensor:
        checked_range(start, stop, len(self))
        return self.values[start:stop]

    def rows(self, ids: Tensor) -> Tensor:
        return self.values[checked_row_ids(ids, 0, len(self)).to(self.device)]


def as_rows(table: Table) -> Rows:
    """Return a table with the attributes that models read: the table, or :class:`Given`."""
    return table if isinstance(table, Rows) else Given(table)


def is_table(value: object) -> TypeGuard[Table]:
    """Return whether a value is a :class:`Table` and not a tensor."""
    return not isinstance(value, Tensor) and isinstance(value, Table)


def checked_range(start: int, stop: int, count: int) -> None:
    """Check that a block lies within a table of ``count`` rows."""
    if not 0 <= start <= stop <= count:
        raise IndexError(f"block({start}, {stop}) must lie within 0 .. {count} rows")


def checked_row_ids(ids: Tensor, first: int, last: int) -> Tensor:
    """Return ids of rows ``first .. last - 1`` on the CPU; an IndexError names any other id."""
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.ndim != 1:
        raise TypeError("ids must be an int64 tensor of one axis")
    ids = ids.cpu()
    outside = ((ids < first) | (ids >= last)).nonzero()
    if len(outside):
        row = int(outside[0])
        stored = f"{first} .. {last - 1}" if first < last else "no rows at all"
        raise IndexError(f"ids[{row}] must be among the stored rows, {stored}; got {int(ids[row])}")
    return ids
