"""What processes that train together send each other: numbers, rows, gradients.

Every process makes the same calls in the same order. Small numbers are gathered and added in the
order of processes, so that all have the same bits; rows go from who has them to who needs them.
A collective that fails says who is gone, or why another process gave up (:class:`Meeting`).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from kgfast.eval.meeting import Meeting


class Crew:
    """The processes of one run.

    Parameters
    ----------
    timeout : float
        Seconds that a process waits for the others.
    device : torch.device
        Where the tables of this process are: rows are sent from there.

    Attributes
    ----------
    rank, size : int
    meeting : Meeting
        Where they agree, and where failures are told.
    """

    def __init__(self, timeout: float, device: torch.device) -> None:
        self.meeting = Meeting("kgfast.training.Trainer", timeout)
        self.rank, self.size = self.meeting.rank, self.meeting.size
        self.meeting.agree({})
        everyone = [range(self.size)]
        self._numbers = self.meeting.group(everyone)
        self._rows = self._numbers
        if device.type == "cuda":
            self._rows = self.meeting.group(everyone, "nccl")

    def telling(self) -> AbstractContextManager[None]:
        """As :meth:`Meeting.telling`."""
        return self.meeting.telling()

    def gather(self, values: Tensor) -> Tensor:
        """The ``values [K]`` of all processes, on the CPU, ``[size, K]`` by rank."""
        return torch.stack(self.meeting.gather(values.cpu(), self._numbers))

    def gather_rows(self, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The ids ``[U]`` and rows ``[U, G]`` of all processes, in the order of ranks."""
        counts = self.gather(_counts([len(ids)]))[:, 0].tolist()
        return self._joined(ids, counts), self._joined(rows, counts)

    def _joined(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """Join the rows of all processes, as many as each has."""
        parts = self._gather_padded(own.contiguous(), max(counts))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def _gather_padded(self, values: Tensor, length: int) -> list[Tensor]:
        padded = values.new_zeros((length, *values.shape[1:]))
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        if padded.numel():
            self.meeting.collective(lambda: dist.all_gather(parts, padded, group=self._rows))
        return parts

    def counts_of(self, counts: Sequence[int]) -> list[int]:
        """How many rows each process has for this one, where it has ``counts[rank]`` for each."""
        sent, received = _counts(counts), _counts([0] * self.size)
        self.meeting.collective(lambda: dist.all_to_all_single(received, sent, group=self._numbers))
        return received.tolist()

    def exchange(self, values: Tensor, counts: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send the first ``counts[0]`` of values to process 0 and so on; what all have sent here.

        ``received[rank]`` are as many as process ``rank`` sends, in the order of ranks.
        """
        values = values.contiguous()
        out = values.new_empty((sum(received), *values.shape[1:]))
        self.meeting.collective(
            lambda: dist.all_to_all_single(
                out, values, list(received), list(counts), group=self._rows
            )
        )
        return out

    def span(self, count: int) -> slice:
        """The rows of ``count`` that this process works on: as many as any other's, but for one."""
        return self._spans(count)[self.rank]

    def _spans(self, count: int) -> list[slice]:
        ends = [count * rank // self.size for rank in range(self.size + 1)]
        return [slice(first, stop) for first, stop in pairwise(ends)]

    def join(self, own: Tensor, count: int) -> Tensor:
        """Join rows ``[count, ...]`` of which each process has its span."""
        return self._joined(own, [span.stop - span.start for span in self._spans(count)])

    def sum(self, values: Tensor) -> Tensor:
        """The sum of the values of all processes, in place: the same bits in all."""
        self.meeting.collective(lambda: dist.all_reduce(values, group=self._rows))
        return values

    def align(self, tensors: Sequence[Tensor]) -> None:
        """Give all processes the bits of process 0, of tensors of one shape and dtype in all."""
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            self._align([tensor for tensor in tensors if tensor.dtype == dtype])

    def _align(self, tensors: Sequence[Tensor]) -> None:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        self.meeting.collective(lambda: dist.broadcast(flat, group_src=0, group=self._rows))
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def leave(self) -> None:
        """End its groups."""
        self.meeting.leave()


def _counts(values: Sequence[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64, device="cpu")
