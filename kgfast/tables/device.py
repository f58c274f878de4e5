"""Table that returns rows on a device, and the copies of blocks to that device."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kgfast.tables.protocol import Rows


def numbered(device: torch.device | str) -> torch.device:
    """Return a device as tensors name it: `cuda` stands for one GPU, such as `cuda:0`."""
    return torch.empty(0, dtype=torch.uint8, device=device).device


class OnDevice(Rows):
    """Table on the CPU that returns rows on another device."""

    def __init__(self, table: Rows, device: torch.device | str) -> None:
        if table.device.type != "cpu":
            raise ValueError(f"{table!r} returns rows on {table.device}, not on the CPU")
        self.table, self.device = table, numbered(device)
        self.shape, self.dtype, self.is_complex = table.shape, table.dtype, table.is_complex

    @property
    def facts(self) -> tuple[object, ...]:
        return self.table.facts

    @property
    def tells(self) -> bool:
        return self.table.tells

    def block(self, start: int, stop: int) -> Tensor:
        """Return rows ``start .. stop - 1``."""
        return self.table.block(start, stop).to(self.device)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of ids ``[B]``."""
        return self.table.rows(ids).to(self.device)

    def update(self, ids: Tensor, rows: Tensor) -> None:
        """Write rows, if the table can be written to."""
        update: Any = getattr(self.table, "update", None)
        if update is None:
            raise TypeError(f"{self.table!r} cannot be written to")
        update(ids, rows)

    def give_back(self, start: int, stop: int) -> None:
        self.table.give_back(start, stop)

    def where(self, row: int) -> str:
        return self.table.where(row)

    def _held(self) -> str:
        return f"on {self.device}: "


class Copies:
    """Copies from pinned memory to a GPU, on a separate stream.

    Work on another stream waits for the event of a copy. A copy waits for the work on the memory
    that the copy replaces. All calls guard the device, in any thread.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream(device)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return pinned memory of the host, from which copies run while the host goes on."""
        return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)

    def start(self, rows: Tensor, room: Tensor, used: Any) -> Any:
        """Copy pinned rows once ``used``, if any, has passed; return the event of the end."""
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            if used is not None:
                self.stream.wait_event(used)
            room.copy_(rows, non_blocking=True)
            done = torch.cuda.Event()
            done.record(self.stream)
        return done

    def await_on_host(self, done: Any) -> None:
        """Wait until pinned memory may be written to again."""
        done.synchronize()

    def await_on_device(self, done: Any) -> None:
        """Let all work that is queued from now on wait for a copy."""
        with torch.cuda.device(self.device):
            torch.cuda.current_stream(self.device).wait_event(done)

    def used(self) -> Any:
        """Return an event at the end of all work queued so far."""
        with torch.cuda.device(self.device):
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self.device))
        return event

    def finish(self) -> None:
        """Wait for all copies, so that the memory of their targets may be freed."""
        self.stream.synchronize()
