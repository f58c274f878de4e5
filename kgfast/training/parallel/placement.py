"""What a run asks of the way its table and its work are placed; and one process, which has all."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn

from kgfast.datasets import Dataset
from kgfast.eval.ranks import Ranks
from kgfast.models import Model
from kgfast.models.fresh import ALL_ROWS, Fresh
from kgfast.ops.row_gradients import RowGradients, numbers_of
from kgfast.training.build import ranks_of
from kgfast.training.checkpoint import State
from kgfast.training.config import Config
from kgfast.training.negatives import Batch
from kgfast.training.run_folder import RunFolder
from kgfast.training.shard_files import Kind

Result = TypeVar("Result")
RankResult = Ranks | dict[int, Ranks]
Read = tuple[Model, Batch, Tensor]


class Placement:
    """One process: it works on every row of a batch and holds every row of the table.

    Attributes
    ----------
    rank, size : int
        This process among how many.
    fresh : Fresh
        Which rows of a fresh table it holds.
    """

    rank: int = 0
    size: int = 1
    fresh: Fresh = ALL_ROWS

    @property
    def leads(self) -> bool:
        """Whether it writes logs, heads of checkpoints and results, and speaks to people."""
        return self.rank == 0

    def check(self, config: Config, dataset: Dataset, device: torch.device) -> None:
        """That all processes train the same, in a way that this placement serves.

        Raises
        ------
        ValueError
            In all processes; names what differs, or the key that does not fit.
        """

    def check_same(self, **facts: object) -> None:
        """That all processes have the same facts, which are named.

        Raises
        ------
        ValueError
            In all processes.
        """

    def together(self, work: Callable[[], Result]) -> Result:
        """What this process makes of its work, once all have done theirs."""
        return work()

    def telling(self) -> AbstractContextManager[None]:
        """Let other processes know of an error within."""
        return nullcontext()

    def entity_id(self, row: int) -> int:
        """The entity of a row that is held."""
        return row

    def num_held(self, num_entities: int) -> int:
        """How many rows are held of so many."""
        return num_entities

    # A step.

    def read(self, model: Model, batch: Batch, negatives: Tensor) -> Read:
        """What losses of sampled negatives take: the model that has the rows, by whose ids."""
        return model, batch, negatives

    def sharing(self, device: torch.device) -> AbstractContextManager[None]:
        """Let all processes compute a part of the losses inside, and of their gradients."""
        return nullcontext()

    def read_gradients(self) -> list[RowGradients]:
        """Take the gradients of rows of entities that :meth:`read` fetched, as they are held."""
        return []

    def agreed(self, interrupted: bool, seconds: float) -> tuple[bool, float]:
        """What all go by: whether anyone was interrupted, and the time that process 0 took."""
        return interrupted, seconds

    def align(self, gradients: Sequence[Tensor]) -> None:
        """Give all processes the same bits of gradients that each has computed."""

    def norm(self, gradients: Sequence[Tensor], of_table: Sequence[bool]) -> float:
        """The norm of all gradients together, dense or coalesced.

        ``of_table``: which of them are of the entities that are held.
        """
        return float(nn.utils.get_total_norm([numbers_of(it) for it in gradients]))

    # Between steps.

    def ranks(
        self, model: Model, dataset: Dataset, split: str, config: Config, most: int | None = None
    ) -> RankResult:
        """Filtered ranks of a split, or of its first ``most`` triples."""
        return ranks_of(model, dataset, split, config, most=most)

    def head(self, folder: RunFolder, kind: Kind, state: State) -> State:
        """What the head of a checkpoint holds, once the rows that are not in it are written.

        Parameters
        ----------
        folder : RunFolder
        kind : {"state", "model"}
            With or without the optimizer's.
        state : tuple
            Tensors and meta of this process.
        """
        return state

    def leave(self) -> None:
        """End what holds the processes together."""


ALONE = Placement()
