"""A thread that reads a table from first to last row while earlier rows are in use.

Memory holds two blocks: one is filled while the other is in use. Rows for a GPU are read into
pinned memory, and copied to the device before they are used.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    shape = max((stop - start for start, stop in ranges), default=0), table.shape[1]
    pins = table.device.type == "cuda" != source.device.type
    rooms = [
        torch.empty(shape, dtype=table.dtype, device=source.device, pin_memory=pins)
        for _ in range(min(BUFFERS, len(ranges)))
    ]
    inference = torch.is_inference_mode_enabled()  # else the rooms could not be written to

    def read(number: int) -> RowBlock:
        start, stop = ranges[number]
        room = rooms[number % BUFFERS][: stop - start]
        with torch.inference_mode(inference):
            source.read_into(start, room)
        return RowBlock(room, start, stop)

    def blocks() -> Iterator[RowBlock]:
        for number in range(len(ranges)):
            block = waiting.popleft().result()
            yield block._replace(rows=block.rows.to(table.device))
            if number + BUFFERS < len(ranges):
                waiting.append(pool.submit(read, number + BUFFERS))

    pool = ThreadPoolExecutor(1, "kgfast-prefetch")
    waiting = deque(pool.submit(read, number) for number in range(len(rooms)))
    try:
        yield blocks()
    finally:
        pool.shutdown(cancel_futures=True)
