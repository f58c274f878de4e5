"""Sharded tables: entity ``id`` is a row of process ``id mod size``.

A step fetches the rows of its batch. The process with a row sums the row's gradients, and updates
the row and its optimizer state.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from kgfast.datasets import Dataset
from kgfast.datasets.dataset import SPLITS
from kgfast.eval.ranks import Ranks
from kgfast.graph import KnownTriples, Triples
from kgfast.losses.sampled import distinct_ids, scored_table
from kgfast.models import Model
from kgfast.models.fresh import Fresh
from kgfast.ops.row_gradients import RowGradients, numbers_of
from kgfast.processes.steps import announced
from kgfast.tables import Shard
from kgfast.training.checkpoint.format import State
from kgfast.training.checkpoint.run_folder import RunFolder
from kgfast.training.checkpoint.shard_files import Kind, ShardFiles, names_of_rows
from kgfast.training.config import Config
from kgfast.training.data import Batch
from kgfast.training.processes.crew import Crew
from kgfast.training.processes.placement import RankResult
from kgfast.training.processes.replicated import Replicated


class Sharded(Replicated):
    """Processes that each hold the rows of entities ``rank, rank + size, ...``."""

    def __init__(self, crew: Crew) -> None:
        super().__init__(crew)
        self.fresh = Fresh(first=crew.rank, step=crew.size)
        self._total = 0
        # known triples by the places of entities in the ranking of shards
        self._known: KnownTriples | None = None
        # Rows of this process among the rows that were fetched last; they come first.
        self._held = torch.empty(0, dtype=torch.int64, device="cpu")
        self._fetched: nn.Parameter | None = None

    def check(self, config: Config, dataset: Dataset, device: torch.device) -> None:
        super().check(config, dataset, device)
        self._total = dataset.num_entities

    def read(self, model: Model, batch: Batch) -> tuple[Model, Batch]:
        negatives = batch.negatives
        assert batch.targets is not None
        assert negatives is not None
        ids, places = distinct_ids(batch.anchors, batch.targets, negatives)
        is_held = ids % self.size == self.rank
        is_read = torch.ones_like(is_held)
        dims = getattr(model, "dims", None)
        if negatives.ndim > 1 and scored_table(model, batch.side, dims) is not None:
            # this process scores the negatives of these queries
            own = self._crew.span(len(negatives))
            is_read = is_held.index_fill(0, torch.cat([*places[:2], places[2][own].flatten()]), 1)
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
        crew = self._crew
        order = (ids % crew.size).argsort(stable=True)
        counts: list[int] = (ids % crew.size).bincount(minlength=crew.size).tolist()
        asked = crew.counts_of(counts)
        wanted = crew.exchange(ids[order], counts, asked)
        rows = crew.exchange(table.index_select(0, wanted // crew.size), asked, counts)
        return rows.new_zeros(len(ids) + 1, rows.shape[1]).index_copy_(0, order, rows)

    def read_gradients(self) -> list[RowGradients]:
        if self._fetched is None or self._fetched.grad is None:
            return []
        found = RowGradients.of(self._fetched.grad)
        self._fetched.grad = None
        count = int((found.ids < len(self._held)).sum())
        return [replace(found, ids=self._held[found.ids[:count]], rows=found.rows[:count])]

    def norm(self, gradients: Sequence[Tensor], of_table: Sequence[bool]) -> Tensor:
        pairs = list(zip(gradients, of_table, strict=True))
        shared = [numbers_of(it) for it, is_held in pairs if not is_held]
        held = [it for it, is_held in pairs if is_held]
        shared += [self._whole_of(it) for it in held if it.is_sparse]
        own = nn.utils.get_total_norm([it for it in held if not it.is_sparse])
        squares = self._crew.gather(own.double().cpu().square().reshape(1)).sum()
        return (squares + nn.utils.get_total_norm(shared).double().cpu().square()).sqrt()

    def _whole_of(self, gradient: Tensor) -> Tensor:
        own = RowGradients.of(gradient)
        ids, rows = self._crew.gather_rows(own.ids * self.size + self.rank, own.rows)
        return rows[ids.argsort()]

    @announced
    def ranks(
        self, model: Model, dataset: Dataset, split: str, config: Config, most: int | None = None
    ) -> RankResult:
        # Ranking takes ranges of rows, so entities get new numbers, first the entities of process
        # 0. No count depends on the order.
        hrt = dataset.split(split).hrt[:most]
        if self._known is None:
            self._known = KnownTriples(*(self._placed(dataset.split(name).hrt) for name in SPLITS))
        start = int(self._starts()[self.rank])
        shard = Shard(model.entity.detach(), start=start, total_rows=self._total)
        ranks = self._ranks(model.with_entity(shard), self._placed(hrt), self._known, config)
        if isinstance(ranks, Ranks):
            return _renamed(ranks, hrt, dataset)
        return {dim: _renamed(of_dim, hrt, dataset) for dim, of_dim in ranks.items()}

    def _starts(self) -> Tensor:
        held = [len(range(rank, self._total, self.size)) for rank in range(self.size)]
        return torch.tensor([0, *held], dtype=torch.int64, device="cpu").cumsum(0)

    def _placed(self, hrt: Tensor) -> Tensor:
        placed = hrt.cpu().clone()
        for column in (0, 2):
            ids = placed[:, column]
            placed[:, column] = self._starts()[ids % self.size] + ids // self.size
        return placed

    def head(self, folder: RunFolder, kind: Kind, state: State) -> State:
        tensors, meta = state
        names, step = names_of_rows(tensors), int(meta["step"])
        shards = ShardFiles(kind=kind, step=step, size=self.size, total=self._total, names=names)
        own = {name: tensors[name] for name in names}
        self.together(lambda: shards.save_rows(folder.path, self.rank, own))
        others = {name: tensor for name, tensor in tensors.items() if name not in own}
        return others, meta | {"shards": shards.model_dump()}


def _renamed(ranks: Ranks, hrt: Tensor, dataset: Dataset) -> Ranks:
    triples = Triples(hrt.cpu(), entities=dataset.entities, relations=dataset.relations)

    def counts(of: Ranks, raw: Ranks | None) -> Ranks:
        counted = of.greater, of.equal, of.num_candidates
        return Ranks(*counted, of.sides, triples, raw=raw, known=dataset.known())

    return counts(ranks, counts(ranks.raw, None))
