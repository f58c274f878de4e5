"""Views: tables whose rows are rows of another table, divided by lengths or on a device."""

import torch
from torch import Tensor

from kgfast.kernels.reference.canonical import rounded_sqrt
from kgfast.tables.protocol import Rows

_PIECE = {"cpu": 1 << 14}  # numbers divided at once: on a CPU too few for several threads
_PIECE_ELSEWHERE = 1 << 22


class UnitRows(Rows):
    """Rows of a table divided by Euclidean lengths, in float64.

    The bits of a row do not depend on the other rows of a read. A ValueError names a row of zeros.
    """

    def __init__(self, table: Rows) -> None:
        self.table, self.device = table, table.device
        self.shape, self.dtype = table.shape, torch.float64

    def where(self, row: int) -> str:
        return self.table.where(row)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of ids ``[B]``."""
        return self._divided(self.table.rows(ids), ids)

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
        zero = (largest[:, 0] == 0).nonzero()
        if len(zero):
            where = self.where(int(ids[int(zero[0])]))
            raise ValueError(f"{where} is zero: a zero row has no direction, and so no cosine")
        rows = rows / largest  # no square overflows or vanishes
        return rows.div_(rounded_sqrt(_sums(rows.square())))


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
        """Return rows ``start .. stop - 1``."""
        return self.table.block(start, stop).to(self.device)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of ids ``[B]``."""
        return self.table.rows(ids).to(self.device)

    def _held(self) -> str:
        return f"on {self.device}: "
