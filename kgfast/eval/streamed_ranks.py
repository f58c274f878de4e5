"""The counts of rank() where entities are a table in files."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.candidate_ids import ListedCandidates, pool_sizes, runs_of
from kgfast.eval.partial import Fingerprint, Partial
from kgfast.eval.side_counts import (
    KINDS,
    Crops,
    Plan,
    SideCounts,
    check_finite_queries,
    groups,
    roles_of,
)
from kgfast.eval.streaming import (
    Cut,
    Pool,
    among,
    checked_candidates,
    few_rows,
    has_any,
    in_block,
    local_model,
    only_in_block,
    raise_named,
    sample_of,
    state_of,
    swept,
)
from kgfast.graph import TypeConstraints
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.operands import Counts, Known, Lists, Operands
from kgfast.models.base import Side, queries_at
from kgfast.ops import run
from kgfast.ops.checks import check_queries
from kgfast.tables import Rows
from kgfast.tables.prefetch import Block

_PROBES = 64  # rows and queries that stand for all in a fingerprint
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Part:
    """Triples of one side that share their candidates, and the crops that share a sweep."""

    group: int  # of crops
    side: Side
    column: int
    rows: Tensor  # of the triples
    ids: Tensor | None = None  # ascending: only these are candidates


class Ask:
    """A part with all that a block needs, and what was counted so far."""

    def __init__(self, stream: "StreamedRanks", part: Part) -> None:
        self.part, plan = part, stream.plan
        self.pool = stream.pool(part.group, part.side)
        anchors, relations, self.targets = roles_of(plan.hrt[part.rows].T.contiguous(), part.side)
        local = local_model(plan.model, stream.table, anchors)
        self.queries = queries_at(local, anchors, relations, part.side, self.pool.dim)
        self.known = stream.known_answers(part)
        sizes = pool_sizes(self.known, self.targets, len(stream.table), part.ids, None)
        crops = len(stream.crops[part.group])
        self.sizes = torch.stack(sizes)
        self.counts = torch.zeros((4, crops, len(part.rows)), dtype=torch.int64, device=_CPU)

    def count(self, plan: Plan, block: Block, before: Tensor) -> None:
        """Add the counts of a block, behind the rows of the targets ``before [F]``."""
        whole = self.pool.at(block, before, allows_nan=plan.nan_worst)
        prepared = only_in_block(whole, self.part.ids, block)
        if prepared is None:
            return
        inside = (self.targets >= block.start) & (self.targets < block.stop)
        here = self.targets - block.start + block.first
        places = torch.where(inside, here, torch.searchsorted(before, self.targets))
        check_queries(self.queries, prepared)
        checks = run.checks_for(_CPU, allows_nan=plan.nan_worst)
        dims = None if self.pool.dims is None else tuple(self.pool.dims)
        operands = Operands(self.queries, prepared, dims)
        try:
            found = run.rank_counts(operands, places, in_block(self.known, block), checks)
        except NonFiniteError:
            check_finite_queries(self.queries, plan.hrt, self.part.rows, self.part.side)
            raise
        for sums, values in zip(self.counts, found, strict=True):
            sums += values.view(sums.shape)


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
    partial : path or None
        Where what was found is kept.
    """

    def __init__(
        self, plan: Plan, table: Rows, crops: list[Crops], limit: int, partial: Any
    ) -> None:
        self.plan, self.table, self.crops = plan, table, crops
        self._pools: dict[tuple[int, Side], Pool] = {}
        self.cut = Cut.of(table, limit, self._row_bytes(), self._query_bytes())
        self.partial = None
        if partial is not None:
            self.partial = Partial(partial, self._fingerprint(), self.cut.per_pass)
            self.cut = replace(self.cut, per_pass=self.partial.per_pass)

    def count(self, advance: Any) -> list[Tensor]:
        """The counts of each group of crops, int64 ``[6, C, T, S]``."""
        plan = self.plan
        results = [
            torch.empty(
                (KINDS, len(crops), len(plan.hrt), len(plan.sides)), dtype=torch.int64, device=_CPU
            )
            for crops in self.crops
        ]
        for column, side in enumerate(plan.sides):
            if side == "relation" or isinstance(plan.candidates[side], ListedCandidates):
                for group, crops in enumerate(self.crops):
                    self._count_gathered(group, crops, side, results[group][..., column])
        for number, parts in enumerate(self.passes()):
            for ask in self._pass(number, parts, advance):
                part = ask.part
                results[part.group][:4, :, part.rows, part.column] = ask.counts
                results[part.group][4:, :, part.rows, part.column] = ask.sizes[:, None]
        return results

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
            self._pools[group, side] = Pool(self.plan.model, side, dim, dims)
        return self._pools[group, side]

    def known_answers(self, part: Part) -> Known:
        """The known answers of a part, CSR on the host."""
        known = self.plan.known
        if known is None:
            zeros = torch.zeros(len(part.rows) + 1, dtype=torch.int64, device=_CPU)
            return Known(zeros, zeros[:0])
        hrt = self.plan.hrt[part.rows].T.contiguous().to(known.device)
        anchors, relations, _ = roles_of(hrt, part.side)
        indptr, indices = known.exclude(anchors, relations, part.side)
        return Known(indptr.cpu(), indices.cpu())

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

    def _pass(self, number: int, parts: list[Part], advance: Any) -> list[Ask]:
        """Count some parts in one pass over the file."""
        asks = [Ask(self, part) for part in parts]
        state = [ask.counts for ask in asks]
        count, start = len(self.table), 0
        if self.partial is not None:
            start = self.partial.load(number, state)
            advance(start, 0)
        before = torch.cat([ask.targets for ask in asks]).unique()

        def needed(first: int, last: int) -> bool:
            return any(has_any(ask.part.ids, first, last) for ask in asks)

        done = start
        with swept(self.table, self.cut, start, before, needed) as blocks:
            for block in blocks:
                try:
                    for ask in asks:
                        ask.count(self.plan, block, before)
                except NonFiniteError as error:
                    raise_named(error, self.table, block, before)
                    raise
                advance(block.stop - done, sum(len(ask.targets) for ask in asks))
                done = block.stop
                if self.partial is not None and self.cut.is_end(done, block.start, count):
                    self.partial.save(number, state, done)
        if self.partial is not None and done < count:
            self.partial.save(number, state, count)
        advance(count - done, 0)
        return asks

    def _count_gathered(self, group: int, crops: Crops, side: Side, counts: Tensor) -> None:
        """A side whose candidates are relations, or few for each query: no pass over the file."""
        plan = self.plan
        if side == "relation":
            local = local_model(plan.model, self.table, plan.hrt[:, ::2].flatten())
            one_side = SideCounts(replace(plan, model=local), side, crops)
            for batches in groups(plan, side):
                counts[:, :, torch.cat(batches)] = one_side.count(batches, lambda done: None)
            return
        given = plan.candidates[side]
        assert isinstance(given, ListedCandidates)
        for batches in groups(plan, side):
            for rows in batches:
                ask = Ask(self, Part(group, side, 0, rows))
                lists = given.lists(int(rows[0]), int(rows[-1]) + 1, len(self.table), _CPU)
                found = self._list_counts(ask, lists)
                counts[:4, :, rows] = torch.stack(
                    [kind.view(counts[0][:, rows].shape) for kind in found]
                )
                sizes = pool_sizes(ask.known, ask.targets, len(self.table), None, lists)
                counts[4:, :, rows] = torch.stack(sizes)[:, None]

    def _list_counts(self, ask: Ask, lists: Lists) -> Counts:
        """The counts of queries with candidates of their own, of the rows that these name."""
        ids = torch.cat([lists.indices, ask.targets]).unique()
        allows_nan = self.plan.nan_worst
        block, prepared = few_rows(ask.pool, self.table, ids, allows_nan=allows_nan)
        known = among(ask.known, ids)
        own = Lists(lists.indptr, torch.searchsorted(ids, lists.indices))
        check_queries(ask.queries, prepared)
        dims = None if ask.pool.dims is None else tuple(ask.pool.dims)
        checks = run.checks_for(_CPU, allows_nan=self.plan.nan_worst)
        places = torch.searchsorted(ids, ask.targets)
        try:
            return run.rank_counts(
                Operands(ask.queries, prepared, dims), places, known, checks, own
            )
        except NonFiniteError as error:
            check_finite_queries(ask.queries, self.plan.hrt, ask.part.rows, ask.part.side)
            raise_named(error, self.table, block, ids)
            raise

    def _row_bytes(self) -> int:
        """What a row of a block takes besides the row itself: its factor and its id."""
        return 8 + 8 * int(self.plan.model.dim)

    def _query_bytes(self) -> int:
        """What a query takes: itself, its counts and its known answers, on average."""
        plan, width = self.plan, self.table.shape[1]
        answers = 0
        for side in plan.sides:
            if plan.known is not None and len(plan.hrt) and side != "relation":
                known = plan.known
                anchors, relations, _ = roles_of(plan.hrt.T.contiguous().to(known.device), side)
                answers = max(answers, int(known.counts(anchors, relations, side).double().mean()))
        crops = max(len(crops) for crops in self.crops)
        return 3 * 8 * width + 96 * crops + 32 * (answers + 1) + 64

    def _fingerprint(self) -> str:
        """Of everything that the counts depend on; see :class:`Partial`."""
        plan, table = self.plan, self.table
        found = Fingerprint()
        found.add("rank", type(plan.model).__name__, plan.model.score, table.shape, table.dtype)
        found.add(table.facts, plan.sides, self.crops, plan.nan_worst, plan.hrt)
        found.add(sample_of(table))
        found.add(*state_of(plan.model))
        for part in self._parts():
            found.add(part.group, part.column, part.rows, part.ids, *self.known_answers(part))
            few = replace(part, rows=part.rows[:_PROBES])
            found.add(Ask(self, few).queries)
        return found.text()
