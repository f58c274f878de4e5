"""Memory that one step of training leaves to the next: as large as a table, or for constants.

The C library gives a freed block of more than 32 MiB back to the system. Each page of the next
block is then a fault, and is zeroed, which takes longer than a step's writes to the page. A
constant on a GPU costs the launch of a kernel.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Make = Callable[[], Tensor]


class Spares:
    """Tensors on the CPU with values that are not needed, and constants, for :meth:`in_use`."""

    def __init__(self) -> None:
        self._held: dict[object, Tensor] = {}  # one tensor of a shape and dtype
        self._constants: dict[object, Tensor] = {}

    def give(self, tensor: Tensor) -> None:
        """Keep the memory of a tensor that is not read again, unless it is part of a larger one."""
        is_whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
        if is_whole and tensor.device.type == "cpu":
            self._held[tensor.shape, tensor.dtype] = tensor.detach()

    def take(self, like: Tensor) -> Tensor | None:
        """Hand over a tensor of the shape and dtype of another, if there is one."""
        return self._held.pop((like.shape, like.dtype), None) if like.device.type == "cpu" else None

    def constant(self, key: object, make: Make) -> Tensor:
        """Return one tensor for a key until code writes to the tensor: a user's own may get it."""
        kept = self._constants.get(key)
        if kept is None or kept._version:
            kept = self._constants[key] = make()
        return kept

    def clear(self) -> None:
        """Free the tensors with values that are not needed."""
        self._held.clear()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the functions of this module take from these spares inside."""
        token = _in_use.set(self)
        try:
            yield
        finally:
            _in_use.reset(token)


_in_use: ContextVar[Spares | None] = ContextVar("kgfast_spares", default=None)


def empty_like(table: Tensor) -> Tensor:
    """Make a contiguous tensor of the shape, dtype and device of another, values undefined."""
    spares = _in_use.get()
    spare = None if spares is None else spares.take(table)
    return table.new_empty(table.shape) if spare is None else spare


def constant(
    value: float, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return a tensor filled with ``value``, which must only be read."""
    make: Make = lambda: torch.full(shape, value, dtype=dtype, device=device)  # noqa: E731
    spares = None if torch.compiler.is_compiling() else _in_use.get()
    return make() if spares is None else spares.constant((value, shape, dtype, device), make)


def numbers(count: int, device: torch.device) -> Tensor:
    """Return ``0 .. count - 1``, int64, only to be read; not cached on a CPU, where counts vary."""
    make: Make = lambda: torch.arange(count, dtype=torch.int64, device=device)  # noqa: E731
    spares = None if device.type == "cpu" else _in_use.get()
    return make() if spares is None else spares.constant((count, device), make)
