"""A table read from its first row to its last by one thread, beside the work on what was read."""

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from kgfast.tables.protocol import Rows

BUFFERS = 2  # one is read into while the other is worked on


class Block(NamedTuple):
    """Rows ``start .. stop - 1`` of a table.

    Attributes
    ----------
    rows : Tensor
        ``[stop - start, G]``; valid until the next block is asked for.
    start, stop : int
    """

    rows: Tensor
    start: int
    stop: int


@contextmanager
def prefetched(
    table: Rows, ranges: Sequence[tuple[int, int]], *, gives_back: bool
) -> Iterator[Iterator[Block]]:
    """Blocks of a table, in order.

    The thread ends with the context. What it raises is raised where its block is asked for.

    Parameters
    ----------
    table : Rows
    ranges : sequence of (int, int)
        The blocks.
    gives_back : bool
        Whether the system may forget the pages that were read.
    """
    longest = max((stop - start for start, stop in ranges), default=0)
    shape = (longest, table.shape[1])
    free: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()
    full: queue.SimpleQueue[Block | BaseException | None] = queue.SimpleQueue()
    for _ in range(min(BUFFERS, len(ranges))):
        free.put(torch.empty(shape, dtype=table.dtype, device="cpu"))

    def read() -> None:
        try:
            for start, stop in ranges:
                buffer = free.get()
                if buffer is None:
                    return
                rows = buffer[: stop - start]
                table.read_into(start, rows)
                if gives_back:
                    table.give_back(start, stop)
                full.put(Block(rows, start, stop))
            full.put(None)
        except BaseException as error:
            full.put(error)

    def blocks() -> Iterator[Block]:
        while True:
            found = full.get()
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            yield found
            free.put(_whole(found.rows, shape))

    thread = threading.Thread(target=read, name="kgfast-prefetch", daemon=True)
    thread.start()
    try:
        yield blocks()
    finally:
        free.put(None)
        thread.join()


def _whole(rows: Tensor, shape: tuple[int, int]) -> Tensor:
    """The buffer that rows are the first of."""
    return rows.as_strided(shape, (shape[1], 1), 0)
