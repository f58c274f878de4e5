"""The passes of a ranking: groups of triples that are counted together, and all counts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.accumulators import KINDS, CountsSoFar
from kgfast.eval.batches import check_known, check_names, checked_batch_size
from kgfast.eval.candidate_ids import (
    Allowed,
    Given,
    ListedCandidates,
    candidates_of_sides,
    checked_candidates,
)
from kgfast.eval.exchange import NOBODY, Exchange
from kgfast.eval.functions import Scored
from kgfast.eval.index import Index
from kgfast.eval.one_pass import Cut, FileCall, add_queries, run_pass
from kgfast.eval.partial import Partial
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
from kgfast.graph import as_triples_tensor, names_of, with_names
from kgfast.models.base import SIDES_AND_RELATIONS, Side
from kgfast.models.relations import blocks_at
from kgfast.storage import Fingerprint

_GROUP = 1 << 17  # triples with ids and counts on the device at a time: 8 MiB


class Ranking:
    """Checked arguments of one ranking.

    ``hrt`` has the triples, int64 ``[T, 3]`` on the host; ``candidates`` has the candidates of each
    side.
    """

    def __init__(
        self,
        model: Any,
        triples: Any,
        sides: Any,
        allowed: Allowed,
        batch_size: Any,
        nan: Any,
        vocabulary: Any = None,
    ) -> None:
        known, candidate_ids, _ = allowed
        check_known(known)
        triples, self.names = with_names(triples, vocabulary)
        check_names(names_of(vocabulary), model)
        _check_choices(sides, nan)
        self.model, self.known = model, known
        self.sides: tuple[Side, ...] = tuple(sides)
        self.allows_nan = nan == "worst"
        sizes = {"num_entities": model.num_entities, "num_relations": model.num_relations}
        self.hrt = as_triples_tensor(triples, **sizes).cpu()
        entities = tuple(side for side in self.sides if side != "relation")
        given = candidates_of_sides(candidate_ids, entities, len(self.hrt), model, self.names)
        self.candidates: dict[Side, Given] = {side: given.get(side) for side in self.sides}
        self.batch_size = checked_batch_size(batch_size, model)

    def room(self, num_crops: int) -> Tensor:
        """Return zeros for the counts of all triples, int64 ``[6, C, T, S]``."""
        shape = (KINDS, num_crops, len(self.hrt), len(self.sides))
        return torch.zeros(shape, dtype=torch.int64, device=CPU)

    def ordered(self, side: Side) -> Tensor:
        """Return rows of triples, equal queries together; with lists, in the order of the file."""
        if isinstance(self.candidates[side], ListedCandidates):
            return torch.arange(len(self.hrt), dtype=torch.int64, device=CPU)
        anchors, others, _ = roles_of(self.hrt.T, side)
        keys: Tensor = others * int(self.model.num_entities) + anchors
        return keys.argsort(stable=True)

    def share(self, exchange: Exchange, side: Side, size: int) -> list[Tensor]:
        """Return this share's batches of ordered rows; all shares have about equally many rows."""
        given, rows = self.candidates[side], self.ordered(side)
        if isinstance(given, ListedCandidates):
            size = min(size, given.batch_size())
        if exchange.num_shares > 1:
            size = max(1, min(size, -(-len(rows) // exchange.num_shares)))
        return exchange.share_of(list(rows.split(size)) if len(rows) else [])

    def queries(self, side: Side, rows: Tensor, hrt: Tensor) -> Queries:
        """Return the queries of the triples ``hrt [3, B]`` at ``rows``."""
        anchors, relations, targets = roles_of(hrt, side)
        return Queries(side, rows, anchors, relations, self.words, targets=targets)

    def words(self, queries: Queries, place: int) -> str:
        """Name the triple of a query that is not finite."""
        row = int(queries.rows[place])
        return (
            f"triples[{row}] = {tuple(self.hrt[row].tolist())}: the {queries.side} query holds a "
            "NaN or an infinity, from the embeddings of the entity or relation or from the "
            'filters on them (nan="worst" ranks it last)'
        )


def _check_choices(sides: Any, nan: Any) -> None:
    if isinstance(sides, str) or not sides or len(set(sides)) != len(sides):
        raise ValueError(
            f"sides must be distinct names of {SIDES_AND_RELATIONS}, in a tuple; got {sides!r}"
        )
    for side in sides:
        if side not in SIDES_AND_RELATIONS:
            raise ValueError(f"sides must be of 'head', 'relation' and 'tail'; got {side!r}")
    if nan not in ("error", "worst"):
        raise ValueError(f"nan must be 'error' or 'worst'; got {nan!r}")


def source_in_memory(
    model: Any,
    side: Side,
    crops: Crops,
    ids: Tensor | None = None,
    *,
    allows_nan: bool = False,
    index: Index | None = None,
) -> InMemory | Scored:
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
    kept: Partial | None = None,
) -> None:
    """Fill in the counts of one side, ``[6, C, T]``: one pass for each batch of queries.

    With a source in memory the host waits once per batch, in the operator.
    """
    if isinstance(plan.candidates[source.side], ListedCandidates):
        kept = None  # few rows are read, and nothing is saved
    size = min(plan.batch_size, source.batch_size)
    batches = plan.share(exchange, source.side, size)
    step = max(1, _GROUP // size)
    for first in range(0, len(batches), step):
        group = batches[first : first + step]
        found = _count_group(plan, source, group, advance, exchange, kept)
        counts[:, :, torch.cat(group)] = found


def count_relations(
    plan: Ranking,
    crops: Crops,
    counts: Tensor,
    advance: Any,
    model_of: Callable[[Tensor], Any],
    exchange: Exchange = NOBODY,
) -> None:
    """Fill in the counts of relations, ``[6, C, T]``, for a model with entities outside memory.

    ``model_of`` makes a model of the entities of a batch, which ranks the batch.
    """
    for rows in plan.share(exchange, "relation", plan.batch_size):
        # other processes may wait for this share
        asked = plan.hrt[rows] if len(rows) else plan.hrt[:1]
        model = model_of(asked[:, ::2].flatten())
        source = source_in_memory(model, "relation", crops, allows_nan=plan.allows_nan)
        for some in rows.split(max(1, min(len(rows), source.batch_size))):
            counts[:, :, some] = _count_group(plan, source, [some], advance)


def _count_group(
    plan: Ranking,
    source: CandidateSource,
    batches: list[Tensor],
    advance: Any,
    exchange: Exchange = NOBODY,
    kept: Partial | None = None,
) -> Tensor:
    """Return the counts of the triples of some batches, ``[6, C, G]`` on the host."""
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
            run_pass(together, exchange, kept)
        advance(len(rows) * source.num_crops)
    return counts.cpu()


def _answers_asked(
    plan: Ranking, source: CandidateSource, hrt: Tensor, sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the options of ``exclude`` for each batch.

    The number of known answers goes to the device, so that the host does not wait for each batch.
    """
    known = plan.known
    if known is None or known.device.type == "cpu" or source.span is not None:
        return [{} if source.span is None else {"within": source.span}] * len(sizes)
    anchors, others, _ = roles_of(moved(hrt, known.device), source.side)
    counts = known.counts(anchors, others, source.side)
    totals = torch.stack([part.sum() for part in counts.split(list(sizes))]).cpu().tolist()
    return [{"num_answers": total} for total in totals]


def count_file(plan: Ranking, call: FileCall, crops: list[Crops]) -> list[Tensor]:
    """Return the counts of each group of crops that share a sweep, int64 ``[6, C, T, S]``."""
    file = _File(plan, call, crops)
    with call.opened(file.query_bytes(), file.fingerprint) as (cut, kept):
        parts = file.parts(cut)
        total = -(-sum(len(queries) for *_, queries in parts) // cut.per_pass)
        with call.bar(total * len(call.table)) as advance:
            file.count_apart(cut)
            for together in _passes(parts, cut.per_pass):
                found = [file.counts_of(source, queries) for _, source, queries in together]
                run_pass(found, kept=kept, advance=advance)
                for (room, _, queries), it in zip(together, found, strict=True):
                    room[:, :, queries.rows] = it.counts
    return file.counts


# room for counts, [6, C, T], the source, and the queries that are counted
Part = tuple[Tensor, InRows, Queries]


def _passes(parts: Iterable[Part], size: int) -> Iterator[list[Part]]:
    """Cut parts into passes of ``size`` queries, each of one or more parts."""
    found: list[Part] = []
    left = size
    for room, source, queries in parts:
        while len(queries):
            found.append((room, source, queries.part(slice(0, left), queries.ids)))
            queries = queries.part(slice(left, None), queries.ids)
            left -= len(found[-1][2])
            if not left:
                yield found
                found, left = [], size
    if found:
        yield found


class _File:
    """A ranking of a table in files: one pass serves queries of several sides and crops."""

    def __init__(self, plan: Ranking, call: FileCall, crops: list[Crops]) -> None:
        self.plan, self.call, self.crops = plan, call, crops
        self.counts = [plan.room(len(group)) for group in crops]

    def parts(self, cut: Cut) -> list[Part]:
        return [
            (room, source, queries)
            for _, _, room, source in self._sources(cut)
            for queries in self._shared(source)
        ]

    def count_apart(self, cut: Cut) -> None:
        """Count sides that need few rows: relations, and candidates listed per query."""
        plan, table = self.plan, self.call.table
        if "relation" in plan.sides:
            column = plan.sides.index("relation")
            for crops, counts in zip(self.crops, self.counts, strict=True):
                room = counts[..., column]
                count_relations(
                    plan, crops, room, _ignore, lambda ids: local_model(plan.model, table, ids)
                )
        plan.batch_size = cut.per_pass
        for _, _, room, source in self._sources(cut):
            given = plan.candidates[source.side]
            if isinstance(given, ListedCandidates):
                source.batch_size = given.batch_size(cut.pairs)
                count_side(plan, source, room, _ignore)

    def counts_of(self, source: InRows, queries: Queries) -> CountsSoFar:
        known = self.plan.known
        device = CPU if known is None else known.device
        asked = queries.anchors.to(device), queries.others.to(device)
        queries.known = known_answers(known, asked, source.side, CPU)
        return CountsSoFar(queries, source)

    def query_bytes(self) -> int:
        """Return the mean bytes of a query: vector, counts and known answers."""
        plan, crops = self.plan, max(len(crops) for crops in self.crops)
        answers = [
            mean_answers(plan.known, roles_of(plan.hrt.T, side)[:2], side)
            for side in plan.sides
            if side != "relation"
        ]
        own = 3 * 8 * self.call.table.shape[1] + 104 * crops + 64
        return own + 32 * (max(answers, default=0) + 1)

    def fingerprint(self, cut: Cut) -> Fingerprint:
        """Hash everything that the counts depend on, except the table."""
        plan = self.plan
        checksum = None if plan.known is None else plan.known.checksum
        asked = plan.sides, self.crops, plan.allows_nan, plan.hrt, checksum
        found = self.call.fingerprint("rank", cut.reader, *asked)
        for group, column, _, source in self._sources(cut):
            for queries in self._shared(source):
                found.add(group, column, queries.rows, source.ids_of(queries))
                add_queries(found, source, queries.anchors, queries.others)
            found.add(*source.constants())
        return found

    def _sources(self, cut: Cut) -> list[tuple[int, int, Tensor, InRows]]:
        plan, found = self.plan, []
        sides = [it for it in enumerate(plan.sides) if it[1] != "relation"]
        for group, (crops, counts) in enumerate(zip(self.crops, self.counts, strict=True)):
            for column, side in sides:
                given = plan.candidates[side]
                ids = None
                if isinstance(given, Tensor):
                    ids = checked_candidates(given, len(self.call.table))
                nan = plan.allows_nan
                source = InRows(plan.model, side, crops, cut.reader, ids, allows_nan=nan)
                found.append((group, column, counts[..., column], source))
        return found

    def _shared(self, source: InRows) -> Iterator[Queries]:
        """Yield queries that share candidates; none where each query lists candidates."""
        plan, given = self.plan, self.plan.candidates[source.side]
        if isinstance(given, ListedCandidates):
            return
        rows = plan.ordered(source.side)
        every = plan.queries(source.side, rows, plan.hrt[rows].T.contiguous())
        yield from (own for _, own in shared(every, given, source) if len(own))


def _ignore(*_: int) -> None:
    """Show no progress."""
