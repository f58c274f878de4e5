"""The counts of rank() where entities are a table in files."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.candidate_ids import ListedCandidates, pool_sizes, runs_of
from kgfast.eval.partial import Partial
from kgfast.eval.passes import (
    Ask,
    Cut,
    among,
    fingerprint_of,
    keeping,
    mean_answers,
    pieces_of,
    sweep,
)
from kgfast.eval.side_counts import (
    KINDS,
    Crops,
    Plan,
    SideCounts,
    check_finite_queries,
    groups,
    roles_of,
)
from kgfast.eval.streaming import CPU, Pool, checked_candidates, local_model
from kgfast.graph import TypeConstraints
from kgfast.kernels.operands import Known, Lists, Operands
from kgfast.models.base import Side
from kgfast.ops import run
from kgfast.tables import Rows
from kgfast.tables.prefetch import Block

_SCORED_BYTES = 8 << 20  # of targets that are scored at once, as float64


@dataclass(frozen=True)
class Part:
    """Triples of one side that share their candidates, and the crops that share a sweep."""

    group: int  # of crops
    side: Side
    column: int
    rows: Tensor  # of the triples
    ids: Tensor | None = None  # ascending: only these are candidates


class Counted(Ask):
    """A part with what was counted so far: ``[4, C, B]``."""

    def __init__(self, stream: "StreamedRanks", part: Part) -> None:
        self.part, self.plan = part, stream.plan
        hrt = self.plan.hrt[part.rows].T.contiguous()
        anchors, relations, self.targets = roles_of(hrt, part.side)
        pool = stream.pool(part.group, part.side)
        super().__init__(pool, anchors, relations, self.plan.known, part.ids)
        shape = (4, len(stream.crops[part.group]), len(part.rows))
        self.counts = torch.zeros(shape, dtype=torch.int64, device=CPU)
        self.state = [self.counts]

    @cached_property
    def target_scores(self) -> Tensor:
        """The canonical scores of the targets, float64 ``[C, B]``: each of its own row alone."""
        step = max(1, _SCORED_BYTES // (8 * self.pool.table.shape[1]))
        ends = range(0, len(self.targets), step)
        return torch.cat([self._scored(slice(first, first + step)) for first in ends], 1)

    def _scored(self, some: slice) -> Tensor:
        ids, places = self.targets[some].unique(return_inverse=True)
        with self.named(lambda row: ids[row]):
            operands = self.operands(self.pool.of(ids)).of_queries(some)
            return run.target_scores(operands, places.to(self.pool.device), self.checks())

    def add(self, block: Block, operands: Operands, known: Known) -> None:
        """Add the counts of a block."""
        inside = (self.targets >= block.start) & (self.targets < block.stop)
        places = torch.where(inside, self.targets - block.start, -1).to(self.pool.device)
        found = run.rank_counts(
            operands, places, known, self.checks(), target_scores=self.target_scores
        )
        for sums, values in zip(self.counts, found, strict=True):
            sums += values.view(sums.shape).cpu()

    def add_lists(self, lists: Lists, cut: Cut, advance: Any) -> None:
        """Add the counts of queries with candidates of their own, in the order of the table."""
        device, done = self.pool.device, 0
        targets, own = self.targets.unique(return_inverse=True)
        held = targets, self.pool.table.rows(targets)
        for ids, part in pieces_of(lists, cut.block_rows):
            inside, there = torch.isin(self.targets, ids), torch.searchsorted(ids, self.targets)
            places = torch.where(inside, there, len(ids) + own).to(device)
            every = torch.cat([ids, targets])
            with self.named(every.__getitem__):
                operands = self.operands(self.pool.of(ids, held))
                known = self.here(among(self.known, ids))
                part = Lists(*(it.to(device) for it in part))
                found = run.rank_counts(operands, places, known, self.checks(), part)
            for sums, values in zip(self.counts, found, strict=True):
                sums += values.view(sums.shape).cpu()
            stop = int(ids[-1]) + 1 if len(ids) else 0
            advance(stop - done, len(self))
            done = stop
        advance(len(self.pool.table) - done, 0)

    def sizes(self, lists: Lists | None = None) -> Tensor:
        """Known answers among the candidates, and all candidates of each query, ``[2, B]``."""
        count = len(self.pool.table)
        return torch.stack(pool_sizes(self.known, self.targets, count, self.ids, lists))

    def check_finite_queries(self) -> None:
        """Name the triple."""
        check_finite_queries(self.queries, self.plan.hrt, self.part.rows, self.part.side)


class StreamedRanks:
    """All counts of one call.

    Parameters
    ----------
    plan : Plan
    table : Rows
        The entities.
    crops : list of Crops
        Those that share a sweep together.
    limit : int
        Bytes of memory.
    """

    partial: Partial | None = None

    def __init__(self, plan: Plan, table: Rows, crops: list[Crops], limit: int) -> None:
        self.plan, self.table, self.crops = plan, table, crops
        self._pools: dict[tuple[int, Side], Pool] = {}
        self.cut = Cut.of(table, limit, self._row_bytes(), self._query_bytes())

    @contextmanager
    def keeping(self, folder: Any) -> Iterator[None]:
        """Keep what is counted in a folder, if any, and go on from there."""
        kept = keeping(folder, self.table, self.cut, self._fingerprint)
        with kept as (self.partial, self.cut):
            yield

    def count(self, advance: Any) -> list[Tensor]:
        """The counts of each group of crops, int64 ``[6, C, T, S]``."""
        plan = self.plan
        results = [
            torch.empty(
                (KINDS, len(crops), len(plan.hrt), len(plan.sides)), dtype=torch.int64, device=CPU
            )
            for crops in self.crops
        ]
        for column, side in enumerate(plan.sides):
            if side == "relation" or isinstance(plan.candidates[side], ListedCandidates):
                for group, crops in enumerate(self.crops):
                    self._count_gathered(group, crops, side, results[group][..., column], advance)
        for number, parts in enumerate(self.passes()):
            asks = [Counted(self, part) for part in parts]
            kept = None if self.partial is None else (self.partial, number)
            sweep(self.table, self.cut, asks, kept, advance)
            for ask in asks:
                part = ask.part
                results[part.group][:4, :, part.rows, part.column] = ask.counts
                results[part.group][4:, :, part.rows, part.column] = ask.sizes()[:, None]
        return results

    @property
    def num_rows(self) -> int:
        """Rows of all passes over the table, those of which only some are read included."""
        listed = [it for it in self.plan.candidates.values() if isinstance(it, ListedCandidates)]
        gathered = len(self.crops) * sum(len(self._listed(given)) for given in listed)
        return (len(self.passes()) + gathered) * len(self.table)

    def passes(self) -> list[list[Part]]:
        """The parts that each pass over the file serves."""
        found: list[list[Part]] = [[]]
        room = self.cut.per_pass
        for part in self._parts():
            rows = part.rows
            while len(rows):
                taken, rows = rows[:room], rows[room:]
                found[-1].append(replace(part, rows=taken))
                room -= len(taken)
                if not room:
                    found.append([])
                    room = self.cut.per_pass
        return [parts for parts in found if parts]

    def pool(self, group: int, side: Side) -> Pool:
        """The candidates of a side, for the crops that share a sweep."""
        if (group, side) not in self._pools:
            crops = self.crops[group]
            dims = [width for width in crops.values() if width is not None] or None
            dim = next(iter(crops)) if len(crops) == 1 else None
            self._pools[group, side] = Pool(
                self.plan.model, self.table, side, dim, dims, allows_nan=self.plan.nan_worst
            )
        return self._pools[group, side]

    def _parts(self) -> Iterator[Part]:
        """Every triple of every side of entities, equal queries beside each other."""
        plan = self.plan
        for group in range(len(self.crops)):
            for column, side in enumerate(plan.sides):
                given = plan.candidates[side]
                if side == "relation" or isinstance(given, ListedCandidates):
                    continue
                batches = [rows for group_ in groups(plan, side) for rows in group_]
                if not batches:
                    continue
                rows = torch.cat(batches)
                if not isinstance(given, TypeConstraints):
                    ids = None if given is None else checked_candidates(given, len(self.table))
                    yield Part(group, side, column, rows, ids)
                    continue
                for span, relation in runs_of(plan.hrt[rows, 1]):
                    ids = given.candidates(relation, side).cpu()
                    yield Part(group, side, column, rows[span], ids)

    def _count_gathered(
        self, group: int, crops: Crops, side: Side, counts: Tensor, advance: Any
    ) -> None:
        """A side whose candidates are relations, or few of each query: only these are read."""
        plan = self.plan
        if side == "relation":
            local = local_model(plan.model, self.table, plan.hrt[:, ::2].flatten())
            one_side = SideCounts(replace(plan, model=local), side, crops)
            for batches in groups(plan, side):
                counts[:, :, torch.cat(batches)] = one_side.count(batches, lambda done: None)
            return
        given = plan.candidates[side]
        assert isinstance(given, ListedCandidates)
        for rows in self._listed(given):
            ask = Counted(self, Part(group, side, 0, rows))
            lists = given.lists(int(rows[0]), int(rows[-1]) + 1, len(self.table), CPU)
            ask.add_lists(lists, self.cut, advance)
            counts[:4, :, rows] = ask.counts
            counts[4:, :, rows] = ask.sizes(lists)[:, None]

    def _listed(self, given: ListedCandidates) -> list[Tensor]:
        """Triples whose candidates, which each names, are read together; as they are given."""
        every = torch.arange(len(self.plan.hrt), dtype=torch.int64, device=CPU)
        size = min(self.cut.per_pass, given.batch_size(self.cut.pairs))
        return [rows for rows in every.split(size) if len(rows)]

    def _row_bytes(self) -> int:
        """What a row of a block takes besides the row itself: its factor and its id."""
        return 8 + 8 * int(self.plan.model.dim)

    def _query_bytes(self) -> int:
        """What a query takes: itself, its counts and its known answers, on average."""
        plan, crops = self.plan, max(len(crops) for crops in self.crops)
        answers = [
            mean_answers(plan.known, roles_of(plan.hrt.T, side)[:2], side)
            for side in plan.sides
            if side != "relation"
        ]
        own = 3 * 8 * self.table.shape[1] + 104 * crops + 64
        return own + 32 * (max(answers, default=0) + 1)

    def _fingerprint(self) -> str:
        """Hash all but the table that the counts depend on."""
        plan = self.plan
        checksum = None if plan.known is None else plan.known.checksum
        asked = plan.sides, self.crops, plan.nan_worst, plan.hrt, checksum
        found = fingerprint_of("rank", plan.model, self.table, *asked)
        for part in self._parts():
            pool = self.pool(part.group, part.side)
            anchors, relations, _ = roles_of(plan.hrt[part.rows].T, part.side)
            found.add(part.group, part.column, part.rows, part.ids)
            found.add_each(pool.queries_in_parts(anchors, relations))
        for pool in self._pools.values():
            found.add(*pool.constants())
        return found.text()
