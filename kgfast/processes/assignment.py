"""The division of a run among processes: the protocol, and the case of one process.

:mod:`kgfast.processes.together` has the case of several.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor

from kgfast.datasets import Dataset
from kgfast.eval import Ranks, rank
from kgfast.kernels.checks import NonFiniteError, OutOfRangeError
from kgfast.models import Model

Result = TypeVar("Result")


class Assignment:
    """One process, which works on every row of a batch."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Return whether this process writes logs, checkpoints and results, and prints."""
        return self.rank == 0

    def agreed_device(self, find: Callable[[], torch.device]) -> torch.device:
        """Return the device of this process, once every process has one."""
        return find()

    def check_same(self, facts: Mapping[str, object]) -> None:
        """Raise a ValueError in all processes unless all have equal facts."""

    def together(self, work: Callable[[], Result]) -> Result:
        """Return the result of this process's work, once all processes are done."""
        return work()

    def telling(self) -> AbstractContextManager[None]:
        """Tell all other processes of an error within."""
        return nullcontext()

    def diverges(self, error: Exception) -> bool:
        """Return whether an error of any process says that the numbers of training diverged."""
        return isinstance(error, NonFiniteError | OutOfRangeError)

    def sharing(self, device: torch.device) -> AbstractContextManager[None]:
        """Divide the losses computed within, and the gradients, among all processes."""
        return nullcontext()

    def align(self, gradients: Sequence[Tensor]) -> None:
        """Give all processes the bits of gradients that process 0 computed."""

    def ranks(
        self, model: Model, dataset: Dataset, split: str, batch_size: int | None
    ) -> Ranks | dict[int, Ranks]:
        """Return filtered ranks of a split."""
        triples, known = dataset.split(split), dataset.known()
        return rank(model, triples, known=known, dims=model.dims, batch_size=batch_size)


ALONE = Assignment()
