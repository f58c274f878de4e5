"""The table shared out by rows: entity ``id`` is held by process ``id mod size``.

A step fetches the rows that its batch needs from those who hold them; the gradients of rows are
summed, and rows updated with their optimizer's state, where they are held.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kgfast.datasets import Dataset
from kgfast.datasets.base import SPLITS
from kgfast.eval.meeting import announced
from kgfast.eval.ranks import Ranks
from kgfast.graph import KnownTriples
from kgfast.losses.sampled import distinct_ids
from kgfast.models import Model
from kgfast.models.fresh import Fresh
from kgfast.tables import Shard
from kgfast.training.checkpoint import State
from kgfast.training.config import Config
from kgfast.training.leaves import Leaves, scores_rows
from kgfast.training.negatives import Batch
from kgfast.training.parallel.crew import Crew
from kgfast.training.parallel.placement import RankResult
from kgfast.training.parallel.replicated import Replicated, SharedLeaves
from kgfast.training.row_gradients import RowGradients
from kgfast.training.run_folder import RunFolder
from kgfast.training.shard_files import Kind, ShardFiles, names_of_rows


class Sharded(Replicated):
    """Several processes, of which each holds the rows of entities ``rank, rank + size, ...``.

    Parameters
    ----------
    crew : Crew
    """

    def __init__(self, crew: Crew) -> None:
        super().__init__(crew)
        self.fresh = Fresh(first=crew.rank, step=crew.size)
        self._total = 0
        self._known: KnownTriples | None = None  # by the places where shards are ranked

    def check(self, config: Config, dataset: Dataset, device: torch.device) -> None:
        """As :meth:`Placement.check`."""
        super().check(config, dataset, device)
        self._total = dataset.num_entities

    def entity_id(self, row: int) -> int:
        """As :meth:`Placement.entity_id`."""
        return row * self.size + self.rank

    def num_held(self, num_entities: int) -> int:
        """As :meth:`Placement.num_held`."""
        return len(range(self.rank, num_entities, self.size))

    def leaves(self, model: Model) -> Leaves:
        """As :meth:`Placement.leaves`."""
        return FetchedLeaves(model, self._crew)

    def merged(self, parts: Sequence[RowGradients]) -> list[RowGradients]:
        """As :meth:`Placement.merged`: the rows that this process sums are those that it holds."""
        return self._merged(parts)

    def gathered(self, parts: Sequence[RowGradients]) -> Sequence[RowGradients]:
        """As :meth:`Placement.gathered`, likewise."""
        return parts

    def wholes(self, parts: Sequence[RowGradients]) -> list[Tensor]:
        """As :meth:`Placement.wholes`."""
        found = []
        for part in parts:
            ids, rows = self._crew.gather_rows(part.ids * self.size + self.rank, part.rows)
            found.append(rows[ids.argsort()])
        return found

    def norm(self, gradients: Sequence[Tensor], of_table: Sequence[bool]) -> float:
        """As :meth:`Placement.norm`."""

        def square(*, table: bool) -> Tensor:
            pairs = zip(gradients, of_table, strict=True)
            norm = nn.utils.get_total_norm([it for it, is_own in pairs if is_own == table])
            return norm.double().cpu().square().reshape(1)

        return float((self._crew.gather(square(table=True)).sum() + square(table=False)).sqrt())

    @announced
    def ranks(
        self, model: Model, dataset: Dataset, split: str, config: Config, most: int | None = None
    ) -> RankResult:
        """As :meth:`Placement.ranks`, of the shards where they are.

        Ranking takes ranges of rows. So entities are numbered anew for it, those of process 0
        first: no count depends on that.
        """
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
        """The place of the first row of each process."""
        held = [len(range(rank, self._total, self.size)) for rank in range(self.size)]
        return torch.tensor([0, *held], dtype=torch.int64, device="cpu").cumsum(0)

    def _placed(self, hrt: Tensor) -> Tensor:
        """Triples with entities by their places."""
        placed = hrt.cpu().clone()
        for column in (0, 2):
            ids = placed[:, column]
            placed[:, column] = self._starts()[ids % self.size] + ids // self.size
        return placed

    def head(self, folder: RunFolder, kind: Kind, state: State) -> State:
        """As :meth:`Placement.head`: the rows go into files of their own, one of each process."""
        tensors, meta = state
        names, step = names_of_rows(tensors), int(meta["step"])
        shards = ShardFiles(kind=kind, step=step, size=self.size, total=self._total, names=names)
        own = {name: tensors[name] for name in names}
        self.together(lambda: shards.save_rows(folder.path, self.rank, own))
        others = {name: tensor for name, tensor in tensors.items() if name not in own}
        return others, meta | {"shards": shards.model_dump()}


class FetchedLeaves(SharedLeaves):
    """The leaves of one step of a model of the rows that were fetched for it.

    Rows that this process holds stand first: those whose gradients it sums.
    """

    def __init__(self, model: Model, crew: Crew) -> None:
        super().__init__(model, crew)
        self._fetched: Tensor | None = None  # ids

    def among(self, batch: Batch, negatives: Tensor) -> tuple[Batch, Tensor]:
        """As :meth:`Leaves.among`: fetch the rows, and number them."""
        assert batch.targets is not None
        ids, places = distinct_ids(batch.anchors, batch.targets, negatives)
        is_held = ids % self.crew.size == self.crew.rank
        is_read = torch.ones_like(is_held)
        dims = getattr(self.model, "dims", None)
        if negatives.ndim > 1 and scores_rows(self.model, batch.side, dims):
            own = self.crew.span(len(negatives))  # whose negatives alone are scored here
            is_read = is_held.index_fill(0, torch.cat([*places[:2], places[2][own].flatten()]), 1)
        first, then = is_held.nonzero()[:, 0], (is_read & ~is_held).nonzero()[:, 0]
        order = torch.cat([first, then])
        numbers = torch.full_like(ids, len(order))  # of the row that nobody reads
        numbers[order] = torch.arange(len(order), dtype=torch.int64, device=ids.device)
        anchors, targets, negatives = (numbers[place] for place in places)
        self._fetched, self.own = ids[order], slice(0, len(first))
        self.model = self.model.with_entity(self._fetch(self._fetched))
        return batch.renamed(anchors, targets), negatives

    def _fetch(self, ids: Tensor) -> Tensor:
        """Rows of distinct ids, from whoever holds them, and one of zeros."""
        crew, table = self.crew, self.model.entity.detach()
        order = (ids % crew.size).argsort(stable=True)
        counts = _per_owner(ids, crew.size)
        asked = crew.counts_of(counts)
        wanted = crew.exchange(ids[order], counts, asked)
        rows = crew.exchange(table.index_select(0, wanted // crew.size), asked, counts)
        return rows.new_zeros(len(ids) + 1, rows.shape[1]).index_copy_(0, order, rows)

    def gradients(self) -> list[RowGradients]:
        """As :meth:`Leaves.gradients`, by the places of the rows that are held."""
        assert self._fetched is not None
        held = self._fetched // self.crew.size
        return [
            RowGradients(held.index_select(0, part.ids), part.rows, part.distinct)
            for part in super().gradients()
        ]


def _per_owner(ids: Tensor, size: int) -> list[int]:
    """How many of the ids each process holds."""
    counts: list[int] = (ids % size).bincount(minlength=size).tolist()
    return counts


def _renamed(ranks: Ranks, hrt: Tensor, dataset: Dataset) -> Ranks:
    """The same counts, of triples by their own ids."""

    def counts(of: Ranks, raw: Ranks | None) -> Ranks:
        return Ranks(
            of.greater,
            of.equal,
            of.num_candidates,
            of.sides,
            hrt.cpu(),
            raw=raw,
            known=dataset.known(),
            vocabularies=(dataset.entities, dataset.relations),
        )

    return counts(ranks, counts(ranks.raw, None))
