"""The processes of one call: the rows of each process, and the exchange of results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kgfast.eval.accumulators import AboveSoFar, Accumulator, BestSoFar
from kgfast.eval.batches import modules_of
from kgfast.eval.exchange import Exchange, Result
from kgfast.eval.queries import CPU, Queries
from kgfast.eval.rows import LocalModel, RowReader
from kgfast.eval.sources import InRows
from kgfast.graph.named import Names
from kgfast.kernels.operands import Above
from kgfast.processes.steps import Processes
from kgfast.storage import digest

Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class Team(Exchange):
    """Processes that hold the whole table together; other teams serve other queries.

    ``group`` is the process group of the team, ``share`` is the number of the team, and ``leads``
    is True in the first process of the team.
    """

    processes: Processes
    group: dist.ProcessGroup
    everyone: dist.ProcessGroup
    share: int
    leads: bool
    num_shares: int

    @classmethod
    def of(cls, processes: Processes, reader: RowReader, facts: dict[str, str]) -> "Team":
        """Agree with all processes on the call; form teams that hold each row of the table once."""
        spans = processes.agree(facts, [reader.start, reader.stop])
        teams = teams_of([(start, stop) for start, stop in spans], reader.num_rows)
        share = next(i for i, ranks in enumerate(teams) if processes.rank in ranks)
        everyone = processes.group([range(processes.size)])
        group = everyone if len(teams) == 1 else processes.group(teams)
        leads = processes.rank == min(teams[share])
        return cls(processes, group, everyone, share, leads, len(teams))

    def share_of(self, batches: list[Any]) -> list[Any]:
        missing = -len(batches) % self.num_shares
        return [*batches, *(batches[0][:0] for _ in range(missing))][self.share :: self.num_shares]

    def all_say(self, claim: bool) -> bool:
        doubts = torch.tensor([not claim], dtype=torch.int64, device=CPU)
        return not int(self.processes.sum(doubts, self.group))

    def together(self, work: Callable[[], Result]) -> Result:
        return self.processes.together(work)

    def prepare(self, parts: Sequence[Accumulator]) -> None:
        asked = [(part.queries, part.source) for part in parts]
        made = self.together(lambda: [_vectors(*it) for it in asked])
        for (queries, source), vectors in zip(asked, made, strict=True):
            queries.vectors = self._combined(vectors).to(source.device)
        asked = [it for it in asked if it[0].targets is not None]
        found = self.together(lambda: [_of_targets(*it) for it in asked]) if asked else []
        for (queries, source), values in zip(asked, found, strict=True):
            here = self._combined(values).to(source.device)
            if queries.lists is None:
                queries.target_scores = here
            elif isinstance(source, InRows):
                queries.target_rows = here.to(source.reader.dtype)

    def local(self, model: Any, reader: RowReader) -> Callable[[Tensor], LocalModel]:
        """Return a maker of models of some entities, with rows sent by all holders."""

        def rows(ids: Tensor) -> Tensor:
            held = self.together(lambda: _held_rows(ids, reader))
            return self._combined(held).to(reader.device, reader.dtype)

        return lambda ids: LocalModel(model, rows, ids)

    def join(self, part: Accumulator) -> None:
        """Merge the answers of all processes; counts are added once, at the end."""
        if isinstance(part, AboveSoFar):
            return self._join_above(part)
        if not isinstance(part, BestSoFar):
            return
        parts = (self.processes.gather(it, self.group) for it in (part.scores, part.ids))
        scores, ids = (torch.cat(it, 1) for it in parts)
        by_id = ids.argsort(dim=1, stable=True)
        part.keep(scores.gather(1, by_id), ids.gather(1, by_id))

    def _join_above(self, part: AboveSoFar) -> None:
        """Put the answers of all processes side by side, ordered by ids."""
        counted = torch.tensor([part.room.count], dtype=torch.int64, device=CPU)
        if int(self.processes.sum(counted, self.group)) > part.room.most:
            part.room.is_over = True
            part.pieces.clear()
            return
        own = part.whole()
        indptrs = self.processes.gather(own.indptr, self.group)
        missing = max(int(it[-1]) for it in indptrs) - len(own.ids)
        padded = (torch.nn.functional.pad(it, (0, missing)) for it in (own.ids, own.scores))
        gathered = (self.processes.gather(it, self.group) for it in padded)
        columns = zip(indptrs, *gathered, strict=True)
        found = [Above(it, *(own[: int(it[-1])] for own in both)) for it, *both in columns]
        part.pieces = sorted((it for it in found if len(it.ids)), key=lambda it: int(it.ids.min()))

    def total(self, count: int) -> int:
        counted = torch.tensor([count], dtype=torch.int64, device=CPU)
        return int(self.processes.sum(counted, self.everyone))

    def fill_in_rows(self, found: Above) -> Above:
        if self.num_shares == 1:
            return found
        counts = found.indptr.diff()
        mine = counts.clone()
        self.fill_in(counts)
        indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        at = torch.repeat_interleave(indptr[:-1] - found.indptr[:-1], mine)
        at += torch.arange(len(at), dtype=torch.int64, device=CPU)
        ids, scores = (
            torch.zeros(int(indptr[-1]), dtype=it, device=CPU)
            for it in (torch.int64, torch.float64)
        )
        ids[at], scores[at] = found.ids, found.scores.double()
        self.fill_in(ids)
        self.fill_in(scores)
        return Above(indptr, ids, scores.to(found.scores.dtype))

    def add(self, counts: Tensor) -> None:
        """Add the counts of all processes, in place; a single team knows the last kind already."""
        self.together(lambda: None)
        if self.num_shares > 1 and not self.leads:
            counts[5].zero_()
        self.processes.sum(counts if self.num_shares > 1 else counts[:5], self.everyone)

    def _combined(self, values: Tensor) -> Tensor:
        return self.processes.combine(values, self.group)

    def fill_in(self, values: Tensor) -> None:
        if self.num_shares == 1:
            return
        if not self.leads:  # all processes of a team have equal values
            values.zero_()
        self.processes.together(lambda: None)
        bits = values.view(torch.int64)
        self.processes.sum(bits, self.everyone)


def _vectors(queries: Queries, source: Any) -> Tensor:
    """Return checked queries for anchors of this process, and zeros for others, ``[B, F]``."""
    assert isinstance(source, InRows)
    dtype = torch.float64 if source.reader.dtype == torch.float64 else torch.float32
    vectors = torch.zeros((len(queries), source.query_width), dtype=dtype, device=CPU)
    here = source.reader.holds(queries.anchors)
    if bool(here.any()):
        own = queries.where(here)
        own.vectors = source.vectors(own.anchors, own.others)
        if not source.allows_nan:
            own.check_finite()
        vectors[here] = own.vectors.to(CPU, dtype)
    return vectors


def _of_targets(queries: Queries, source: Any) -> Tensor:
    """Return canonical scores ``[C, B]`` of targets of this process, and zeros for others.

    For queries with lists, return the rows of distinct targets, ``[U, G]``.
    """
    assert isinstance(source, InRows)
    assert queries.targets is not None
    if queries.lists is not None:
        return _held_rows(queries.targets.unique(), source.reader)
    shape = (source.num_crops, len(queries))
    scores = torch.zeros(shape, dtype=torch.float64, device=CPU)
    here = source.reader.holds(queries.targets)
    if bool(here.any()):
        scores[:, here] = source.target_scores(queries.where(here)).to(CPU)
    return scores


def _held_rows(ids: Tensor, reader: RowReader) -> Tensor:
    """Return the rows of this process and zeros for others, float32 or float64."""
    dtype = torch.float64 if reader.dtype == torch.float64 else torch.float32
    rows, here = torch.zeros((len(ids), reader.width), dtype=dtype, device=CPU), reader.holds(ids)
    if bool(here.any()):
        own = reader.rows(ids[here])
        rows[here] = (reader.entity[ids[here]] if own is None else own).to(CPU, dtype)
    return rows


def teams_of(spans: Spans, total: int) -> list[list[int]]:
    """Return the processes of each team; all parts must be stored equally often."""
    holders: dict[tuple[int, int], list[int]] = {}
    idle = []
    for rank, (start, stop) in enumerate(spans):
        if start < stop:
            holders.setdefault((start, stop), []).append(rank)
        else:
            idle.append(rank)
    check_cover(sorted(holders), total, "shards")
    sizes = {span: len(ranks) for span, ranks in holders.items()}
    if len(set(sizes.values())) > 1:
        most, least = max(sizes, key=lambda s: sizes[s]), min(sizes, key=lambda s: sizes[s])
        raise ValueError(
            f"shards: rows {most[0]} .. {most[1] - 1} are stored by {sizes[most]} processes, rows "
            f"{least[0]} .. {least[1] - 1} by {sizes[least]}; each part must be stored by "
            "equally many processes"
        )
    teams = [sorted(ranks) for ranks in zip(*holders.values(), strict=True)] or [[]]
    for place, rank in enumerate(idle):
        teams[place % len(teams)].append(rank)
    return teams


def names_digest(names: Names) -> str:
    """Return a digest of vocabularies, to be compared."""
    return " and ".join(
        "none" if part is None else f"{len(part):,} names {digest(part.names)}" for part in names
    )


def check_cover(ranges: Sequence[tuple[int, int]], total: int, name: str) -> None:
    """Check that ascending ranges hold every row once."""
    end = 0
    for start, stop in [*(span for span in ranges if span[0] < span[1]), (total, total)]:
        if start > end:
            raise ValueError(f"{name}: no process holds rows {end} .. {start - 1} of {total}")
        if start < end:
            last = min(stop, end) - 1
            raise ValueError(f"{name}: rows {start} .. {last} of {total} are in two {name}")
        end = stop


def facts_of(model: Any, reader: RowReader, dim: int | None) -> dict[str, str]:
    """Return the facts of a model that all processes must share, in words."""
    others = [
        value
        for module in modules_of(model)
        for values in (module.named_parameters, module.named_buffers)
        for name, value in sorted(values(recurse=False))
        if name != "entity"
    ]
    return {
        "the model": f"{type(model).__name__} of score {model.score}",
        "the shape of the entity table": f"[{reader.num_rows}, {reader.width}]",
        "the dtype of the entity table": str(reader.dtype).removeprefix("torch."),
        "the number of relations": str(model.num_relations),
        "the crop": str(dim),
        "the relations and other parameters": digest(*others),
    }
