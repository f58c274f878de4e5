"""Memory that one step of training leaves to the next: freed blocks, and constants.

A constant on a GPU costs the launch of a kernel.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

Make = Callable[[], Tensor]

_library: Any = None if os.name == "nt" else ctypes.CDLL(None)
_tune: Any = getattr(_library, "mallopt", None)  # of glibc
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # malloc.h


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory within for the next blocks, instead of giving it back to the system.

    glibc gives a freed block of more than 32 MiB back. Each page of the next block is then a fault,
    and is zeroed, which can take a third of a step. Afterwards glibc has the limits at which it
    arrives by itself once a block of 32 MiB was freed. Limits in the environment are left alone.
    """
    own = "MALLOC_MMAP_", "MALLOC_TRIM_", "GLIBC_TUNABLES"
    if _tune is None or any(name.startswith(own) for name in os.environ):
        yield
        return
    _tune(_MMAP_MAX, 0)
    _tune(_TRIM_THRESHOLD, -1)  # never
    try:
        yield
    finally:
        for option, value in (_MMAP_MAX, 1 << 16), (_MMAP_THRESHOLD, 32 << 20):
            _tune(option, value)
        _tune(_TRIM_THRESHOLD, 64 << 20)
        give_back()


def give_back() -> None:
    """Give freed memory back to the system."""
    if _tune is not None:
        _library.malloc_trim(0)


class Constants:
    """Constants that are made once, for :meth:`in_use`."""

    def __init__(self) -> None:
        self._made: dict[object, Tensor] = {}

    def get(self, key: object, make: Make) -> Tensor:
        """Return one tensor for a key until code writes to the tensor: a user's own may get it."""
        kept = self._made.get(key)
        if kept is None or kept._version:
            kept = self._made[key] = make()
        return kept

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the functions of this module take from these constants inside."""
        token = _in_use.set(self)
        try:
            yield
        finally:
            _in_use.reset(token)


_in_use: ContextVar[Constants | None] = ContextVar("kgfast_constants", default=None)


def constant(
    value: float, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return a tensor filled with ``value``, which must only be read."""
    make: Make = lambda: torch.full(shape, value, dtype=dtype, device=device)  # noqa: E731
    kept = None if torch.compiler.is_compiling() else _in_use.get()
    return make() if kept is None else kept.get((value, shape, dtype, device), make)


def numbers(count: int, device: torch.device) -> Tensor:
    """Return ``0 .. count - 1``, int64, only to be read; not cached on a CPU, where counts vary."""
    make: Make = lambda: torch.arange(count, dtype=torch.int64, device=device)  # noqa: E731
    kept = None if device.type == "cpu" else _in_use.get()
    return make() if kept is None else kept.get((count, device), make)
