"""The loop of every call: queries of a job meet the blocks of a source.

    for source, queries in job:  for block in source:  result.take(block)      then job.put(result)

A job (:mod:`kgfast.eval.job`) says what is asked of which rows, and how results join. A
:class:`Call` knows where the candidates are (in memory, in a file, in the shards of several
processes) and how many queries meet the blocks of one pass: with candidates in memory one batch,
with a file all that fit into memory.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.candidates import ListedIds, checked_candidates
from kgfast.eval.functions import Scored
from kgfast.eval.index import Index
from kgfast.eval.job import Job, JobSection, SoFar
from kgfast.eval.partial import BLOCK_BYTES, Partial, using
from kgfast.eval.preparation import evaluating, tensors_of
from kgfast.eval.queries import CPU, Queries, shared
from kgfast.eval.row_sources import InRows
from kgfast.eval.rows import RowReader, entity_table, local_model, own_reader
from kgfast.eval.sources import CandidateSource, InMemory
from kgfast.kernels.operands import Prepared
from kgfast.models.relations import blocks_at
from kgfast.ops.values import refuse_unchecked
from kgfast.progress import progress_bar, sweep_bar
from kgfast.storage import Fingerprint, memory_limit
from kgfast.tables import Rows
from kgfast.tables.prefetch import BUFFERS, RowBlock
from kgfast.tables.protocol import TensorTable

_SAMPLE = 64  # rows that a fingerprint reads where files or tensors tell of changes otherwise
_PAIR_BYTES = 128  # bytes of a candidate that one query names, during the search for its row
_PART = 1 << 12  # queries of a fingerprint that are made at once
_FILE_BATCHES = 8  # batches of several processes per read of a table in a file

Advance = Callable[[int, int], None]  # called with rows, and the queries that met these rows

# Processes around the calls of this context: kgfast.processes sets them. None: this one alone.
TOGETHER: ContextVar[Any] = ContextVar("kgfast_processes", default=None)


def several(name: str) -> AbstractContextManager[Any]:
    """Return the processes around a collective call, else None; errors inside reach the others."""
    together = TOGETHER.get()
    return nullcontext() if together is None else together.call(name)


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
        max_memory: int | str | None = None,
        partial: str | os.PathLike[str] | None = None,
        index: Index | None = None,
        progress: bool = False,
    ) -> None:
        self.steps, self.index, self._folder = steps, index, partial
        self.model, self._bar = model, (progress, label)
        # Rows that are read in blocks, and what makes a model of a few; None: all are in memory.
        self.reader: RowReader | None = None
        self._rows_of: Callable[[Tensor], Tensor] | None = None
        self.table: Rows | None = None
        self._per_pass: int | None = None  # queries of a pass over a file
        self._pairs: int | None = None  # pairs of queries with lists that a pass over a file reads
        self._shares: Any = None
        self._made: Prepared | None = None
        if steps is not None:
            self.reader = own_reader(model)
            for name, value in (("index", index), ("max_memory", max_memory)):
                if value is not None:
                    raise ValueError(f"{name}: several processes read their own rows in place")
            return
        self.table = entity_table(model)
        if self.table is not None and index is not None:
            raise ValueError("index: the entities of this model are read from files, in blocks")
        if self.table is not None:
            self._limit, self._rows_of = memory_limit(max_memory), self.table.rows
        elif max_memory is not None:
            raise ValueError(
                "max_memory is only for models with a kgfast.tables.Table of entities: tensors "
                "are read in place, within 64 MiB"
            )

    @property
    def device(self) -> torch.device:
        """Device of the entities of a call that reads them."""
        return torch.device((self.table if self.reader is None else self.reader).device)  # type: ignore[union-attr]

    def run(self, job: Job) -> None:
        """Drive a job through all blocks."""
        refuse_unchecked(f"{job.name}()")
        with evaluating(self.model):
            if self.steps is not None:
                self._run_together(job)
            elif self.table is not None and job.sides != ("relation",):
                self._run_file(job, self.table)
            elif self._folder is None and not self._bar[0]:
                self._drive(job)  # a call of few queries takes microseconds
            else:
                self._run_memory(job)

    def run_range(self, job: Job, start: int, stop: int) -> None:
        """Drive a job through a range of rows."""
        refuse_unchecked("count_range()")
        reader = own_reader(self.model)
        self.reader = RowReader.of_part(reader.entity, start, stop)
        with evaluating(self.model):
            self._drive(job)

    def _run_memory(self, job: Job) -> None:
        is_shown, label = self._bar
        folder = None if job.sides == ("relation",) else self._folder  # few rows are read
        total = job.num_queries * sum(len(section.crops) for section in job.sections)
        with ExitStack() as stack:
            kept = None if folder is None else stack.enter_context(self._kept(job, folder))
            show = stack.enter_context(progress_bar(is_shown, label, total))
            self._drive(job, kept, lambda rows, queries: None if rows else show(queries))

    @contextmanager
    def _kept(self, job: Job, folder: str | os.PathLike[str]) -> Iterator[Partial]:
        """Open the folder of ``partial=`` for a call with candidates in memory."""
        source = self._source(job, job.sections[0])
        if not isinstance(source, InMemory):
            raise ValueError(
                "partial: scores come from a function, and functions of two calls cannot be "
                "compared"
            )
        table = source.prepared.table
        found = self._fingerprint(job, RowReader.of_part(table, 0, len(table)))
        size = self._size(job, job.sections[0])
        parts = 1  # a pass is a batch, or the whole call
        if job.grows:
            batches = job.queries(job.sections[0], source.home, size)
            parts = max(1, sum(1 for _ in batches))
        found.add("in memory", parts, size)
        rows = _Parts(torch.zeros((parts, 1), dtype=torch.float32, device=CPU))
        with using(folder) as path:
            yield Partial(path, RowReader(rows, 0, parts, 1), found.text(), size)

    def _run_file(self, job: Job, table: Rows) -> None:
        query_bytes = 3 * 8 * table.shape[1] + job.result_bytes + 32 * (_mean_answers(job) + 1)
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
        self._pairs = max(1, self._limit // 4 // _PAIR_BYTES)
        self.reader = RowReader(table, 0, count, rows, count * stored > self._limit)
        kept = None
        with ExitStack() as stack:
            if self._folder is not None:
                path = stack.enter_context(using(self._folder))
                text = self._fingerprint(job, self.reader).text()
                kept = Partial(path, self.reader, text, self._per_pass)
                self._per_pass, self.reader = kept.per_pass, kept.reader
            sizes = self._num_passes(job) * count, table.shape[1], stored
            self._drive(job, kept, stack.enter_context(sweep_bar(*self._bar, *sizes)))

    def _num_passes(self, job: Job) -> int:
        chained = passes = 0
        for section in job.sections:
            if section.side != "relation":
                size = self._size(job, section)
                if job.chains and not isinstance(section.given, ListedIds):
                    chained += job.num_queries
                else:
                    passes += -(-job.num_queries // size)
        return passes + -(-chained // (self._per_pass or 1))

    def _run_together(self, job: Job) -> None:
        """Drive a job through the rows of this process; every process gets all results."""
        steps, reader = self.steps, self.reader
        assert reader is not None
        for section in job.sections:
            if section.side != "relation":
                job.begin(self._source(job, section))
        facts = job.facts | {
            "batch_size": str(job.batch_size),
            "whether partial= is given": str(self._folder is not None),
            "whether known answers are left out": str(job.known is not None),
        }
        self._shares = shares = steps.shares(self.model, reader, facts)
        self._rows_of = shares.rows
        with ExitStack() as stack:
            kept = None
            if self._folder is not None and job.sides != ("relation",):
                reader = reader.in_blocks(BLOCK_BYTES)
                found = self._fingerprint(job, reader)
                found.add(reader.start, reader.stop, shares.share, shares.num_shares, facts)
                folder = Path(self._folder, f"process-{steps.rank}-of-{steps.size}")
                path = stack.enter_context(using(folder))
                kept = Partial(path, reader, found.text(), 1)
                self.reader = kept.reader
            total = len(job.sections) * job.num_queries // shares.num_shares
            is_shown, label = self._bar
            bar = progress_bar(is_shown and steps.rank == 0, label, total)
            show = stack.enter_context(bar)
            self._drive(job, kept, lambda rows, queries: None if rows else show(queries))
            job.join(shares)

    def _fingerprint(self, job: Job, reader: RowReader) -> Fingerprint:
        """Hash model, arguments, and some rows and queries: all that results depend on."""
        found = fingerprint_of(self.model, reader)
        found.add(job.name, None if job.known is None else job.known.checksum, job.facts)
        if self.reader is None:  # no block is compared when a call resumes
            found.add_each(tensors_of(self.model))
        for section in job.sections:
            if section.side != "relation" and self._shares is None:
                source = self._source(job, section)
                found.add(*source.constants())
                few = replace(job.sample(section, source.home, _SAMPLE), targets=None)
                source.prepare(few)
                found.add(few.rows, few.vectors)
        return found

    def _source(self, job: Job, section: JobSection, model: Any = None) -> CandidateSource:
        """Make the source of a section; ``model`` has few entities, for relations of them."""
        side, crops, given = section.side, section.crops, section.given
        ids = given if isinstance(given, Tensor) else None
        if model is None and self.reader is not None:
            ids = None if ids is None else checked_candidates(ids, self.reader.num_rows)
            return InRows(self.model, side, crops, self.reader, ids, allows_nan=job.allows_nan)
        model = self.model if model is None else model
        scorers = []
        for dim in crops:
            if (scorer := blocks_at(model, side, dim)) is not None:
                scorers.append(scorer)
        if scorers:
            return Scored(scorers, side, ids, allows_nan=job.allows_nan)
        options: dict[str, Any] = {"index": self.index, "made": self._made}
        source = InMemory(model, side, crops, ids, allows_nan=job.allows_nan, **options)
        # One side's candidates serve the other, if the model holds them anyway.
        is_held = source.prepared.table is getattr(model, "entity", None)
        is_held = is_held and source.prepared.factor is None
        self._made = source.prepared if is_held and source.sorted_ids is None else None
        return source

    def _of_relations(
        self, job: Job, section: JobSection, size: int
    ) -> Iterator[tuple[CandidateSource, Iterable[Queries]]]:
        assert self._rows_of is not None
        for queries in job.queries(section, self.device, size):
            for batch in queries.batches(size, size):
                entities = torch.cat([batch.anchors, batch.others]).cpu()
                model = local_model(self.model, self._rows_of, entities)
                yield self._source(job, section, model), [batch]

    def _size(self, job: Job, section: JobSection) -> int:
        size = job.batch_size
        if section.side != "relation" and self._per_pass is not None:
            size = self._per_pass
        elif section.side != "relation" and self._shares is not None:
            assert self.reader is not None
            if not (job.has_batch_size or self.reader.in_place):
                size *= _FILE_BATCHES
            size = max(1, min(size, -(-job.num_queries // self._shares.num_shares)))
        if isinstance(section.given, ListedIds):
            size = min(size, section.given.batch_size(self._pairs))
        return size

    def _drive(self, job: Job, kept: Partial | None = None, advance: Advance | None = None) -> None:
        """Make all passes of a job; a pass over a file may go on in the next section."""
        waiting: list[SoFar] = []  # results of the next pass, of `filled` queries
        filled = 0
        for section in job.sections:
            # For relations and lists few rows are read, and nothing is saved.
            reads_few = section.side == "relation" or isinstance(section.given, ListedIds)
            saved = None if reads_few else kept
            chains = job.chains and self._per_pass is not None and not reads_few
            if waiting and not chains:
                self._pass(job, waiting, kept, advance)
                waiting, filled = [], 0
            size, sources = self._size(job, section), None
            if section.side == "relation" and self._rows_of is not None:
                sources = self._of_relations(job, section, size)
            for source, every in sources or [(self._source(job, section), None)]:
                job.begin(source)
                size = min(size, source.batch_size)
                if every is None:
                    every = job.queries(section, source.home, size)
                if job.grows and kept is not None and source.is_whole:
                    self._resume(job, section, source, every, kept, advance)
                    continue
                for queries in every:
                    batches = [queries]
                    if len(queries.rows) > size - filled:
                        batches = queries.batches(size - filled, size)
                    if self._shares is not None and isinstance(source, InRows):
                        batches = self._shares.share_of(batches)
                    for batch in batches:
                        batch.known = job.known_of(batch, source)
                        parts = [batch]
                        if section.given is not None:
                            parts = shared(batch, section.given, source)
                        for own in parts:
                            waiting.append(job.start(section, source, own))
                        filled += len(batch.rows)
                        if not (chains and filled < size):
                            self._pass(job, waiting, saved, advance)
                            waiting, filled = [], 0
            source = every = batches = None  # type: ignore[assignment]  # frees the candidates
        if waiting:
            self._pass(job, waiting, kept, advance)
        if not job.is_done():
            self._drive(job, kept)

    def _resume(
        self,
        job: Job,
        section: JobSection,
        source: CandidateSource,
        every: Iterable[Queries],
        kept: Partial,
        advance: Advance | None,
    ) -> None:
        """Make the passes of a call that saves all results so far, after some of the passes."""
        sample = job.sample(section, source.home, 1)
        first = kept.load([job.start(section, source, sample)])
        for number, queries in enumerate(every):
            if number >= first:
                queries.known = job.known_of(queries, source)
                result = job.start(section, source, queries)
                self._sweep([result], None, 0, None)
                if kept.is_end(RowBlock(queries.rows, number, number + 1)):
                    kept.save([result], number + 1)
            if advance is not None:
                advance(0, len(queries))

    def _pass(
        self, job: Job, results: list[SoFar], kept: Partial | None, advance: Advance | None
    ) -> None:
        """Read the blocks of a source once; every result takes from each block.

        Results have one source, or sources that read one file. They are saved in ``kept`` after
        each range of rows, and a later call resumes there.
        """
        source = results[0].source
        if not source.has_lists and len(results) > 1:  # each list has blocks of its own
            for result in results:
                self._pass(job, [result], kept, advance)
            return
        shares = self._shares if isinstance(source, InRows) else None
        done, is_finished = 0, False
        if kept is not None:
            done = kept.load(results)
            if advance is not None:
                advance(done, 0)
            is_finished = done == kept.reader.stop
            if shares is not None:
                is_finished = shares.all_say(is_finished)
        if not is_finished:
            self._sweep(results, kept, done, advance)
        for result in results:
            if shares is not None:
                result.join(shares)
            result.queries.vectors = None  # not read any more
            job.put(result)
            if advance is not None:
                advance(0, len(result.queries.rows))

    def _sweep(
        self, results: list[SoFar], kept: Partial | None, done: int, advance: Advance | None
    ) -> None:
        source = results[0].source
        shares = self._shares if isinstance(source, InRows) else None
        if shares is None:
            for result in results:
                result.source.prepare(result.queries)
        else:
            shares.prepare(results)
        for result in results:
            result.begin()
        if isinstance(source, InMemory):
            for result in results:
                result.take(source.prepared)
            if kept is not None:
                kept.save(results, kept.reader.stop)
        elif shares is None:
            self._read(results, kept, done, advance)
        else:
            shares.together(lambda: self._read(results, kept, done, advance))

    def _read(
        self, results: list[SoFar], kept: Partial | None, done: int, advance: Advance | None
    ) -> None:
        """Read blocks from row ``done`` on; report each block and save results."""
        source, queries = results[0].source, sum(len(result.queries) for result in results)
        end = source.num_rows if kept is None else kept.reader.stop
        is_file = isinstance(source, InRows) and (self._per_pass is not None or kept is not None)
        with source.blocks([result.queries for result in results], done) as blocks:
            for block in blocks:
                if kept is not None:
                    kept.check(block)
                for result in results:
                    result.take(block)
                if not is_file:
                    continue
                if advance is not None:
                    advance(block.stop - done, queries)
                done = block.stop
                if kept is not None and kept.is_end(block):
                    kept.save(results, done)
        if kept is not None and done < end:
            kept.save(results, end)
        if advance is not None and is_file:
            advance(end - done, 0)


class _Parts(TensorTable):
    """Rows that stand for the parts of a pass over candidates in memory; none is read."""

    facts = ("in memory",)


def fingerprint_of(model: Any, reader: RowReader) -> Fingerprint:
    """Begin a fingerprint of a model: a sample of its rows, and all other tensors."""
    found, count = Fingerprint(), reader.stop - reader.start
    facts = () if reader.table is None else reader.table.facts
    found.add(type(model).__name__, model.score, (reader.num_rows, reader.width), reader.dtype)
    few = min(_SAMPLE, count)
    ids = reader.start + torch.arange(few, dtype=torch.int64, device=CPU) * count // max(1, few)
    rows, entity = reader.rows(ids), getattr(model, "entity", None)
    found.add(facts, reader.entity[ids.to(reader.device)] if rows is None else rows)
    found.add_each(tensor for tensor in tensors_of(model) if tensor is not entity)
    return found


def _mean_answers(job: Job) -> int:
    mean = 0.0
    for section in job.sections:
        queries = next(iter(job.queries(section, CPU, _PART)), None)
        if job.known is not None and section.side != "relation" and queries and len(queries):
            ids = queries.anchors, queries.others
            anchors, others = (it.contiguous().to(job.known.device) for it in ids)
            counts = job.known.counts(anchors, others, section.side)
            mean = max(mean, float(counts.double().mean()))
    return int(mean)
