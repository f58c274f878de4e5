"""Training by several processes: replicated tables, and sharded ones."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from kgfast.datasets import Dataset
from kgfast.datasets.dataset import SPLITS
from kgfast.eval import Ranks, rank
from kgfast.graph import KnownTriples, Triples
from kgfast.losses.sampled import distinct_ids, scored_table
from kgfast.models import Model
from kgfast.models.fresh import Fresh
from kgfast.ops.dispatch import backend_for, get_backend, serving
from kgfast.ops.row_gradients import RowGradients, numbers_of
from kgfast.processes.assignment import Assignment, RankResult
from kgfast.processes.messages import TrainingProcesses
from kgfast.processes.shared import SharedBackend
from kgfast.processes.shares import processes
from kgfast.processes.steps import OtherProcessError
from kgfast.tables import Shard

Result = TypeVar("Result")
# Errors of a divergence in another process.
_DIVERGED = ("NonFiniteError", "OutOfRangeError", "FloatingPointError")


class Replicated(Assignment):
    """Processes that each hold all rows; row gradients go to all as (ids, rows).

    Every process draws the same batch and negatives, calls the same losses, and computes a part of
    the losses (:mod:`shared`). So all processes have equal gradients and make equal updates, bit
    for bit.
    """

    def __init__(self, processes: TrainingProcesses) -> None:
        self._processes = processes
        self.rank, self.size = processes.rank, processes.size
        self._shared: SharedBackend | None = None  # backend of this step

    def check_same(self, facts: Mapping[str, object]) -> None:
        try:
            self._processes.agree({name: str(fact) for name, fact in facts.items()})
        except ValueError as error:
            raise ValueError(
                f"{error}; start all processes of a run with the same command and the same data"
            ) from None

    def together(self, work: Callable[[], Result]) -> Result:
        return self._processes.together(work)

    def telling(self) -> AbstractContextManager[None]:
        return self._processes.telling()

    def diverges(self, error: Exception) -> bool:
        theirs = isinstance(error, OtherProcessError) and error.kind in _DIVERGED
        return theirs or super().diverges(error)

    def sharing(self, device: torch.device) -> AbstractContextManager[None]:
        self._shared = SharedBackend(self._processes, get_backend(backend_for(device)))
        return serving(self._shared)

    def align(self, gradients: Sequence[Tensor]) -> None:
        self._processes.align(gradients)

    def ranks(
        self,
        model: Model,
        dataset: Dataset,
        split: str,
        batch_size: int | None,
        most: int | None = None,
    ) -> RankResult:
        with processes(timeout=self._processes.timeout):
            return super().ranks(model, dataset, split, batch_size, most)


class Sharded(Replicated):
    """Processes that each hold the rows of entities ``rank, rank + size, ...``.

    A step fetches the rows of its batch. The process with a row sums the row's gradients, and
    updates the row and its optimizer state.
    """

    def __init__(self, processes: TrainingProcesses) -> None:
        super().__init__(processes)
        self.fresh = Fresh(first=self.rank, step=self.size)
        # known triples by the places of entities in the ranking of shards
        self._known: KnownTriples | None = None
        # Rows of this process among the rows that were fetched last; they come first.
        self._held = torch.empty(0, dtype=torch.int64, device="cpu")
        self._fetched: nn.Parameter | None = None

    def read(self, model: Model, batch: Any) -> tuple[Model, Any]:
        negatives = batch.negatives
        assert batch.targets is not None
        assert negatives is not None
        ids, places = distinct_ids(batch.anchors, batch.targets, negatives)
        is_held = ids % self.size == self.rank
        is_read = torch.ones_like(is_held)
        if negatives.ndim > 1 and scored_table(model, batch.side, model.dims) is not None:
            # this process scores the negatives of these queries
            negatives_here = places[2][self._processes.share(len(negatives))].flatten()
            is_read = is_held.index_fill(0, torch.cat([*places[:2], negatives_here]), 1)
        first, then = is_held.nonzero()[:, 0], (is_read & ~is_held).nonzero()[:, 0]
        order = torch.cat([first, then])
        numbers = torch.full_like(ids, len(order))  # number of the row of zeros, which is not read
        numbers[order] = torch.arange(len(order), dtype=torch.int64, device=ids.device)
        anchors, targets, negatives = (numbers[place] for place in places)
        self._held = ids[first] // self.size
        assert self._shared is not None
        self._shared.own = slice(0, len(first))
        batch = replace(batch, anchors=anchors, targets=targets, negatives=negatives)
        self._fetched = nn.Parameter(self._fetch(model.entity.detach(), ids[order]))
        return model.with_entity(self._fetched), batch

    def _fetch(self, table: Tensor, ids: Tensor) -> Tensor:
        messages = self._processes
        order = (ids % self.size).argsort(stable=True)
        counts: list[int] = (ids % self.size).bincount(minlength=self.size).tolist()
        wanted_of = messages.counts_of(counts)
        wanted = messages.send_rows(ids[order], counts, wanted_of)
        rows = table.index_select(0, wanted // self.size)
        rows = messages.send_rows(rows, wanted_of, counts)
        return rows.new_zeros(len(ids) + 1, rows.shape[1]).index_copy_(0, order, rows)

    def read_gradients(self) -> Sequence[RowGradients]:
        if self._fetched is None or self._fetched.grad is None:
            return ()
        gradients = RowGradients.of(self._fetched.grad)
        self._fetched.grad = None
        count = int((gradients.ids < len(self._held)).sum())
        ids, rows = self._held[gradients.ids[:count]], gradients.rows[:count]
        return [replace(gradients, ids=ids, rows=rows)]

    def norm(self, gradients: Sequence[Tensor], of_table: Sequence[bool]) -> Tensor:
        pairs = list(zip(gradients, of_table, strict=True))
        shared = [numbers_of(it) for it, is_held in pairs if not is_held]
        held = [it for it, is_held in pairs if is_held]
        shared += [self._whole_of(it) for it in held if it.is_sparse]
        of_rows = nn.utils.get_total_norm([it for it in held if not it.is_sparse])
        squares = self._processes.gather_numbers(of_rows.double().cpu().square().reshape(1)).sum()
        return (squares + nn.utils.get_total_norm(shared).double().cpu().square()).sqrt()

    def _whole_of(self, gradient: Tensor) -> Tensor:
        held = RowGradients.of(gradient)
        ids, rows = self._processes.gather_rows(held.ids * self.size + self.rank, held.rows)
        return rows[ids.argsort()]

    def joined(self, rows: Tensor) -> Any:
        return _Joined(self._processes, rows, self.num_entities)

    def ranks(
        self,
        model: Model,
        dataset: Dataset,
        split: str,
        batch_size: int | None,
        most: int | None = None,
    ) -> RankResult:
        # Ranking takes ranges of rows, so entities get new numbers, first the entities of process
        # 0. No count depends on the order.
        with processes(timeout=self._processes.timeout):
            hrt = dataset.split(split).hrt[:most]
            if self._known is None:
                splits = (self._renumbered(dataset.split(name).hrt) for name in SPLITS)
                self._known = KnownTriples(*splits)
            start = int(self._starts()[self.rank])
            shard = Shard(model.entity.detach(), start=start, total_rows=self.num_entities)
            sharded, triples = model.with_entity(shard), self._renumbered(hrt)
            options: dict[str, Any] = {"dims": model.dims, "batch_size": batch_size}
            ranks = rank(sharded, triples, known=self._known, **options)
        if isinstance(ranks, Ranks):
            return _renamed(ranks, hrt, dataset)
        return {dim: _renamed(of_dim, hrt, dataset) for dim, of_dim in ranks.items()}

    def _starts(self) -> Tensor:
        held = [len(range(rank, self.num_entities, self.size)) for rank in range(self.size)]
        return torch.tensor([0, *held], dtype=torch.int64, device="cpu").cumsum(0)

    def _renumbered(self, hrt: Tensor) -> Tensor:
        numbers, starts = hrt.cpu().clone(), self._starts()
        for column in (0, 2):
            ids = numbers[:, column]
            numbers[:, column] = starts[ids % self.size] + ids // self.size
        return numbers


class _Joined:
    """Rows of all shards in the order of entities; every process reads the same blocks."""

    def __init__(self, processes: TrainingProcesses, rows: Tensor, count: int) -> None:
        self._processes, self._rows = processes, rows
        self.shape, self.dtype = (count, *rows.shape[1:]), rows.dtype

    def block(self, start: int, stop: int) -> Tensor:
        rank, size = self._processes.rank, self._processes.size
        first, last = (-((rank - end) // size) for end in (start, stop))
        numbers = torch.arange(first, last, dtype=torch.int64, device=self._rows.device)
        ids, rows = self._processes.gather_rows(rank + size * numbers, self._rows[first:last])
        return rows[ids.argsort()]


def _renamed(ranks: Ranks, hrt: Tensor, dataset: Dataset) -> Ranks:
    triples = Triples(hrt.cpu(), entities=dataset.entities, relations=dataset.relations)

    def counts(of: Ranks, raw: Ranks | None) -> Ranks:
        counted = of.greater, of.equal, of.num_candidates
        return Ranks(*counted, of.sides, triples, raw=raw, known=dataset.known())

    return counts(ranks, counts(ranks.raw, None))
