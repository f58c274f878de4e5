"""Views: tables whose rows are rows of another table, divided by lengths or on a device."""

import torch
from torch import Tensor

from kgfast.kernels.reference.canonical import rounded_sqrt
from kgfast.tables.protocol import Rows, Table, TensorTable, as_rows

_PIECE = {"cpu": 1 << 14}  # numbers divided at once: on a CPU too few for several threads
_PIECE_ELSEWHERE = 1 << 22


class UnitRows(Rows):
    """Rows of a table divided by Euclidean lengths, in float64.

    The bits of a row do not depend on the other rows of a read. A ValueError names a row of zeros,
    unless ``zeros`` are served as zeros. Rows are rounded once to ``dtype``.
    """

    def __init__(
        self, table: Tensor | Table, dtype: torch.dtype = torch.float64, *, zeros: bool = False
    ) -> None:
        table = TensorTable(table) if isinstance(table, Tensor) else as_rows(table)
        self.table, self.device, self._zeros = table, table.device, zeros
        self.shape, self.dtype = table.shape, dtype

    @classmethod
    def of(cls, rows: Tensor | Table) -> "UnitRows":
        """Return rows for cosines, 0 for zeros: float32, or float64 for float64 rows."""
        table = TensorTable(rows.resolve_neg()) if isinstance(rows, Tensor) else as_rows(rows)
        is_double = table.dtype == torch.float64
        return cls(table, torch.float64 if is_double else torch.float32, zeros=True)

    def where(self, row: int) -> str:
        return self.table.where(row)

    def rows(self, ids: Tensor) -> Tensor:
        return self._divided(self.table.rows(ids), ids).to(self.dtype)

    def read_into(self, start: int, out: Tensor) -> None:
        """Fill ``out [n, G]``, a piece at a time."""
        step = max(1, _PIECE.get(self.device.type, _PIECE_ELSEWHERE) // max(1, self.shape[1]))
        for first in range(start, start + len(out), step):
            last = min(first + step, start + len(out))
            rows = self._divided(self.table.block(first, last), range(first, last))
            out[first - start : last - start] = rows

    def _divided(self, rows: Tensor, ids: Tensor | range) -> Tensor:
        rows = rows.double()
        largest = torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True))
        zero = (largest[:, 0] == 0).nonzero()[:, 0]
        if len(zero) and not self._zeros:
            where = self.where(int(ids[int(zero[0])]))
            raise ValueError(f"{where} is zero: a zero row has no direction, and so no cosine")
        largest[zero] = 1.0
        rows = rows / largest  # no square overflows or vanishes
        lengths = rounded_sqrt(_sums(rows.square()))
        lengths[zero] = 1.0
        return rows.div_(lengths)


def _sums(values: Tensor) -> Tensor:
    """Return sums of rows, ``[n, 1]``, by halves: torch's sums depend on the number of rows."""
    while (width := values.shape[1]) > 1:
        half = -(-width // 2)
        values[:, : width - half] += values[:, half:]
        values = values[:, :half]
    return values


def numbered(device: torch.device | str) -> torch.device:
    """Return a device as tensors name it: `cuda` stands for one GPU, such as `cuda:0`."""
    return torch.empty(0, dtype=torch.uint8, device=device).device


class OnDevice(Rows):
    """Table on the CPU that returns rows on another device."""

    def __init__(self, table: Rows, device: torch.device | str) -> None:
        if table.device.type != "cpu":
            raise ValueError(f"{table!r} returns rows on {table.device}, not on the CPU")
        self.table, self.device = table, numbered(device)
        self.shape, self.dtype = table.shape, table.dtype

    def where(self, row: int) -> str:
        return self.table.where(row)

    def block(self, start: int, stop: int) -> Tensor:
        return self.table.block(start, stop).to(self.device)

    def rows(self, ids: Tensor) -> Tensor:
        return self.table.rows(ids).to(self.device)

    def _held(self) -> str:
        return f"on {self.device}: "
