"""The passes of a ranking: which triples are counted together, and the counts of all of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.accumulators import KINDS, CountsSoFar
from kgfast.eval.candidate_ids import (
    Given,
    ListedCandidates,
    checked_candidates,
    runs_of,
)
from kgfast.eval.exchange import NOBODY, Exchange
from kgfast.eval.functions import Scored
from kgfast.eval.index import Index
from kgfast.eval.one_pass import (
    Cut,
    KeptPass,
    add_queries,
    fingerprint_of,
    keeping,
    run_pass,
)
from kgfast.eval.queries import (
    CPU,
    Queries,
    known_answers,
    mean_answers,
    moved,
    roles_of,
    shared,
)
from kgfast.eval.rows import local_model
from kgfast.eval.sources import CandidateSource, Crops, InMemory, InRows
from kgfast.graph import KnownTriples, TypeConstraints
from kgfast.graph.named import Names
from kgfast.models.base import Side
from kgfast.models.relations import blocks_at
from kgfast.tables import Rows

_GROUP = 1 << 17  # triples whose ids and counts lie on the device at a time: 8 MiB


@dataclass(frozen=True)
class Ranking:
    """The checked arguments of one ranking."""

    model: Any
    hrt: Tensor  # on the host
    known: KnownTriples | None
    sides: tuple[Side, ...]
    candidates: dict[Side, Given]
    batch_size: int
    allows_nan: bool
    names: Names
    index: Index | None = None

    def room(self, num_crops: int) -> Tensor:
        """Return room for the counts of all triples, int64 ``[6, C, T, S]``."""
        shape = (KINDS, num_crops, len(self.hrt), len(self.sides))
        return torch.empty(shape, dtype=torch.int64, device=CPU)

    def ordered(self, side: Side) -> Tensor:
        """Return the rows of the triples so that equal queries stand together.

        Queries with candidates of their own stand as they are given: their lists may lie in a file.
        """
        if isinstance(self.candidates[side], ListedCandidates):
            return torch.arange(len(self.hrt), dtype=torch.int64, device=CPU)
        anchors, others, _ = roles_of(self.hrt.T, side)
        keys: Tensor = others * int(self.model.num_entities) + anchors
        return keys.argsort(stable=True)

    def batches(self, side: Side, size: int) -> list[Tensor]:
        """Return the ordered rows in batches."""
        given, rows = self.candidates[side], self.ordered(side)
        if isinstance(given, ListedCandidates):
            size = min(size, given.batch_size())
        return list(rows.split(size)) if len(rows) else []

    def queries(self, side: Side, rows: Tensor, hrt: Tensor, **others: Any) -> Queries:
        """Return the queries of some triples, which are also given as ``hrt [3, B]``."""
        anchors, relations, targets = roles_of(hrt, side)
        return Queries(side, rows, anchors, relations, self.words, targets=targets, **others)

    def words(self, queries: Queries, place: int) -> str:
        """Name the triple of a query that is not finite."""
        row = int(queries.rows[place])
        return (
            f"triples[{row}] = {tuple(self.hrt[row].tolist())}: its {queries.side} query holds a "
            f"NaN or an infinity, from the embeddings of its entity or relation or from what "
            f'filters them (nan="worst" ranks it last)'
        )


def source_in_memory(
    model: Any,
    side: Side,
    crops: Crops,
    ids: Tensor | None = None,
    *,
    allows_nan: bool = False,
    index: Index | None = None,
) -> InMemory | Scored:
    """Return the candidates of a side of a model that is no table in files."""
    scorers = [it for it in (blocks_at(model, side, dim) for dim in crops) if it is not None]
    if scorers:
        return Scored(scorers, side, ids, allows_nan=allows_nan)
    return InMemory(model, side, crops, ids, allows_nan=allows_nan, index=index)


def count_side(
    plan: Ranking,
    source: CandidateSource,
    counts: Tensor,
    advance: Any,
    exchange: Exchange = NOBODY,
) -> None:
    """Fill in the counts of one side, ``[6, C, T]``: a pass for each batch of its queries.

    Of a source in memory the host waits once a batch, in the operator.
    """
    size = min(plan.batch_size, source.batch_size)
    if exchange.num_shares > 1:
        size = max(1, min(size, -(-len(plan.hrt) // exchange.num_shares)))
    batches = exchange.share_of(plan.batches(source.side, size))
    step = max(1, _GROUP // size)
    for first in range(0, len(batches), step):
        group = batches[first : first + step]
        counts[:, :, torch.cat(group)] = _count_group(plan, source, group, advance, exchange)


def count_candidates(plan: Ranking, source: CandidateSource, counts: Tensor) -> None:
    """Fill in how many candidates all queries of a side have, ``[T]``: of other shares, too."""
    for rows in plan.batches(source.side, plan.batch_size):
        queries = plan.queries(source.side, rows, plan.hrt[rows].T.contiguous())
        queries.known = known_answers(None, (queries.anchors, queries.others), source.side, CPU)
        for part, own in shared(queries, plan.candidates[source.side], source):
            counts[rows[part]] = own.sizes(source.num_rows, source.sorted_ids)[1]


def _count_group(
    plan: Ranking, source: CandidateSource, batches: list[Tensor], advance: Any, exchange: Exchange
) -> Tensor:
    """Return the counts of every triple of some batches, ``[6, C, G]`` on the host."""
    side, home, known = source.side, source.home, plan.known
    hrt = plan.hrt[torch.cat(batches)].T.contiguous()  # [3, G]
    sizes = [len(batch) for batch in batches]
    shape = (KINDS, source.num_crops, hrt.shape[1])
    counts = torch.zeros(shape, dtype=torch.int64, device=home)
    columns = zip(
        batches,
        hrt.split(sizes, 1),
        moved(hrt, home).split(sizes, 1),
        _answers_asked(plan, source, hrt, sizes),
        counts.split(sizes, 2),
        strict=True,
    )
    for rows, on_host, here, options, room in columns:
        asked = roles_of(on_host if known is None or known.device.type == "cpu" else here, side)
        queries = plan.queries(side, rows, here)
        queries.known = known_answers(known, asked[:2], side, home, **options)
        parts = [
            CountsSoFar(own, source, room if own is queries else room[:, :, part])
            for part, own in shared(queries, plan.candidates[side], source)
        ]
        for together in source.passes(parts):
            run_pass(together, exchange)
        advance(len(rows) * source.num_crops)
    return counts.cpu()


def _answers_asked(
    plan: Ranking, source: CandidateSource, hrt: Tensor, sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Return how the known answers of each batch are asked for.

    An index on a device is told how many there are, so that the host does not wait for each batch.
    """
    known = plan.known
    if known is None or known.device.type == "cpu" or source.span is not None:
        return [{} if source.span is None else {"within": source.span}] * len(sizes)
    anchors, others, _ = roles_of(moved(hrt, known.device), source.side)
    counts = known.counts(anchors, others, source.side)
    totals = torch.stack([part.sum() for part in counts.split(list(sizes))]).cpu().tolist()
    return [{"num_answers": total} for total in totals]


@dataclass(frozen=True)
class Part:
    """Triples of one side that share their candidates, and the crops that share a sweep."""

    group: int  # of crops
    column: int  # of the side
    rows: Tensor  # of the triples
    ids: Tensor | None = None  # ascending: only these are candidates


class FileCounts:
    """All counts of a ranking whose entities are a table in files.

    Parameters
    ----------
    plan : Ranking
    table : Rows
    crops : list of Crops
        Those that share a sweep together.
    limit : int
        Bytes of memory.
    """

    def __init__(self, plan: Ranking, table: Rows, crops: list[Crops], limit: int) -> None:
        self.plan, self.table, self.crops = plan, table, crops
        self._use(Cut.of(table, limit, int(plan.model.dim), self._query_bytes()))

    def count(self, folder: Any, bar: Any) -> list[Tensor]:
        """Return the counts of each group of crops, int64 ``[6, C, T, S]``.

        ``folder``: where what passes count is kept, if anywhere; ``bar``: makes a progress bar.
        """
        counts = [self.plan.room(len(crops)) for crops in self.crops]
        with keeping(folder, self.table, self.cut, self._fingerprint) as (kept, cut):
            self._use(cut)
            passes = self._passes()
            with bar(len(passes) * len(self.table)) as advance:
                self._count_apart(counts)
                for number, parts in enumerate(passes):
                    own = None if kept is None else KeptPass(kept, number, len(self.table))
                    found = [self._counts_of(part) for part in parts]
                    run_pass(found, kept=own, advance=advance)
                    for part, it in zip(parts, found, strict=True):
                        counts[part.group][:, :, part.rows, part.column] = it.counts
        return counts

    def _use(self, cut: Cut) -> None:
        """Read the table by a cut."""
        self.cut, reader = cut, cut.reader(self.table)
        self._sources = {
            (group, column): InRows(
                self.plan.model, side, crops, reader, allows_nan=self.plan.allows_nan
            )
            for group, crops in enumerate(self.crops)
            for column, side in enumerate(self.plan.sides)
            if side != "relation"
        }

    def _counts_of(self, part: Part) -> CountsSoFar:
        plan, source = self.plan, self._sources[part.group, part.column]
        queries = plan.queries(source.side, part.rows, plan.hrt[part.rows].T.contiguous())
        device = CPU if plan.known is None else plan.known.device
        asked = queries.anchors.to(device), queries.others.to(device)
        queries.ids, queries.known = part.ids, known_answers(plan.known, asked, source.side, CPU)
        return CountsSoFar(queries, source)

    def _count_apart(self, counts: list[Tensor]) -> None:
        """Count sides whose candidates are relations, or few of each query: only these are read."""
        plan = self.plan
        for group, crops in enumerate(self.crops):
            for column, side in enumerate(plan.sides):
                given, room = plan.candidates[side], counts[group][..., column]
                if side == "relation":
                    model = local_model(plan.model, self.table, plan.hrt[:, ::2].flatten())
                    own = source_in_memory(model, side, crops, allows_nan=plan.allows_nan)
                    count_side(replace(plan, model=model), own, room, _silent)
                elif isinstance(given, ListedCandidates):
                    source = self._sources[group, column]
                    source.batch_size = min(self.cut.per_pass, given.batch_size(self.cut.pairs))
                    every = replace(plan, batch_size=max(1, len(plan.hrt)))
                    count_side(every, source, room, _silent)

    def _passes(self) -> list[list[Part]]:
        """Return the parts that each pass over the file serves."""
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

    def _parts(self) -> Iterator[Part]:
        """Yield every triple of every side of entities, equal queries beside each other."""
        for group, column in self._sources:
            side = self.plan.sides[column]
            given, rows = self.plan.candidates[side], self.plan.ordered(side)
            if isinstance(given, ListedCandidates) or not len(rows):
                continue
            if not isinstance(given, TypeConstraints):
                ids = None if given is None else checked_candidates(given, len(self.table))
                yield Part(group, column, rows, ids)
                continue
            for span, relation in runs_of(self.plan.hrt[rows, 1]):
                yield Part(group, column, rows[span], given.candidates(relation, side).cpu())

    def _query_bytes(self) -> int:
        """Return what a query takes: itself, its counts and its known answers, on average."""
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
        asked = plan.sides, self.crops, plan.allows_nan, plan.hrt, checksum
        found = fingerprint_of("rank", plan.model, self.table, *asked)
        for part in self._parts():
            source = self._sources[part.group, part.column]
            anchors, others, _ = roles_of(plan.hrt[part.rows].T, source.side)
            found.add(part.group, part.column, part.rows, part.ids)
            add_queries(found, source, anchors, others)
        for source in self._sources.values():
            found.add(*source.constants())
        return found.text()


def _silent(*_: int) -> None:
    """Tell nobody."""
