"""Memory that one step of training leaves to the next: of the size of a table, or of constants.

The C library gives a block of more than 32 MiB back to the system when it is freed; each page of
the next is a fault then, and is zeroed, which takes longer than what a step writes there. A
constant on a GPU costs the launch of a kernel.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor


class Spares:
    """Tensors on the CPU whose values nobody needs, and constants, for use in :meth:`in_use`."""

    def __init__(self) -> None:
        self._held: dict[object, Tensor] = {}  # one of a kind
        self._constants: dict[object, Tensor] = {}

    def give(self, tensor: Tensor) -> None:
        """Keep the memory of a tensor that is read no more, unless it is a part of a larger one."""
        own = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
        if own and tensor.device.type == "cpu":
            self._held[_kind(tensor)] = tensor.detach()

    def take(self, like: Tensor) -> Tensor | None:
        """Hand over a tensor of the shape and dtype of another, if there is one."""
        return self._held.pop(_kind(like), None)

    def constant(
        self, value: float, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Return a tensor filled with ``value``, the same one until someone writes to it."""
        key = value, shape, dtype, device
        return self._kept(key, lambda: torch.full(shape, value, dtype=dtype, device=device))

    def numbers(self, count: int, device: torch.device) -> Tensor:
        """Return ``0 .. count - 1``, int64, the same tensor until someone writes to it."""
        key = "numbers", count, device
        return self._kept(key, lambda: torch.arange(count, dtype=torch.int64, device=device))

    def _kept(self, key: object, make: Callable[[], Tensor]) -> Tensor:
        kept = self._constants.get(key)
        if kept is None or kept._version:  # code of the user's own, which is given ids, wrote to it
            kept = self._constants[key] = make()
        return kept

    def clear(self) -> None:
        """Free the tensors whose values nobody needs."""
        self._held.clear()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let :func:`empty_like` and :func:`constant` take from these inside."""
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
    """Return a tensor filled with ``value``, which is only to be read."""
    spares = None if torch.compiler.is_compiling() else _in_use.get()
    if spares is None:
        return torch.full(shape, value, dtype=dtype, device=device)
    return spares.constant(value, shape, dtype, device)


def numbers(count: int, device: torch.device) -> Tensor:
    """Return ``0 .. count - 1``, int64, only to be read; a CPU keeps none, as its counts differ."""
    spares = _in_use.get()
    if spares is None or device.type == "cpu":
        return torch.arange(count, dtype=torch.int64, device=device)
    return spares.numbers(count, device)


def _kind(tensor: Tensor) -> object:
    return tensor.shape, tensor.dtype, tensor.device
