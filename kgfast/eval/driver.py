"""The loop of every call: queries of a job meet the blocks of a source.

    for source, queries in job:  for block in source:  result.take(block)      then job.put(result)

A job (:mod:`kgfast.eval.job`) says what is asked of which rows, and how results join. A
:class:`Call` knows where the candidates are (in memory, in a file, in the shards of several
processes) and how many queries meet the blocks of one pass: with candidates in memory one batch,
with a file all that fit into memory.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

from torch import Tensor

from kgfast.eval.candidates import ListedIds, checked_candidates
from kgfast.eval.functions import Scored
from kgfast.eval.index import Index, check_index
from kgfast.eval.job import Job, JobSection, SoFar
from kgfast.eval.preparation import check_rankable, evaluating
from kgfast.eval.queries import shared
from kgfast.eval.row_sources import InRows
from kgfast.eval.rows import RowReader, entity_table, own_reader
from kgfast.eval.sources import CandidateSource, InMemory
from kgfast.kernels.checks import NonFiniteError
from kgfast.models.relations import blocks_at
from kgfast.ops.values import refuse_unchecked
from kgfast.progress import progress_bar
from kgfast.storage import memory_limit
from kgfast.tables import Rows
from kgfast.tables.prefetch import BUFFERS, RowBlock

BLOCK_BYTES = 32 << 20  # bytes of rows of a file that are read at once
_PAIR_BYTES = 128  # bytes of a candidate that one query names, besides the row of the candidate
_FEW = 1 << 12  # queries whose known answers are counted to estimate memory
_FILE_BATCHES = 8  # batches of several processes per read of a table in a file

Advance = Callable[[float], None]  # called with a number of queries

# Processes of the calls in this context, set by kgfast.processes. None: this process alone.
TOGETHER: ContextVar[Any] = ContextVar("kgfast_processes", default=None)


def several(name: str) -> AbstractContextManager[Any]:
    """Return the processes of a collective call, else None; errors inside reach all processes."""
    together = TOGETHER.get()
    return nullcontext() if together is None else together(name)


class Call:
    """A call of a public function: its candidates, its limits, and the loop.

    ``steps`` are the processes of a collective call, and ``label`` names the progress bar.
    """

    def __init__(
        self,
        model: Any,
        label: str,
        steps: Any = None,
        *,
        dims: Any = None,
        max_memory: int | str | None = None,
        index: Index | None = None,
        progress: bool = False,
    ) -> None:
        check_rankable(model)
        if index is not None:
            check_index(index, dims)
        self.model, self.steps, self.index = model, steps, index
        self._label = label if progress and getattr(steps, "rank", 0) == 0 else None
        self.reader: RowReader | None = None  # rows that are read in blocks; None: all in memory
        self._per_pass: int | None = None  # queries of a pass
        self._pairs: int | None = None  # pairs of queries and listed candidates of a pass
        self._other: InMemory | None = None
        if steps is not None:
            self.reader = own_reader(model)
            for name, value in (("index", index), ("max_memory", max_memory)):
                if value is not None:
                    raise ValueError(f"{name}: several processes read their own rows in place")
            return
        self._table = entity_table(model)
        if self._table is not None:
            if index is not None:
                raise ValueError("index: the entities of this model are read from files, in blocks")
            self._limit = memory_limit(max_memory)
        elif max_memory is not None:
            raise ValueError(
                "max_memory is only for models with a kgfast.tables.Table of entities: tensors "
                "are read in place, within 64 MiB"
            )

    def run(self, job: Job) -> None:
        """Drive a job through all blocks."""
        refuse_unchecked(f"{job.name}()")
        with evaluating(self.model):
            if self.steps is not None:
                assert self.reader is not None
                facts = job.facts | {
                    "batch_size": str(job.batch_size),
                    "whether known answers are left out": str(job.known is not None),
                }
                self.steps.divide(self.model, self.reader, facts)
            elif self._table is not None and self.reader is None:
                self._divide(job, self._table)
            if self._label is None:
                self._drive(job)
            else:
                count = job.num_queries * len(job.sections)
                with progress_bar(True, self._label, count) as advance:
                    self._drive(job, advance)
            if self.steps is not None:
                job.join(self.steps)

    def _divide(self, job: Job, table: Rows) -> None:
        """Divide memory among rows of a file and queries."""
        answers = int(max(job.mean_answers(section, _FEW) for section in job.sections))
        query_bytes = 3 * 8 * table.shape[1] + job.result_bytes + 32 * (answers + 1)
        stored, count = table.row_bytes, len(table)
        row_bytes = max(1, BUFFERS * stored + 8 + 8 * int(self.model.dim))  # with factor and id
        if self._limit < row_bytes + query_bytes:
            raise ValueError(
                f"max_memory must be at least {row_bytes + query_bytes:,} bytes here, for one row "
                f"and one query; got {self._limit:,}"
            )
        most = BLOCK_BYTES // max(1, stored)
        rows = max(1, min(most, self._limit // 4 // row_bytes, max(1, count)))
        self._per_pass = max(1, (self._limit - rows * row_bytes) // query_bytes)
        self._pairs = max(1, self._limit // 4 // (_PAIR_BYTES + row_bytes))
        self.reader = RowReader(table, 0, count, rows)

    def _source(self, job: Job, section: JobSection) -> CandidateSource:
        side, crops = section.side, section.crops
        ids = section.candidate_ids if isinstance(section.candidate_ids, Tensor) else None
        if self.reader is not None:
            if side == "relation":
                raise NotImplementedError(
                    "relations are ranked, or predicted, by models with all entities in memory; "
                    "this model's are read in blocks"
                )
            ids = None if ids is None else checked_candidates(ids, len(self.reader.table))
            return InRows(self.model, side, crops, self.reader, ids, job.allows_nan)
        blocks = [blocks_at(self.model, side, dim) for dim in crops]
        if scorers := [scorer for scorer in blocks if scorer is not None]:
            return Scored(scorers, side, ids, job.allows_nan)
        source = InMemory(self.model, side, crops, ids, job.allows_nan, self.index, self._other)
        # One side's candidates serve the other, if the model holds them anyway.
        if len(job.sections) > 1:
            held = source.prepared
            is_plain = held.factor is None and held.bias is None and source.sorted_ids is None
            is_held = held.table is getattr(self.model, "entity", None)
            self._other = source if is_held and is_plain else None
        return source

    def _size(self, job: Job, section: JobSection) -> int:
        """Return the queries of a pass."""
        size = job.batch_size
        if self._per_pass is not None:
            size = self._per_pass
        elif self.steps is not None:
            assert self.reader is not None
            size *= 1 if self.reader.in_place else _FILE_BATCHES
            size = max(1, min(size, -(-job.num_queries // self.steps.num_shares)))
        if isinstance(section.candidate_ids, ListedIds):
            if self.reader is not None and not self.reader.is_whole:
                raise NotImplementedError(
                    "candidate_ids: lists of each query need all rows in one process"
                )
            size = min(size, section.candidate_ids.batch_size(self._pairs))
        return size

    def _drive(self, job: Job, advance: Advance | None = None) -> None:
        """Make all passes of a job; a pass over a file may go on in the next section."""
        waiting: list[SoFar] = []  # results of the next pass
        for section in job.sections:
            size, source = self._size(job, section), self._source(job, section)
            size = min(size, source.batch_size)
            has_lists = isinstance(section.candidate_ids, ListedIds)
            chains = self._per_pass is not None and not has_lists
            if waiting and not chains:
                self._pass(job, waiting, advance)
            for queries in job.queries(section, source.home, size):
                batches, filled = [queries], _count(waiting) if chains else 0
                if queries.rows.shape[0] > size - filled:
                    batches = queries.batches(size - filled, size)
                if self.steps is not None:
                    batches = self.steps.share_of(batches)
                for batch in batches:
                    batch.known = job.known_of(batch, source)
                    if (excluded := job.excluded.get(section.side)) is not None:
                        facts = batch.known, batch.rows, source.home, source.row_range
                        batch.known = excluded.joined(*facts)
                    parts = [batch]
                    if section.candidate_ids is not None:
                        parts = shared(batch, section.candidate_ids, source)
                    for some in parts:
                        waiting.append(job.start(job, section, source, some))
                    if not (chains and _count(waiting) < size):
                        self._pass(job, waiting, advance)
            source = queries = batches = None  # type: ignore[assignment]  # frees the candidates
        if waiting:
            self._pass(job, waiting, advance)
        job.finish()

    def _pass(self, job: Job, results: list[SoFar], advance: Advance | None) -> None:
        """Read the blocks of a source once; every result takes from each block, and leaves.

        Results have one source, or sources that read one file.
        """
        source, steps = results[0].source, self.steps
        while len(results) > 1 and not source.has_lists:  # each list has blocks of its own
            self._pass(job, [results.pop(0)], advance)
        if steps is None:
            for result in results:
                result.source.prepare(result.queries)
            _read(results, advance)
        else:
            steps.prepare(results)
            steps.together(lambda: _read(results, advance))
        for result in results:
            if steps is not None:
                result.join(steps)
            result.queries.vectors = None  # not read any more
            job.put(result)
        results.clear()


def _read(results: list[SoFar], advance: Advance | None) -> None:
    source, done = results[0].source, 0.0
    for result in results:
        result.begin()
    with source.blocks(results) as blocks:
        for block in blocks:
            for result in results:
                try:
                    result.take(block)
                except NonFiniteError as error:
                    raise result.source.named(error, result.queries, block) from None
            if advance is not None and isinstance(block, RowBlock):
                now = _count(results) * block.stop / source.num_rows
                advance(now - done)
                done = now
    if advance is not None:
        advance(_count(results) - done)


def _count(results: list[SoFar]) -> int:
    return sum(len(result.queries.rows) for result in results)
