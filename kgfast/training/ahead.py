"""Batches that a thread makes on the host, a few ahead of the steps that use them.

A step then never waits for a batch to be drawn or copied. A batch follows from its number, so the
thread does not change the batches of steps.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kgfast.training.data import Batch

_AHEAD = 2  # batches that are made ahead of the current step
_PINNING = ("cuda",)  # devices that copy from pinned memory while the host goes on
_ALIGNED = 64  # bytes; a kernel is compiled anew for pointers with smaller alignment
_Packed = tuple[Batch, Tensor]


class BatchesAhead:
    """Batches of a run on a device; ``make`` makes a batch on the CPU from its number."""

    def __init__(self, make: Callable[[int], Batch], device: torch.device) -> None:
        self._make, self._device = make, device
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[int, Future[_Packed]] = {}

    def take(self, number: int) -> Batch:
        """Return a batch, and begin the next ones; raise any error of the thread for this batch."""
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
        batch = self._make(number)
        packed = torch.empty(sum(_sizes(batch)), dtype=torch.uint8, device="cpu")
        if self._device.type in _PINNING:
            packed = packed.pin_memory()
        for name, view in _views(batch, packed).items():
            view.copy_(batch.tensors[name])
        return batch, packed


def _sizes(batch: Batch) -> list[int]:
    return [-(-it.nbytes // _ALIGNED) * _ALIGNED for it in batch.tensors.values()]


def _views(batch: Batch, packed: Tensor) -> dict[str, Any]:
    rooms = zip(batch.tensors.items(), packed.split(_sizes(batch)), strict=True)
    return {name: room[: it.nbytes].view(it.dtype).view(it.shape) for (name, it), room in rooms}
