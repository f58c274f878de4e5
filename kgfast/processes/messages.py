"""Messages between processes that train together: numbers, rows, gradients.

Every process makes the same calls in the same order. Numbers are added in the order of processes,
so that all processes have the same bits. The error of a failed collective names the missing
process, or the reason why a process gave up (:class:`Processes`).
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from kgfast.processes.steps import Processes


class TrainingProcesses(Processes):
    """Processes of one run, which wait ``timeout`` seconds for each other."""

    def __init__(self, timeout: float) -> None:
        super().__init__("kgfast.training.Trainer", timeout)
        self.agree({})
        self._numbers = self._rows = self.group()

    def send_from(self, device: torch.device) -> None:
        """Send rows from the device of this process's tables."""
        if device.type == "cuda":
            self._rows = self.group("nccl")

    def gather_numbers(self, values: Tensor) -> Tensor:
        """Return the ``values [K]`` of all processes, on the CPU, ``[size, K]`` by rank."""
        return torch.stack(self.gather(values.cpu(), self._numbers))

    def gather_rows(self, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ids ``[U]`` and rows ``[U, G]`` of all processes, in the order of ranks."""
        count = torch.full((1,), len(ids), dtype=torch.int64, device="cpu")
        counts = self.gather_numbers(count)[:, 0].tolist()
        return self._joined(ids, counts), self._joined(rows, counts)

    def _joined(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Join the rows of all processes, ``counts[rank]`` of each, sent with padding."""
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        received = [torch.empty_like(padded) for _ in range(self.size)]
        if padded.numel():
            self.collective(lambda: dist.all_gather(received, padded, group=self._rows))
        return torch.cat([rows[:count] for rows, count in zip(received, counts, strict=True)])

    def share(self, count: int) -> slice:
        """Return the part of ``count`` rows that this process works on."""
        return self._shares(count)[self.rank]

    def _shares(self, count: int) -> list[slice]:
        ends = [count * rank // self.size for rank in range(self.size + 1)]
        return [slice(first, stop) for first, stop in pairwise(ends)]

    def join(self, rows: Tensor, count: int) -> Tensor:
        """Join rows ``[count, ...]``; each process has its share of the rows."""
        return self._joined(rows, [share.stop - share.start for share in self._shares(count)])

    def sum_rows(self, values: Tensor) -> Tensor:
        """Sum the values of all processes, in place, with equal bits in all."""
        self.collective(lambda: dist.all_reduce(values, group=self._rows))
        return values

    def align(self, gradients: Sequence[Tensor]) -> None:
        """Give all processes the bits of process 0; shapes and dtypes are equal in all."""
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            alike = [gradient for gradient in gradients if gradient.dtype == dtype]
            flat = torch.cat([tensor.flatten() for tensor in alike])
            self.collective(lambda: dist.broadcast(flat, group_src=0, group=self._rows))  # noqa: B023
            sizes = [tensor.numel() for tensor in alike]
            for tensor, values in zip(alike, flat.split(sizes), strict=True):
                tensor.copy_(values.view_as(tensor))
