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
from kgfast.ops.dispatch import backend_for, get_backend, serving
from kgfast.training.config import Config
from kgfast.training.parallel.agreement import check_agreement, check_same
from kgfast.training.parallel.crew import Crew
from kgfast.training.parallel.placement import Placement, RankResult
from kgfast.training.parallel.shared import SharedBackend

Result = TypeVar("Result")


class Replicated(Placement):
    """Several processes that hold all rows each; gradients of rows go to all as (ids, rows).

    Every process draws the same batch and the same negatives, calls the same losses, and computes a
    part of them (:mod:`shared`). So all have the same gradients and make the same update, bit for
    bit.

    Parameters
    ----------
    crew : Crew
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.rank, self.size = crew.rank, crew.size
        self._shared: SharedBackend | None = None  # of this step

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

    def sharing(self, device: torch.device) -> AbstractContextManager[None]:
        """As :meth:`Placement.sharing`."""
        self._shared = SharedBackend(self._crew, get_backend(backend_for(device)))
        return serving(self._shared)

    def agreed(self, interrupted: bool, seconds: float) -> tuple[bool, float]:
        """As :meth:`Placement.agreed`."""
        own = torch.tensor([float(interrupted), seconds], dtype=torch.float64, device="cpu")
        said = self._crew.gather(own)
        return bool(said[:, 0].any()), float(said[0, 1])

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
