"""The whole table in every process: each sums a part of the gradients, all make the same update."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor

from kgfast import distributed
from kgfast.datasets import Dataset
from kgfast.eval.meeting import announced
from kgfast.eval.ranks import Ranks
from kgfast.graph import KnownTriples
from kgfast.models import MED, Model
from kgfast.models.base import Candidates, candidates_at, queries_at
from kgfast.training.config import Config
from kgfast.training.leaves import Leaves, MeanOverAll
from kgfast.training.negatives import Batch
from kgfast.training.parallel.agreement import check_agreement, check_same
from kgfast.training.parallel.crew import Crew
from kgfast.training.parallel.placement import Placement, RankResult
from kgfast.training.parallel.shared import shared_mean, shared_scores
from kgfast.training.row_gradients import RowGradients, merge

Result = TypeVar("Result")


class Replicated(Placement):
    """Several processes that hold all rows each; gradients of rows go to all as (ids, rows).

    Every process draws the same batch and the same negatives, and sums the gradients of a span of
    the rows; all of them go to all, so that all make the same update, bit for bit.

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

    def agreed(self, interrupted: bool, seconds: float) -> tuple[bool, float]:
        """As :meth:`Placement.agreed`."""
        own = torch.tensor([float(interrupted), seconds], dtype=torch.float64, device="cpu")
        said = self._crew.gather(own)
        return bool(said[:, 0].any()), float(said[0, 1])

    def merged(self, parts: Sequence[RowGradients]) -> list[RowGradients]:
        """As :meth:`Placement.merged`."""
        return list(self.gathered(self._merged(parts)))

    def _merged(self, parts: Sequence[RowGradients]) -> list[RowGradients]:
        """Disjoint parts of the rows that are this process's to sum, as one process has them."""
        counts = [len(part.ids) for part in parts if part.distinct]
        if len(counts) > 1:
            own = torch.tensor(counts, dtype=torch.int64, device="cpu")
            counts = self._crew.gather(own).sum(0).tolist()
        return merge(parts, counts)

    def gathered(self, parts: Sequence[RowGradients]) -> Sequence[RowGradients]:
        """As :meth:`Placement.gathered`."""
        return [
            RowGradients(*self._crew.gather_rows(part.ids, part.rows), part.distinct)
            for part in parts
        ]

    def align(self, gradients: Sequence[Tensor]) -> None:
        """As :meth:`Placement.align`."""
        self._crew.align(gradients)

    @announced
    def ranks(
        self, model: Model, dataset: Dataset, split: str, config: Config, most: int | None = None
    ) -> RankResult:
        """As :meth:`Placement.ranks`, by all processes: each ranks a part of the triples."""
        return self._ranks(model, dataset.split(split)[:most], dataset.known(), config)

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

    Attributes
    ----------
    own : slice
        The rows of the table whose gradients this process sums.
    """

    fuses = False

    def __init__(self, model: Model, crew: Crew) -> None:
        super().__init__(model)
        self.crew, self.own = crew, crew.span(len(model.entity))

    def scores(
        self,
        queries: Tensor,
        candidates: Candidates,
        index: Tensor | None,
        score: str,
        widths: list[int] | None,
    ) -> Tensor:
        """As :meth:`Leaves.scores`; one candidate of each query is little work to share."""
        collect = None
        if index is not None and candidates.table is self.table:
            collect = self.own, self.collect
        elif index is not None and index.shape[1] == 1:
            return super().scores(queries, candidates, index, score, widths)
        return shared_scores(self.crew, queries, candidates, index, score, widths, collect)

    def over_all(self, model: Any, anchors: Tensor, batch: Batch, mean: MeanOverAll) -> Tensor:
        """As :meth:`Leaves.over_all`."""
        queries = queries_at(model, anchors, batch.relations, batch.side, None)
        candidates = candidates_at(model, batch.side, None)
        return shared_mean(self.crew, model, queries, candidates, mean)

    def gradients(self) -> list[RowGradients]:
        """As :meth:`Leaves.gradients`, of the rows that are this process's."""
        return [self._own_of(part) for part in super().gradients()]

    def _own_of(self, part: RowGradients) -> RowGradients:
        if part.distinct:  # collected of those rows
            return part
        is_own = (part.ids >= self.own.start) & (part.ids < self.own.stop)
        places = is_own.nonzero()[:, 0]
        return RowGradients(part.ids.index_select(0, places), part.rows.index_select(0, places))
