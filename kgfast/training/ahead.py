"""Batches that a thread makes on the host, a few ahead of the step that takes them.

A step then waits for a device neither to draw its batch nor to copy it there. A batch follows from
its number, so steps have the batches that they would have without the thread.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kgfast.training.data import Batch

_AHEAD = 2  # batches that are made while a step works on the one before
_PINNING = ("cuda",)  # devices that copy from pinned memory while the host goes on
_ALIGNED = 64  # bytes; a kernel is compiled anew for pointers that are aligned less than others
_Packed = tuple[Batch, Tensor]


class BatchesAhead:
    """Batches of a run on a device; ``make`` makes one on the CPU by its number."""

    def __init__(self, make: Callable[[int], Batch], device: torch.device) -> None:
        self._make, self._device = make, device
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[int, Future[_Packed]] = {}

    def take(self, number: int) -> Batch:
        """Return a batch, and begin those after it; raise what the thread met when it made it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="kgfast-batches")
        numbers = range(number, number + 1 + _AHEAD)
        begun, submit = self._begun, self._pool.submit
        self._begun = {it: begun.get(it) or submit(self._packed, it) for it in numbers}
        batch, packed = self._begun[number].result()
        there = packed.to(self._device, non_blocking=True)
        return replace(batch, **_views(batch, there))

    def close(self) -> None:
        """End the thread; a later :meth:`take` starts another."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool, self._begun = None, {}

    def _packed(self, number: int) -> _Packed:
        """Make a batch, and copy its tensors into one, which goes to the device as a whole."""
        batch = self._make(number)
        packed = torch.empty(sum(_sizes(batch)), dtype=torch.uint8, device="cpu")
        if self._device.type in _PINNING:
            packed = packed.pin_memory()
        for name, view in _views(batch, packed).items():
            view.copy_(batch.tensors[name])
        return batch, packed


def _sizes(batch: Batch) -> list[int]:
    """Return the bytes of room for each tensor of a batch."""
    return [-(-it.nbytes // _ALIGNED) * _ALIGNED for it in batch.tensors.values()]


def _views(batch: Batch, packed: Tensor) -> dict[str, Any]:
    """Return the parts of packed bytes as tensors of the shapes and dtypes of a batch."""
    rooms = zip(batch.tensors.items(), packed.split(_sizes(batch)), strict=True)
    return {name: room[: it.nbytes].view(it.dtype).view(it.shape) for (name, it), room in rooms}
