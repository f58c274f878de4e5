"""Training by several processes, which each hold all tables."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch

from kgfast.datasets import Dataset
from kgfast.eval import Ranks
from kgfast.models import Model
from kgfast.ops.dispatch import backend_for, get_backend, serving
from kgfast.processes.assignment import Assignment
from kgfast.processes.messages import TrainingProcesses
from kgfast.processes.shared import SharedBackend
from kgfast.processes.shares import processes
from kgfast.processes.steps import OtherProcessError

# Errors of a divergence in another process.
_DIVERGED = ("NonFiniteError", "OutOfRangeError", "FloatingPointError")


class Together(TrainingProcesses, Assignment):
    """Processes that each hold all rows; row gradients go to all as (ids, rows).

    Every process draws the same batch and negatives, calls the same losses, and computes a part of
    the losses (:mod:`shared`). So all processes have equal gradients and make equal updates, bit
    for bit.
    """

    def check_same(self, facts: Mapping[str, object]) -> None:
        try:
            self.agree({name: str(fact) for name, fact in facts.items()})
        except ValueError as error:
            raise ValueError(
                f"{error}; start all processes of a run with the same command and the same data"
            ) from None

    def diverges(self, error: Exception) -> bool:
        theirs = isinstance(error, OtherProcessError) and error.kind in _DIVERGED
        return theirs or super().diverges(error)

    def sharing(self, device: torch.device) -> AbstractContextManager[None]:
        return serving(SharedBackend(self, get_backend(backend_for(device))))

    def ranks(
        self, model: Model, dataset: Dataset, split: str, batch_size: int | None
    ) -> Ranks | dict[int, Ranks]:
        with processes(timeout=self.timeout):
            return super().ranks(model, dataset, split, batch_size)
