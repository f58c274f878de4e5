"""A thread that reads a table from first to last row while earlier rows are in use.

Memory holds two blocks: one is filled while the other is in use. For a GPU there are two blocks of
pinned memory and two on the device, and the thread starts each copy as soon as the rows are read.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast.tables.device import Copies, OnDevice
from kgfast.tables.protocol import Rows

BUFFERS = 2  # one is filled while the other is in use
_COPYING = ("cuda",)  # devices that copy from pinned memory while the host goes on


class RowBlock(NamedTuple):
    """Rows ``start .. stop - 1`` of a table, valid until the next block is read."""

    rows: Tensor
    start: int
    stop: int


@dataclass(eq=False)
class Buffer:
    """Memory of a block, which the reader fills and the worker gives back."""

    host: Tensor  # memory to read into: `room`, or pinned memory that is copied to `room`
    room: Tensor  # memory of the block
    copied: Any = None  # event of the last copy into `room`
    used: Any = None  # event of the last work on `room`


class _InPlace:
    """Reader into the memory where blocks are used: no copy and no wait."""

    def __init__(self, table: Rows) -> None:
        self.table = table

    def buffer(self, shape: tuple[int, int]) -> Buffer:
        room = torch.empty(shape, dtype=self.table.dtype, device=self.table.device)
        return Buffer(room, room)

    def fill(self, buffer: Buffer, start: int, stop: int) -> None:
        self.table.read_into(start, buffer.room[: stop - start])

    def hand_out(self, buffer: Buffer) -> None:
        """Do nothing."""

    def take_back(self, buffer: Buffer) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""


class _Copied:
    """Reader into pinned memory, which is copied to a device during the work there."""

    def __init__(self, table: OnDevice) -> None:
        self.table, self.copies = table, Copies(table.device)

    def buffer(self, shape: tuple[int, int]) -> Buffer:
        room = torch.empty(shape, dtype=self.table.dtype, device=self.table.device)
        host = self.copies.pinned(shape, self.table.dtype)
        return Buffer(host, room, used=self.copies.used())  # used by the last work on this memory

    def fill(self, buffer: Buffer, start: int, stop: int) -> None:
        if buffer.copied is not None:
            self.copies.await_on_host(buffer.copied)
        rows = slice(0, stop - start)
        self.table.table.read_into(start, buffer.host[rows])
        buffer.copied = self.copies.start(buffer.host[rows], buffer.room[rows], buffer.used)

    def hand_out(self, buffer: Buffer) -> None:
        self.copies.await_on_device(buffer.copied)

    def take_back(self, buffer: Buffer) -> None:
        buffer.used = self.copies.used()

    def finish(self) -> None:
        self.copies.finish()


@contextmanager
def prefetched(
    table: Rows, ranges: Sequence[tuple[int, int]], *, gives_back: bool
) -> Iterator[Iterator[RowBlock]]:
    """Yield the blocks of a table, in order, on the table's device.

    The thread ends with the context. An error of the thread is raised when the block is needed.
    ``gives_back`` lets the system forget the pages that were read.
    """
    way: _Copied | _InPlace = _InPlace(table)
    if isinstance(table, OnDevice) and table.device.type in _COPYING:
        way = _Copied(table)
    longest = max((stop - start for start, stop in ranges), default=0)
    free: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()
    full: queue.SimpleQueue[tuple[Buffer, int, int] | BaseException | None] = queue.SimpleQueue()
    for _ in range(min(BUFFERS, len(ranges))):
        free.put(way.buffer((longest, table.shape[1])))

    # else the thread's tensors could not be written to
    inference = torch.is_inference_mode_enabled()

    def read() -> None:
        try:
            with torch.inference_mode(inference):
                for start, stop in ranges:
                    buffer = free.get()
                    if buffer is None:
                        return
                    way.fill(buffer, start, stop)
                    if gives_back:
                        table.give_back(start, stop)
                    full.put((buffer, start, stop))
            full.put(None)
        except BaseException as error:
            full.put(error)

    def blocks() -> Iterator[RowBlock]:
        while True:
            found = full.get()
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            buffer, start, stop = found
            way.hand_out(buffer)
            yield RowBlock(buffer.room[: stop - start], start, stop)
            way.take_back(buffer)
            free.put(buffer)

    thread = threading.Thread(target=read, name="kgfast-prefetch", daemon=True)
    thread.start()
    try:
        yield blocks()
    finally:
        free.put(None)
        thread.join()
        way.finish()
