"""A thread that reads a table from first to last row while earlier rows are in use.

Memory holds two blocks: one is filled while the other is in use. Rows for a GPU are read into
pinned memory, and copied to the device before they are used.
"""

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from kgfast.tables.protocol import Rows
from kgfast.tables.views import OnDevice

BUFFERS = 2  # one is filled while the other is in use


class RowBlock(NamedTuple):
    """Rows ``start .. stop - 1`` of a table, valid until the next block is read."""

    rows: Tensor
    start: int
    stop: int


@contextmanager
def prefetched(table: Rows, ranges: Sequence[tuple[int, int]]) -> Iterator[Iterator[RowBlock]]:
    """Yield the blocks of a table, in order, on the table's device.

    The thread ends with the context. An error of the thread is raised when the block is needed.
    """
    source = table.table if isinstance(table, OnDevice) else table
    longest = max((stop - start for start, stop in ranges), default=0)
    free: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()
    full: queue.SimpleQueue[tuple[Tensor, int, int] | BaseException | None] = queue.SimpleQueue()
    for _ in range(min(BUFFERS, len(ranges))):
        room = torch.empty(
            (longest, table.shape[1]),
            dtype=table.dtype,
            device=source.device,
            pin_memory=table.device.type == "cuda" != source.device.type,
        )
        free.put(room)

    # else the thread's tensors could not be written to
    inference = torch.is_inference_mode_enabled()

    def read() -> None:
        try:
            with torch.inference_mode(inference):
                for start, stop in ranges:
                    room = free.get()
                    if room is None:
                        return
                    source.read_into(start, room[: stop - start])
                    full.put((room, start, stop))
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
            room, start, stop = message
            yield RowBlock(room[: stop - start].to(table.device), start, stop)
            free.put(room)

    thread = threading.Thread(target=read, name="kgfast-prefetch", daemon=True)
    thread.start()
    try:
        yield blocks()
    finally:
        free.put(None)
        thread.join()
