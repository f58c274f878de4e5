"""Replicated tables: each process sums a part of the gradients, and all update alike."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor

from kgfast.datasets import Dataset
from kgfast.datasets.dataset import SPLITS
from kgfast.eval import rank
from kgfast.graph import KnownTriples
from kgfast.models import Model
from kgfast.ops.dispatch import backend_for, get_backend, serving
from kgfast.processes.shares import processes
from kgfast.processes.steps import OtherProcessError, announced
from kgfast.storage import digest
from kgfast.training.checkpoint.run_graph import RunGraph
from kgfast.training.config import Config, is_own
from kgfast.training.processes.crew import Crew
from kgfast.training.processes.placement import Placement, RankResult
from kgfast.training.processes.shared import SharedBackend

Result = TypeVar("Result")
# Keys that may differ between processes, although a resumed run may change more keys.
_OWN = ("device", "threads", "dataset.root", "train.out_dir", "train.table_folder")
# Errors of a divergence in another process.
_DIVERGED = ("NonFiniteError", "OutOfRangeError", "FloatingPointError")


class Replicated(Placement):
    """Processes that each hold all rows; row gradients go to all as (ids, rows).

    Every process draws the same batch and negatives, calls the same losses, and computes a part of
    the losses (:mod:`shared`). So all processes have equal gradients and make equal updates, bit
    for bit.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.rank, self.size = crew.rank, crew.size
        self._shared: SharedBackend | None = None  # backend of this step

    def check(self, config: Config, dataset: Dataset, device: torch.device) -> None:
        self.together(lambda: _check_trainable(config))
        graph = RunGraph(dataset)
        facts = {key: value for key, value in config.flat().items() if key not in _OWN}
        facts |= {"the names of entities and relations": graph.rows, "device": device.type}
        facts |= {f"the triples of {name}": digest(graph.splits[name]) for name in SPLITS}
        self.check_same(facts)

    def check_same(self, facts: Mapping[str, object]) -> None:
        try:
            self._crew.processes.agree({name: str(fact) for name, fact in facts.items()})
        except ValueError as error:
            raise ValueError(
                f"{error}; start all processes of a run with the same command and the same data"
            ) from None

    def together(self, work: Callable[[], Result]) -> Result:
        return self._crew.processes.together(work)

    def telling(self) -> AbstractContextManager[None]:
        return self._crew.processes.telling()

    def diverges(self, error: Exception) -> bool:
        theirs = isinstance(error, OtherProcessError) and error.kind in _DIVERGED
        return theirs or super().diverges(error)

    def sharing(self, device: torch.device) -> AbstractContextManager[None]:
        self._shared = SharedBackend(self._crew, get_backend(backend_for(device)))
        return serving(self._shared)

    def agreed(self, interrupted: bool, seconds: float) -> tuple[bool, float]:
        own = torch.tensor([float(interrupted), seconds], dtype=torch.float64, device="cpu")
        said = self._crew.gather(own)
        return bool(said[:, 0].any()), float(said[0, 1])

    def align(self, gradients: Sequence[Tensor]) -> None:
        self._crew.align(gradients)

    @announced
    def ranks(
        self, model: Model, dataset: Dataset, split: str, config: Config, most: int | None = None
    ) -> RankResult:
        return self._ranks(model, dataset.split(split)[:most], dataset.known(), config)

    def _ranks(self, model: Model, triples: Any, known: KnownTriples, config: Config) -> RankResult:
        """Rank triples; each process ranks a part."""
        options = {"known": known, "batch_size": config.data.test_bs}
        dims = None if model.dims is None else list(model.dims)
        with processes(timeout=self._crew.processes.timeout):
            return rank(model, triples, dims=dims, **options)


def _check_trainable(config: Config) -> None:
    """Raise a ValueError for a config that shards cannot train."""
    if config.distributed.tables == "replicated":
        return
    if config.train.mode != "negative":
        raise ValueError(
            f"train.mode: {config.train.mode} scores all entities, which no process has with "
            "distributed.tables=sharded; use train.mode=negative, or distributed.tables=replicated"
        )
    if config.model.name == "cp":
        raise ValueError(
            "model.name: cp is ranked by halves of rows, which shards do not return; use "
            "distributed.tables=replicated"
        )
    if is_own(config.model.name):
        raise ValueError(
            "model.name: shards return rows for kgfast's own models alone; use "
            "distributed.tables=replicated"
        )
    if config.med is not None and config.med.crop == "split":
        raise ValueError(
            "med.crop: split is ranked by parts of rows, which shards do not return; use "
            "distributed.tables=replicated"
        )
    filters = config.model.use_rscf and config.model.rscf_relation_transform is not False
    if filters and config.model.name in ("rotate", "transe"):
        raise ValueError(
            "model.use_rscf: filtered relations are ranked among all entities, which no process "
            "has with distributed.tables=sharded; use distributed.tables=replicated, or "
            "model.rscf_relation_transform=false"
        )
