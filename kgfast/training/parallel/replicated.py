"""The whole table in every process: each works on a part of a batch, all make the same update."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from kgfast import distributed
from kgfast.datasets import Dataset
from kgfast.distributed.meeting import announced
from kgfast.eval.ranks import Ranks
from kgfast.graph import KnownTriples
from kgfast.losses.croppable import WholeBatch
from kgfast.models import MED, Model
from kgfast.training.config import Config
from kgfast.training.evaluation import check_split
from kgfast.training.leaves import Leaves
from kgfast.training.parallel.agreement import check_agreement, check_same
from kgfast.training.parallel.crew import Crew
from kgfast.training.parallel.losses import PartOfBatch
from kgfast.training.parallel.placement import Placement, RankResult
from kgfast.training.row_gradients import RowGradients, merge
from kgfast.training.share import Share

Result = TypeVar("Result")


class Replicated(Placement):
    """Several processes that hold all rows each; gradients of rows go to all as (ids, rows).

    Every process draws the same batch and the same negatives, works on its share of the batch, and
    gets the gradients of all; they are added in the order of ranks, so that all make the same
    update, bit for bit.

    Parameters
    ----------
    crew : Crew
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.rank, self.size = crew.rank, crew.size

    def check(self, config: Config, dataset: Dataset, device: torch.device) -> None:
        """As :meth:`Placement.check`."""
        check_agreement(self._crew.meeting, config, dataset, device)

    def check_same(self, **facts: object) -> None:
        """As :meth:`Placement.check_same`."""
        words = {name.replace("_", " "): str(fact) for name, fact in facts.items()}
        check_same(self._crew.meeting, words)

    def together(self, work: Callable[[], Result]) -> Result:
        """As :meth:`Placement.together`."""
        return self._crew.meeting.together(work)

    def telling(self) -> AbstractContextManager[None]:
        """As :meth:`Placement.telling`."""
        return self._crew.telling()

    def leaves(self, model: Model) -> Leaves:
        """As :meth:`Placement.leaves`."""
        return SharedLeaves(model, self._crew)

    def loss(self, own: Tensor) -> float:
        """As :meth:`Placement.loss`; added in float64."""
        return float(self._crew.gather(own.detach().double().reshape(1)).sum())

    def agreed(self, interrupted: bool, seconds: float) -> tuple[bool, float]:
        """As :meth:`Placement.agreed`."""
        own = torch.tensor([float(interrupted), seconds], dtype=torch.float64, device="cpu")
        said = self._crew.gather(own)
        return bool(said[:, 0].any()), float(said[0, 1])

    def merged(self, parts: Sequence[RowGradients], table: Tensor) -> list[RowGradients]:
        """As :meth:`Placement.merged`."""
        own = in_one(merge(parts), table)
        order = own.ids.argsort()
        of_all = self._crew.gather_rows(own.ids[order], own.rows[order])
        return merge([RowGradients(ids, rows, distinct=True) for ids, rows in of_all])

    def add_up(self, parameters: Sequence[nn.Parameter], table: nn.Parameter) -> None:
        """As :meth:`Placement.add_up`."""
        self._crew.add_up(parameters)

    @announced
    def ranks(
        self, model: Model, dataset: Dataset, split: str, config: Config, most: int | None = None
    ) -> RankResult:
        """As :meth:`Placement.ranks`, by all processes: each ranks a part of the triples."""
        check_split(split)
        return self._ranks(model, getattr(dataset, split)[:most], dataset.known(), config)

    def _ranks(self, model: Model, triples: Any, known: KnownTriples, config: Config) -> RankResult:
        def ranked(dim: int | None) -> Ranks:
            return distributed.rank(
                model,
                triples,
                known=known,
                dims=dim,
                batch_size=config.data.test_bs,
                timeout=self._crew.meeting.timeout,
            )

        if isinstance(model, MED):
            return {dim: ranked(dim) for dim in model.dims}
        return ranked(None)

    def leave(self) -> None:
        """As :meth:`Placement.leave`."""
        self._crew.leave()


class SharedLeaves(Leaves):
    """The leaves of one step of a process among several.

    Parameters
    ----------
    model : Model
    crew : Crew
    """

    def __init__(self, model: Model, crew: Crew) -> None:
        super().__init__(model)
        self.crew = crew

    def share(self, count: int) -> Share:
        """As :meth:`Leaves.share`."""
        return Share.of_process(self.crew.rank, self.crew.size, count)

    def over(self, share: Share, pairs: int | Tensor) -> WholeBatch:
        """As :meth:`Leaves.over`."""
        return PartOfBatch(self.crew, share, pairs)


def in_one(parts: Sequence[RowGradients], table: Tensor) -> RowGradients:
    """Disjoint gradients of rows of a table as one, perhaps of no rows."""
    if not parts:
        return RowGradients(table.new_empty(0, dtype=torch.int64), table.new_empty(table[:0].shape))
    if len(parts) == 1:
        return parts[0]
    ids, rows = torch.cat([it.ids for it in parts]), torch.cat([it.rows for it in parts])
    return RowGradients(ids, rows)
