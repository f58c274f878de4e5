"""IEEE arithmetic for torch and numpy on the CPU, in any mode of the caller.

``torch.set_flush_denormal(True)`` and C's ``fesetround`` change the arithmetic of the calling
thread, and of threads that this thread makes afterwards. Torch's threads, if made so, keep that
mode for ever. The extension sets the mode of its own threads (csrc/host/fpmode.h).
"""

import ctypes
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from .cpu import threads

_GRAIN = 1 << 15  # numbers that torch's elementwise operators give one thread
_TO_NEAREST = 0  # FE_TONEAREST, with one value on x86-64 and aarch64
_FACTORS = (0.25 + 2.0**-54, 0.25 + 3 * 2.0**-54)
_PRODUCTS = (1 << 50, (1 << 50) + 1)  # products with 2^-1022, rounded to nearest: their bits
_SMALL = 1e-155  # number with a denormal square
_C = ctypes.CDLL(None)
_PROCESS = os.getpid()
# .threads: number of the calling thread's threads that were found to be plain
_plain = threading.local()


@contextmanager
def ieee_arithmetic(numbers: float = math.inf) -> Iterator[None]:
    """Keep denormals and round to nearest inside, in the calling thread.

    ``numbers`` is about the size of the largest operator. If torch would spread the numbers over
    threads in another mode, torch has one thread inside; kernels of the extension keep their
    threads.
    """
    rounding, flushes = _rounding(), not _keeps_denormals()
    is_plain = rounding == _TO_NEAREST and not flushes
    if flushes:
        torch.set_flush_denormal(False)
    if rounding != _TO_NEAREST:
        _set_rounding(_TO_NEAREST)
    try:
        with nullcontext() if _are_ieee(numbers, is_plain) else threads.alone():
            yield
    finally:
        if rounding != _TO_NEAREST:
            _set_rounding(rounding)
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
        _plain.threads = count if _is_nearest_kept(count * _GRAIN // 2) else 0
    return bool(_plain.threads)


def _is_nearest_kept(count: int) -> bool:
    """Return whether denormal products are rounded to nearest, both down and up."""
    factors = torch.tensor(_FACTORS, dtype=torch.float64, device="cpu").expand(count, 2)
    products = (factors * 2.0**-1022).view(torch.int64)
    return torch.equal(products, products.new_tensor(_PRODUCTS).expand(count, 2))


def _keeps_denormals() -> bool:
    return _SMALL * _SMALL != 0.0  # Python multiplies in the mode of the thread, at run time


def _rounding() -> int:
    return int(_C.fegetround()) if hasattr(_C, "fegetround") else _TO_NEAREST


def _set_rounding(mode: int) -> None:
    if hasattr(_C, "fesetround"):
        _C.fesetround(mode)
