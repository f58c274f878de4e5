"""The processes around calls of kgfast: the rows of each, and results that are sent."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.driver import TOGETHER
from kgfast.eval.job import SoFar
from kgfast.eval.preparation import tensors_of
from kgfast.eval.queries import CPU, Queries, places
from kgfast.eval.rows import RowReader
from kgfast.kernels.operands import Above
from kgfast.processes.steps import Processes, check_timeout, join, was_told
from kgfast.storage import digest

_SAMPLE = 64  # rows of a table that stand for all


@contextmanager
def processes(*, timeout: float = 1800.0) -> Iterator[None]:
    """Make ``kgfast.rank``, ``topk`` and ``above`` collective calls inside a ``with`` block.

    Every process of ``torch.distributed`` makes the same calls with a model of its own rows: a
    :class:`kgfast.tables.Shard` in memory or in a file. If all have all rows, they share the
    queries. Every process gets all results: the integers and the order of one process. Arguments
    must be equal in all processes, except that ``known`` needs no more than the triples whose
    answer is a row of this process.

    Traffic does not grow with the table (``docs/explanation/scale.md``). Relations, candidates of
    each query in shards, ``max_memory`` and ``index`` are refused. ``batch_size`` is
    the number of queries between two steps of the processes, eight times as many for shards in
    files. Process 0 shows the progress bar. An error in one process is raised in all.

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
    token = TOGETHER.set(lambda name: CollectiveCall(f"kgfast.{name}", timeout))
    try:
        check_timeout(timeout)
        yield
    except BaseException as error:
        if not was_told(error):  # an error outside of calls
            Processes("a call", 1.0).tell(error)
        raise
    finally:
        TOGETHER.reset(token)


class CollectiveCall(Processes):
    """Processes of one call, which hold a part of the rows each, or all rows and share queries.

    ``num_shares`` is the number of shares of the queries: 1, or the number of processes.
    """

    def divide(self, model: Any, reader: RowReader, facts: dict[str, str]) -> None:
        """Agree with all processes on the call; check that they hold each row once, or all rows."""
        ranges = self.agree(facts_of(model, reader) | facts, [reader.start, reader.stop])
        total, self.num_shares = len(reader.table), self.size
        if any(ends != [0, total] for ends in ranges):
            self.num_shares = 1
            check_cover(sorted((start, stop) for start, stop in ranges), total, "shards")
        self._start, self._group = reader.start, self.group()

    def share_of(self, batches: list[Queries]) -> list[Queries]:
        """Return the batches of this process; all have equally many, the last may be empty."""
        missing = -len(batches) % self.num_shares
        empty = [batches[0].part(slice(0, 0))] * missing
        return [*batches, *empty][self.rank % self.num_shares :: self.num_shares]

    def prepare(self, results: Sequence[SoFar]) -> None:
        """Make queries and score targets, each in a process that has the rows."""
        pairs: list[tuple[Queries, Any]] = [(result.queries, result.source) for result in results]
        if self.num_shares == self.size:
            self.together(lambda: [source.prepare(queries) for queries, source in pairs])
            return
        vectors_of = self.together(lambda: [_vectors(*pair) for pair in pairs])
        for (queries, source), vectors in zip(pairs, vectors_of, strict=True):
            queries.vectors = self.combine(vectors, self._group).to(source.device)
        pairs = [pair for pair in pairs if pair[0].targets is not None]
        scored = self.together(lambda: [_of_targets(*pair) for pair in pairs]) if pairs else []
        for (queries, source), scores in zip(pairs, scored, strict=True):
            queries.target_scores = self.combine(scores, self._group).to(source.device)

    def gather_share(self, values: Tensor) -> list[Tensor]:
        """Return the tensors of the processes of a share, of one shape, by rank."""
        return [values] if self.num_shares == self.size else self.gather(values, self._group)

    def sum_of_all(self, values: Tensor) -> Tensor:
        """Add int64 values over all processes."""
        self.together(lambda: None)
        return self.sum(values.contiguous(), self._group)

    def filled_in(self, values: Tensor) -> Tensor:
        """Replace zeros by the results of other shares, in place."""
        if self.num_shares > 1:
            self.together(lambda: None)
            self.sum(values.view(torch.int64), self._group)
        return values

    def joined(self, answers: Above) -> Above:
        """Join the answers of all processes to all queries, by ascending ids."""
        ids = answers.ids.to(CPU)
        start = torch.full((1,), self._start, dtype=torch.int64, device=CPU)
        starts = torch.cat(self.gather(start, self._group))
        place = starts.argsort(stable=True).tolist().index(self.rank)
        counts = ids.new_zeros((self.size, len(answers.indptr) - 1))
        counts[place] = answers.indptr.diff()
        self.sum(counts, self._group)
        indptr = torch.nn.functional.pad(counts.sum(0).cumsum(0), (1, 0))
        moved = indptr[:-1] + counts[:place].sum(0) - answers.indptr[:-1].to(CPU)
        at = torch.repeat_interleave(moved, counts[place]) + places(len(ids))
        columns = []
        for values in (ids, answers.scores.to(CPU, torch.float64)):
            column = values.new_zeros(int(indptr[-1]))
            column[at] = values
            columns.append(column)
            self.sum(column.view(torch.int64), self._group)
        joined = Above(indptr, columns[0], columns[1].to(answers.scores.dtype))
        return Above(*(values.to(answers.ids.device) for values in joined))


def _vectors(queries: Queries, source: Any) -> Tensor:
    """Return checked queries for anchors of this process, and zeros for others, ``[B, F]``."""
    here = source.reader.holds(queries.anchors)
    few = queries.where(here)
    few.vectors = source.vectors(few.anchors, few.others)
    if not source.allows_nan:
        few.check_finite()
    dtype = torch.float64 if source.table.dtype == torch.float64 else torch.float32
    vectors = torch.zeros((len(queries), few.vectors.shape[1]), dtype=dtype, device=CPU)
    vectors[here] = few.vectors.to(CPU, dtype)
    return vectors


def _of_targets(queries: Queries, source: Any) -> Tensor:
    """Return canonical scores ``[C, B]`` of targets of this process, and zeros for others."""
    assert queries.targets is not None
    scores = torch.zeros((source.num_crops, len(queries)), dtype=torch.float64, device=CPU)
    here = source.reader.holds(queries.targets)
    scores[:, here] = source.target_scores(queries.where(here)).to(CPU)
    return scores


def check_cover(ranges: Sequence[tuple[int, int]], total: int, name: str) -> None:
    """Check that ascending ranges hold every row once."""
    end = 0
    for start, stop in [*(ends for ends in ranges if ends[0] < ends[1]), (total, total)]:
        if start > end:
            raise ValueError(f"{name}: no process holds rows {end} .. {start - 1} of {total}")
        if start < end:
            last = min(stop, end) - 1
            raise ValueError(f"{name}: rows {start} .. {last} of {total} are in two {name}")
        end = stop


def facts_of(model: Any, reader: RowReader) -> dict[str, str]:
    """Return the facts of a model that all processes must share, in words."""
    entity = getattr(model, "entity", None)
    others = [tensor for tensor in tensors_of(model) if tensor is not entity]
    total = len(reader.table)
    few = min(_SAMPLE, total) if reader.is_whole else 0  # of a shard, rows are this process's own
    ids = torch.arange(few, dtype=torch.int64, device="cpu") * total // max(1, few)
    return {
        "the model": f"{type(model).__name__} of score {model.score}",
        "the shape of the entity table": str(list(reader.table.shape)),
        "the dtype of the entity table": str(reader.table.dtype).removeprefix("torch."),
        "some rows of the entity table": digest(reader.table.rows(ids)),
        "the number of relations": str(model.num_relations),
        "the relations and other parameters": digest(*others),
    }
