"""What processes that train together send each other: numbers, rows, gradients.

Every process makes the same calls in the same order. Small numbers are gathered and added in the
order of processes, so that all have the same bits; rows go from who has them to who needs them.
A collective that fails says who is gone, or why another process gave up (:class:`Meeting`).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor

from kgfast.distributed.meeting import Meeting

_LARGE = 1 << 20  # numbers of a gradient that is added up in place, not in a copy with others


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

    def gather_rows(self, ids: Tensor, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The ids ``[U]`` and rows ``[U, G]`` of all processes, by rank; as many as each has."""
        counts = self.gather(_counts([len(ids)]))[:, 0].tolist()
        most = max(counts)
        all_ids, all_rows = (self._gather_padded(values, most) for values in (ids, rows))
        return [
            (own[:count], its[:count])
            for own, its, count in zip(all_ids, all_rows, counts, strict=True)
        ]

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

    def add_up(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Add the gradients of parameters over all processes, in place.

        One that has a gradient nowhere keeps none, as in one process.
        """
        if not parameters:
            return
        present = torch.tensor(
            [parameter.grad is not None for parameter in parameters],
            dtype=torch.int64,
            device="cpu",
        )
        anywhere = self.gather(present).any(0).tolist()
        wanted = [it for it, is_there in zip(parameters, anywhere, strict=True) if is_there]
        for parameter in wanted:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [it.grad for it in wanted if it.grad is not None]
        for gradient in gradients:
            if gradient.numel() > _LARGE and gradient.is_contiguous():
                self._all_reduce(gradient)
        small = [it for it in gradients if it.numel() <= _LARGE or not it.is_contiguous()]
        for dtype in dict.fromkeys(it.dtype for it in small):
            self._add_up_together([it for it in small if it.dtype == dtype])

    def _add_up_together(self, gradients: Sequence[Tensor]) -> None:
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self._all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def _all_reduce(self, values: Tensor) -> None:
        self.meeting.collective(lambda: dist.all_reduce(values, group=self._rows))

    def leave(self) -> None:
        """End its groups."""
        self.meeting.leave()


def _counts(values: Sequence[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64, device="cpu")
