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

from kgfast.tables.protocol import Rows
from kgfast.tables.views import OnDevice

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


class Copies:
    """Copies from pinned memory to a GPU, on a separate stream.

    Work on another stream waits for the event of a copy. A copy waits for the work on the memory
    that the copy replaces. All calls guard the device, in any thread.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream(device)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return pinned memory of the host, from which copies run while the host goes on."""
        return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)

    def start(self, rows: Tensor, room: Tensor, used: Any) -> Any:
        """Copy pinned rows once ``used``, if any, has passed; return the event of the end."""
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            if used is not None:
                self.stream.wait_event(used)
            room.copy_(rows, non_blocking=True)
            done = torch.cuda.Event()
            done.record(self.stream)
        return done

    def await_on_host(self, done: Any) -> None:
        """Wait until pinned memory may be written to again."""
        done.synchronize()

    def await_on_device(self, done: Any) -> None:
        """Let all work that is queued from now on wait for a copy."""
        with torch.cuda.device(self.device):
            torch.cuda.current_stream(self.device).wait_event(done)

    def used(self) -> Any:
        """Return an event at the end of all work queued so far."""
        with torch.cuda.device(self.device):
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self.device))
        return event

    def finish(self) -> None:
        """Wait for all copies, so that the memory of their targets may be freed."""
        self.stream.synchronize()


@contextmanager
def prefetched(
    table: Rows, ranges: Sequence[tuple[int, int]], *, gives_back: bool
) -> Iterator[Iterator[RowBlock]]:
    """Yield the blocks of a table, in order, on the table's device.

    The thread ends with the context. An error of the thread is raised when the block is needed.
    ``gives_back`` lets the system forget the pages that were read.
    """
    copies: Copies | None = None
    source = table
    if isinstance(table, OnDevice) and table.device.type in _COPYING:
        copies, source = Copies(table.device), table.table
    longest = max((stop - start for start, stop in ranges), default=0)
    shape = longest, table.shape[1]
    free: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()
    full: queue.SimpleQueue[tuple[Buffer, int, int] | BaseException | None] = queue.SimpleQueue()
    for _ in range(min(BUFFERS, len(ranges))):
        room = torch.empty(shape, dtype=table.dtype, device=table.device)
        if copies is None:
            free.put(Buffer(room, room))
        else:  # used by the last work on this memory
            free.put(Buffer(copies.pinned(shape, table.dtype), room, used=copies.used()))

    # else the thread's tensors could not be written to
    inference = torch.is_inference_mode_enabled()

    def fill(buffer: Buffer, start: int, stop: int) -> None:
        if copies is not None and buffer.copied is not None:
            copies.await_on_host(buffer.copied)
        rows = slice(0, stop - start)
        source.read_into(start, buffer.host[rows])
        if copies is not None:
            buffer.copied = copies.start(buffer.host[rows], buffer.room[rows], buffer.used)

    def read() -> None:
        try:
            with torch.inference_mode(inference):
                for start, stop in ranges:
                    buffer = free.get()
                    if buffer is None:
                        return
                    fill(buffer, start, stop)
                    if gives_back:
                        table.give_back(start, stop)
                    full.put((buffer, start, stop))
            full.put(None)
        except BaseException as error:
            full.put(error)

    def blocks() -> Iterator[RowBlock]:
        while True:
            message = full.get()
            if message is None:
                return
            if isinstance(message, BaseException):
                raise message
            buffer, start, stop = message
            if copies is not None:
                copies.await_on_device(buffer.copied)
            yield RowBlock(buffer.room[: stop - start], start, stop)
            if copies is not None:
                buffer.used = copies.used()
            free.put(buffer)

    thread = threading.Thread(target=read, name="kgfast-prefetch", daemon=True)
    thread.start()
    try:
        yield blocks()
    finally:
        free.put(None)
        thread.join()
        if copies is not None:
            copies.finish()
