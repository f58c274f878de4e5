"""Rows that lie one after the other in a file: read when needed, never mapped.

Reading keeps the pages of a file out of the process. A file that shrinks during a run is an error,
whereas a mapped file would end the process.
"""

import os
import threading
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kgfast.storage import bytes_of
from kgfast.tables.protocol import Rows, checked_range, checked_row_ids, checked_update

_CALL = 1 << 28  # bytes of one read: systems stop at 2 GiB
_NEAR = 1 << 16  # bytes between two rows that are read together: a disk seeks no faster
_SPAN = 1 << 24  # most bytes that are read together


@dataclass(frozen=True)
class Place:
    """Position, shape and dtype of rows in a file."""

    path: Path
    offset: int  # bytes before the first row
    shape: tuple[int, int]  # (N, G), of reals
    dtype: torch.dtype
    is_complex: bool = False  # two reals next to each other are one complex number


class InFile(Rows):
    """Rows of one file, in any layout."""

    def __init__(self, place: Place) -> None:
        self.place, self.path = place, place.path
        self.shape, self.dtype, self.is_complex = place.shape, place.dtype, place.is_complex
        self._lock = threading.Lock()
        self._facts = self._stat()

    @property
    def facts(self) -> tuple[int, ...]:
        return (*self._facts, self.place.offset)

    def block(self, start: int, stop: int) -> Tensor:
        """Return rows in new memory; a file that changed since the opening is an error."""
        checked_range(start, stop, self.shape[0])
        out = torch.empty((stop - start, self.shape[1]), dtype=self.dtype, device="cpu")
        self.read_into(start, out)
        return out

    def read_into(self, start: int, out: Tensor) -> None:
        """Fill ``out [n, G]``, contiguous, with the rows from ``start`` on."""
        checked_range(start, start + len(out), self.shape[0])
        self._fill(start, out)
        self._check_same()

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of ids ``[B]`` in any order; rows near each other are read together."""
        ids = checked_row_ids(ids, 0, self.shape[0])
        distinct, place = ids.unique(return_inverse=True)
        found = torch.empty((len(distinct), self.shape[1]), dtype=self.dtype, device="cpu")
        apart = max(1, _NEAR // max(1, self.row_bytes))
        most = max(1, _SPAN // max(1, self.row_bytes))
        is_first = torch.ones(len(distinct), dtype=torch.bool, device="cpu")
        is_first[1:] = (distinct.diff() > apart) | (distinct[1:] // most != distinct[:-1] // most)
        firsts = is_first.nonzero()[:, 0]
        lasts = is_first.roll(-1).nonzero()[:, 0] + 1
        spans = (firsts, lasts, distinct[firsts], distinct[lasts - 1] + 1)
        for first, last, start, stop in zip(*(part.tolist() for part in spans), strict=True):
            found[first:last] = self.block(start, stop)[distinct[first:last] - start]
        return found if len(distinct) == len(ids) and torch.equal(distinct, ids) else found[place]

    def where(self, row: int) -> str:
        return f"{self.path}: row {row}"

    @abstractmethod
    def _fill(self, start: int, out: Tensor) -> None:
        """Read existing rows."""

    def _stat(self) -> tuple[int, int]:
        found = os.stat(self.path)
        return found.st_size, found.st_mtime_ns

    def _check_same(self) -> None:
        found = self._stat()
        if found != self._facts:
            (size, _), (was, _) = found, self._facts
            how = f"its size was {was:,} and is {size:,}" if size != was else "it was written to"
            raise ValueError(
                f"{self.path} changed while it was read: {how}; open the file again and begin anew"
            )

    def _held(self) -> str:
        return f"{self.path.name}: "


class FileTable(InFile):
    """Table with rows one after the other in one file."""

    def __init__(self, place: Place, *, writable: bool = False) -> None:
        self.writable = writable
        self._file = open(place.path, "r+b" if writable else "rb", buffering=0)  # noqa: SIM115
        super().__init__(place)
        needed = place.offset + self.shape[0] * self.row_bytes
        if self._facts[0] < needed:
            self._file.close()
            raise ValueError(
                f"{self.path}: truncated: {self.shape[0]:,} rows of {self.row_bytes} bytes from "
                f"byte {place.offset} on need {needed:,} bytes; the file has {self._facts[0]:,}"
            )

    def update(self, ids: Tensor, rows: Tensor) -> None:
        """Write rows into the file, which must have been opened with ``writable``."""
        if not self.writable:
            raise TypeError(f"{self.path} was opened to be read; open the file with writable=True")
        ids = checked_update(ids, rows, self, 0, self.shape[0])
        values = bytes_of(rows).reshape(len(ids), self.row_bytes)
        with self._lock:
            for row, data in zip(ids.tolist(), values, strict=True):
                self._file.seek(self.place.offset + row * self.row_bytes)
                written = self._file.write(data.data)
                if written != self.row_bytes:
                    raise OSError(f"{self.path}: row {row} was not written: is the disk full?")
            self._facts = self._stat()

    def give_back(self, start: int, stop: int) -> None:
        if hasattr(os, "posix_fadvise"):
            first = self.place.offset + start * self.row_bytes
            count = (stop - start) * self.row_bytes
            os.posix_fadvise(self._file.fileno(), first, count, os.POSIX_FADV_DONTNEED)

    def mapped(self) -> Tensor:
        """Return all rows as a tensor on the pages of the file, which must not change."""
        if not self.shape[0]:
            return self.block(0, 0)
        size = self.shape[0] * self.row_bytes
        # Private, since torch warns of memory that cannot be written to.
        pages = np.memmap(self.path, np.uint8, "c", self.place.offset, (size,))
        return torch.from_numpy(pages).view(self.dtype).view(self.shape)

    def close(self) -> None:
        """Close the file; the table reads nothing afterwards."""
        self._file.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _opened, (self.place, self.writable)

    def _fill(self, start: int, out: Tensor) -> None:
        offset = self.place.offset + start * self.row_bytes
        done, view = 0, bytes_of(out.view(-1)).data  # a view of `out` itself: another layout raises
        with self._lock:
            self._file.seek(offset)
            while done < len(view):
                count = self._file.readinto(view[done : done + _CALL])
                if not count:
                    raise ValueError(
                        f"{self.path}: truncated: the file ends at byte {offset + done:,}, "
                        f"{len(view) - done:,} bytes before the rows that were asked for"
                    )
                done += count

    def _stat(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns


def _opened(place: Place, writable: bool) -> FileTable:
    return FileTable(place, writable=writable)
