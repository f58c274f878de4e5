"""IEEE arithmetic for torch and numpy on the CPU, in any mode of the caller.

``torch.set_flush_denormal(True)`` changes the arithmetic of the calling thread, and of threads that
this thread makes afterwards. Torch's threads, if made so, keep that mode for ever. The extension
sets the mode of its own threads (csrc/host/fpmode.h).
"""

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from .cpu import threads

_GRAIN = 1 << 15  # numbers that torch's elementwise operators give one thread
_SMALL = 1e-155  # number with a denormal square
_PROCESS = os.getpid()
# .threads: number of the calling thread's threads that were found to be plain
_plain = threading.local()


@contextmanager
def ieee_arithmetic(numbers: float = math.inf) -> Iterator[None]:
    """Keep denormals inside, in the calling thread.

    ``numbers`` is about the size of the largest operator. If torch would spread the numbers over
    threads in another mode, torch has one thread inside; kernels of the extension keep their
    threads.
    """
    flushes = _SMALL * _SMALL == 0.0  # Python multiplies in the mode of the thread, at run time
    if flushes:
        torch.set_flush_denormal(False)
    try:
        with nullcontext() if _are_ieee(numbers, not flushes) else threads.alone():
            yield
    finally:
        if flushes:
            torch.set_flush_denormal(True)


def _are_ieee(numbers: float, is_plain: bool) -> bool:
    """Return whether the threads that share so many numbers compute by IEEE 754.

    Threads are tested once, unless the caller's own mode could have been inherited. They are never
    tested in a child of a fork, where torch's threads may not answer.
    """
    count = torch.get_num_threads()
    if count == 1 or numbers <= _GRAIN:
        return True
    if os.getpid() != _PROCESS:
        return is_plain
    if not is_plain or getattr(_plain, "threads", 0) < count:
        _plain.threads = count if _are_denormals_kept(count * _GRAIN) else 0
    return bool(_plain.threads)


def _are_denormals_kept(count: int) -> bool:
    numbers = torch.full((count,), _SMALL, dtype=torch.float64, device="cpu")
    return bool((numbers * numbers != 0.0).all())
