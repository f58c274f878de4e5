"""The processes around calls of kgfast: the rows of each, and results that are sent."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from kgfast.eval.driver import TOGETHER
from kgfast.eval.job import SoFar
from kgfast.eval.preparation import modules_of
from kgfast.eval.queries import CPU, Queries
from kgfast.eval.row_sources import InRows
from kgfast.eval.rows import RowReader
from kgfast.processes.steps import Processes, check_timeout, join
from kgfast.storage import digest

Spans = list[tuple[int, int]]
Made = TypeVar("Made")


@contextmanager
def processes(*, timeout: float = 1800.0) -> Iterator[None]:
    """Make ``kgfast.rank``, ``topk`` and ``above`` collective calls inside a ``with`` block.

    Every process of ``torch.distributed`` makes the same calls with a model of its own rows: a
    :class:`kgfast.tables.Shard` in memory or in a file, or all rows. Processes with the same rows
    share the queries among them. Every process gets all results: the integers and the order of one
    process. Arguments must be equal in all processes, except that ``known`` needs no more than the
    triples whose answer is a row of this process, and for relations all known triples.

    The process that owns an anchor makes the query. The process that owns a target computes its
    canonical score. Both are sent to all processes, and counts are added once, at the end. So a
    query of a ranking sends its width in float32 (float64 for float64 tables) and 48 bytes, for a
    table of any size. A query with its own candidates sends the width of a row and 40 bytes, a
    query for relations two rows. Best answers send ``16 k`` bytes more from each process, answers
    above a threshold go to every process.

    ``partial``, ``max_memory`` and ``index`` are refused. ``batch_size`` is the number of queries
    between two steps of the processes, eight times as many for shards in files. A progress bar is
    shown by process 0. An error in one process is raised in all.

    Parameters
    ----------
    timeout : float
        Seconds to wait for the slowest process at each batch.

    Raises
    ------
    RuntimeError
        If this process is not one of several.
    OtherProcessError
        By a call in the other processes, if one fails: the message names that process.
    LostProcessError
        By a call, if a process ended or hangs; the attribute ``ranks`` of the error says which.

    Examples
    --------
    The file ``ranking.py``, started by ``torchrun --nproc-per-node=4 ranking.py``::

        part = kgfast.tables.Shard(rows, start=first, total_rows=40_943)
        with kgfast.distributed.processes():
            ranks = kgfast.rank(kgfast.RotatE(part, relation), triples, known=known)
    """
    join()
    together = _Together(timeout)
    token = TOGETHER.set(together)
    try:
        check_timeout(timeout)
        yield
    except BaseException as error:
        if not together.has_told:  # an error outside of calls
            Processes("a call", 1.0).tell(error)
        raise
    finally:
        TOGETHER.reset(token)


class _Together:
    """Processes that make collective calls."""

    def __init__(self, timeout: float) -> None:
        self._timeout, self.has_told = timeout, False

    def call(self, name: str) -> "AbstractContextManager[_CollectiveCall]":
        self.has_told = False
        return _CollectiveCall(self, name, self._timeout)


class _CollectiveCall(Processes):
    """Processes of one call of :func:`kgfast.rank`, :func:`topk` or :func:`above`."""

    def __init__(self, together: _Together, name: str, timeout: float) -> None:
        super().__init__(f"kgfast.{name}", timeout)
        self._together = together

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._together.has_told = error is not None
        super().__exit__(kind, error, trace)

    def shares(self, model: Any, reader: RowReader, facts: dict[str, str]) -> "Shares":
        return Shares.of(self, reader, facts_of(model, reader) | facts)


@dataclass(frozen=True)
class Shares:
    """Share of the queries, whose processes hold the whole table together.

    ``group`` is the process group of the share number ``share``, and ``leads`` is True in the first
    process of the share.
    """

    steps: Processes
    group: dist.ProcessGroup
    everyone: dist.ProcessGroup
    share: int
    leads: bool
    num_shares: int
    reader: RowReader

    @classmethod
    def of(cls, steps: Processes, reader: RowReader, facts: dict[str, str]) -> Self:
        """Agree with all processes on the call; form shares that hold each row once."""
        spans = steps.agree(facts, [reader.start, reader.stop])
        shares = shares_of([(start, stop) for start, stop in spans], len(reader.table))
        share = next(i for i, ranks in enumerate(shares) if steps.rank in ranks)
        everyone = steps.group([range(steps.size)])
        group = everyone if len(shares) == 1 else steps.group(shares)
        leads = steps.rank == min(shares[share])
        return cls(steps, group, everyone, share, leads, len(shares), reader)

    def share_of(self, batches: list[Queries]) -> list[Queries]:
        """Return the batches of this share; all have equally many, the last may be empty."""
        missing = -len(batches) % self.num_shares
        empty = [batches[0].part(slice(0, 0))] * missing
        return [*batches, *empty][self.share :: self.num_shares]

    def together(self, work: Callable[[], Made]) -> Made:
        """Return the result of work that all processes do at once, each on its own rows."""
        return self.steps.together(work)

    def prepare(self, results: Sequence[SoFar]) -> None:
        """Make queries and score targets, each in a process that has the rows."""
        given = [(result.queries, result.source) for result in results]
        made = self.together(lambda: [_vectors(*it) for it in given])
        for (queries, source), vectors in zip(given, made, strict=True):
            queries.vectors = self._combined(vectors).to(source.device)
        given = [it for it in given if it[0].targets is not None]
        scored = self.together(lambda: [_of_targets(*it) for it in given]) if given else []
        for (queries, source), values in zip(given, scored, strict=True):
            here = self._combined(values).to(source.device)
            if queries.lists is None:
                queries.target_scores = here
            else:
                queries.target_rows = here.to(self.reader.table.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows by distinct ids, sent by the processes that hold them."""
        held = self.together(lambda: _held_rows(ids, self.reader))
        return self._combined(held).to(self.reader.table.device, self.reader.table.dtype)

    def gather(self, values: Tensor) -> list[Tensor]:
        """Return the tensors of the share's processes, of one shape, by rank."""
        return self.steps.gather(values, self.group)

    def total(self, count: int, *, of_all: bool = False) -> int:
        """Return the sum of a number over the processes of the share, or over all."""
        return self._sum(count, self.everyone if of_all else self.group)

    def sum_of_all(self, values: Tensor) -> Tensor:
        """Add int64 values over all processes."""
        self.together(lambda: None)
        return self.steps.sum(values.contiguous(), self.everyone)

    def filled_in(self, values: Tensor) -> Tensor:
        """Replace zeros by the results of other shares, in place."""
        if self.num_shares > 1:
            if not self.leads:  # all processes of a share have equal values
                values.zero_()
            self.together(lambda: None)
            self.steps.sum(values.view(torch.int64), self.everyone)
        return values

    def _sum(self, count: int, group: dist.ProcessGroup) -> int:
        counted = torch.tensor([count], dtype=torch.int64, device=CPU)
        return int(self.steps.sum(counted, group))

    def _combined(self, values: Tensor) -> Tensor:
        return self.steps.combine(values, self.group)


def _vectors(queries: Queries, source: Any) -> Tensor:
    """Return checked queries for anchors of this process, and zeros for others, ``[B, F]``."""
    assert isinstance(source, InRows)
    dtype = _wide(source.reader)
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
    here, shape, dtype = reader.holds(ids), (len(ids), reader.table.shape[1]), _wide(reader)
    rows = torch.zeros(shape, dtype=dtype, device=CPU)
    if bool(here.any()):
        rows[here] = reader.table.rows(ids[here]).to(CPU, dtype)
    return rows


def _wide(reader: RowReader) -> torch.dtype:
    return torch.float64 if reader.table.dtype == torch.float64 else torch.float32


def shares_of(spans: Spans, total: int) -> list[list[int]]:
    """Return the processes of each share; all parts must be stored equally often."""
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
    shares = [sorted(ranks) for ranks in zip(*holders.values(), strict=True)] or [[]]
    for place, rank in enumerate(idle):
        shares[place % len(shares)].append(rank)
    return shares


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


def facts_of(model: Any, reader: RowReader) -> dict[str, str]:
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
        "the shape of the entity table": str(list(reader.table.shape)),
        "the dtype of the entity table": str(reader.table.dtype).removeprefix("torch."),
        "the number of relations": str(model.num_relations),
        "the relations and other parameters": digest(*others),
    }
