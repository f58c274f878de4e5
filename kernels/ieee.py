"""IEEE arithmetic for torch and numpy on the CPU, where the caller flushes denormals.

``torch.set_flush_denormal(True)`` changes the arithmetic of the calling thread, and of threads that
this thread makes afterwards. The extension sets the mode of its own threads (csrc/host/fpmode.h).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .cpu import threads

_SMALL = 1e-155  # number with a denormal square


@contextmanager
def ieee_arithmetic() -> Iterator[None]:
    """Keep denormals inside, in the calling thread.

    Where the caller flushes them, torch has one thread inside, since its other threads may flush
    them, too; kernels of the extension keep their threads.
    """
    if _SMALL * _SMALL != 0.0:  # Python multiplies in the mode of the thread, at run time
        yield
        return
    torch.set_flush_denormal(False)
    try:
        with threads.alone():
            yield
    finally:
        torch.set_flush_denormal(True)
