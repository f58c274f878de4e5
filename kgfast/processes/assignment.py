"""The division of a run among processes: the protocol, and the case of one process.

:mod:`kgfast.processes.together` has the cases of several.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from kgfast.datasets import Dataset
from kgfast.eval import Ranks, rank
from kgfast.kernels.checks import NonFiniteError, OutOfRangeError
from kgfast.models import Model
from kgfast.models.fresh import ALL_ROWS, Fresh
from kgfast.ops.row_gradients import RowGradients, numbers_of

Result = TypeVar("Result")
RankResult = Ranks | dict[int, Ranks]


class Assignment:
    """One process, which works on every row of a batch and holds every row of the table."""

    rank: int = 0
    size: int = 1
    fresh: Fresh = ALL_ROWS  # rows of a fresh table in this process
    num_entities: int = 0  # in the dataset; set before the first step

    @property
    def leads(self) -> bool:
        """Return whether this process writes logs, heads of checkpoints and results, and prints."""
        return self.rank == 0

    def check_same(self, facts: Mapping[str, object]) -> None:
        """Raise a ValueError in all processes unless all have equal facts."""

    def together(self, work: Callable[[], Result]) -> Result:
        """Return the result of this process's work, once all processes are done."""
        return work()

    def telling(self) -> AbstractContextManager[None]:
        """Tell all other processes of an error within."""
        return nullcontext()

    def diverges(self, error: Exception) -> bool:
        """Return whether an error, of any process, is that of numbers that training made."""
        return isinstance(error, NonFiniteError | OutOfRangeError)

    def entity_id(self, row: int) -> int:
        """Return the entity of a row of this process."""
        return self.fresh.first + self.fresh.step * row

    def num_held(self, num_entities: int) -> int:
        """Return the number of rows that this process holds."""
        return len(range(self.fresh.first, num_entities, self.fresh.step))

    # One step.

    def read(self, model: Model, batch: Any) -> tuple[Model, Any]:
        """Return a model of the rows that sampled negatives need, and the batch by these rows."""
        return model, batch

    def sharing(self, device: torch.device) -> AbstractContextManager[None]:
        """Divide the losses computed within, and the gradients, among all processes."""
        return nullcontext()

    def read_gradients(self) -> Sequence[RowGradients]:
        """Take the gradients of entity rows that :meth:`read` fetched and this process holds."""
        return ()

    def align(self, gradients: Sequence[Tensor]) -> None:
        """Give all processes the bits of gradients that process 0 computed."""

    def norm(self, gradients: Sequence[Tensor], of_table: Sequence[bool]) -> Tensor:
        """Return the norm of all gradients, dense or coalesced; nothing waits for a device.

        ``of_table`` marks gradients of the entity table.
        """
        return nn.utils.get_total_norm([numbers_of(it) for it in gradients])

    # Between steps.

    def joined(self, rows: Tensor) -> Any:
        """Return the rows of all processes as a table, whose blocks all processes read."""
        return rows

    def ranks(
        self,
        model: Model,
        dataset: Dataset,
        split: str,
        batch_size: int | None,
        most: int | None = None,
    ) -> RankResult:
        """Return filtered ranks of a split, or of its first ``most`` triples."""
        triples, known = dataset.split(split)[:most], dataset.known()
        return rank(model, triples, known=known, dims=model.dims, batch_size=batch_size)


ALONE = Assignment()
