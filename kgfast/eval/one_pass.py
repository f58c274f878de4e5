"""A pass: queries meet the blocks of a source, and accumulators collect the results.

    for queries in plan:  for block in source:  accumulator.take(block)    exchange.join(...)

A plan gives the queries of each pass. With candidates in memory that is one batch; with a file, all
queries that fit into memory.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.accumulators import Accumulator
from kgfast.eval.exchange import NOBODY, Exchange
from kgfast.eval.partial import BLOCK_BYTES, Partial, using
from kgfast.eval.queries import CPU
from kgfast.eval.rows import RowReader, entity_table, state_of
from kgfast.eval.sources import CandidateSource, InMemory, InRows
from kgfast.progress import sweep_bar
from kgfast.storage import Fingerprint, memory_limit
from kgfast.tables import Rows
from kgfast.tables.prefetch import BUFFERS, RowBlock
from kgfast.tables.protocol import TensorTable

_SAMPLE = 64  # rows that a fingerprint reads where files or tensors tell of changes otherwise
_PAIR_BYTES = 128  # bytes of a candidate that one query names, during the search for its row
_PART = 1 << 12  # queries of a fingerprint that are made at once

Advance = Callable[[int, int], None]  # called with rows, and the queries that met these rows


def run_pass(
    parts: Sequence[Accumulator],
    exchange: Exchange = NOBODY,
    kept: Partial | None = None,
    advance: Advance | None = None,
) -> None:
    """Read the blocks of a source once; every part takes results from each block.

    Parts have one source, or sources that read one file. Results are saved in ``kept`` after each
    range of rows, and a later call resumes there. ``advance`` is called with rows, and with the
    queries that met these rows.
    """
    done, is_finished = 0, False
    if kept is not None:
        done = kept.load(parts)
        if advance is not None:
            advance(done, 0)
        is_finished = exchange.all_say(done == kept.reader.stop)
    if not is_finished:
        exchange.prepare(parts)
        for part in parts:
            part.begin()
        is_whole = parts[0].source.is_whole
        exchange.together(lambda: _read(parts, done, None if is_whole else kept, advance))
        if is_whole and kept is not None:
            kept.save(parts, kept.reader.stop)
    for part in parts:
        exchange.join(part)


def _read(
    parts: Sequence[Accumulator], done: int, kept: Partial | None, advance: Advance | None
) -> None:
    with parts[0].source.blocks([part.queries for part in parts], done) as blocks:
        if kept is not None or advance is not None:
            blocks = _watched(blocks, parts, done, kept, advance)
        for block in blocks:
            for part in parts:
                part.take(block)


def _watched(
    blocks: Iterator[RowBlock],
    parts: Sequence[Accumulator],
    done: int,
    kept: Partial | None,
    advance: Advance | None,
) -> Iterator[RowBlock]:
    """Yield blocks; after the use of each block, report the block and save results."""
    queries = sum(len(part.queries) for part in parts)
    end = parts[0].source.num_rows if kept is None else kept.reader.stop
    for block in blocks:
        if kept is not None:
            kept.check(block)
        yield block
        if advance is not None:
            advance(block.stop - done, queries)
        done = block.stop
        if kept is not None and kept.is_end(block):
            kept.save(parts, done)
    if kept is not None and done < end:
        kept.save(parts, end)
    if advance is not None:
        advance(end - done, 0)


@dataclass(frozen=True)
class Cut:
    """Division of a table into blocks and passes within a limit of memory.

    A pass serves ``per_pass`` queries. For queries that list candidates, a pass reads ``pairs`` at
    once.
    """

    reader: RowReader
    per_pass: int
    pairs: int

    @classmethod
    def of(cls, table: Rows, limit: int, dim: int, query_bytes: int) -> "Cut":
        """Cut a table for a model of ``dim`` features; at least one row and one query must fit."""
        stored, count = table.row_bytes, len(table)
        row_bytes = max(1, BUFFERS * stored + 8 + 8 * dim)  # a row with factor and id
        if limit < row_bytes + query_bytes:
            raise ValueError(
                f"max_memory must be at least {row_bytes + query_bytes:,} bytes here, for one row "
                f"and one query; got {limit:,}"
            )
        most = BLOCK_BYTES // max(1, stored)
        rows = max(1, min(most, limit // 4 // row_bytes, max(1, count)))
        queries = max(1, (limit - rows * row_bytes) // query_bytes)
        pairs = max(1, limit // 4 // _PAIR_BYTES)
        return cls(RowReader(table, 0, count, rows, count * stored > limit), queries, pairs)


@dataclass(frozen=True)
class FileCall:
    """Call of a model with a table of entities in files.

    ``limit`` is in bytes, ``folder`` is that of ``partial=``, and ``bar`` makes a progress bar of
    rows.
    """

    model: Any
    table: Rows
    limit: int
    folder: Any
    bar: Callable[[int], AbstractContextManager[Advance]]

    @classmethod
    def of(
        cls, model: Any, max_memory: Any, partial: Any, bar: tuple[bool, str]
    ) -> "FileCall | None":
        """Return the call, or None where the entities of a model are in memory.

        ``bar`` is whether to show a progress bar, and the label of the bar.
        """
        table = entity_table(model)
        if table is not None:
            sizes = table.shape[1], table.row_bytes
            limit = memory_limit(max_memory)
            return cls(model, table, limit, partial, lambda rows: sweep_bar(*bar, rows, *sizes))
        if max_memory is not None:
            raise ValueError(
                "max_memory is only for models with a kgfast.tables.Table of entities: tensors "
                "are read in place, within 64 MiB"
            )
        return None

    @contextmanager
    def opened(
        self, query_bytes: int, fingerprint: Callable[[Cut], Fingerprint]
    ) -> Iterator[tuple[Cut, Partial | None]]:
        """Cut the table for queries of a size; open the folder, which keeps the first cut."""
        cut = Cut.of(self.table, self.limit, int(self.model.dim), query_bytes)
        if self.folder is None:
            yield cut, None
            return
        with using(self.folder) as path:
            kept = Partial(path, cut.reader, fingerprint(cut).text(), cut.per_pass)
            yield replace(cut, per_pass=kept.per_pass, reader=kept.reader), kept

    def fingerprint(self, kind: str, reader: RowReader, *asked: Any) -> Fingerprint:
        """Begin the fingerprint of a call: model, table and arguments."""
        table = self.table
        found = fingerprint_of(self.model, reader, kind, table.shape, table.dtype, table.facts)
        found.add(*asked)
        return found


def fingerprint_of(model: Any, reader: RowReader, *facts: Any) -> Fingerprint:
    """Begin a fingerprint of a model: a sample of its rows, and all other tensors."""
    found, count = Fingerprint(), reader.stop - reader.start
    found.add(facts[0], type(model).__name__, model.score, *facts[1:])
    few = min(_SAMPLE, count)
    ids = reader.start + torch.arange(few, dtype=torch.int64, device=CPU) * count // max(1, few)
    rows, entity = reader.rows(ids), getattr(model, "entity", None)
    found.add(reader.entity[ids.to(reader.device)] if rows is None else rows)
    found.add_each(it for it in state_of(model) if it is not entity)
    return found


class _Parts(TensorTable):
    """Rows that stand for the parts of a pass over candidates in memory; none is read."""

    facts = ("in memory",)


@contextmanager
def kept_in_memory(
    folder: Any, source: CandidateSource, cut: tuple[int, int], asked: Iterable[Any]
) -> Iterator[Partial | None]:
    """Open the folder of ``partial=`` for a call with candidates in memory.

    ``cut`` is the number of parts of a pass, and of queries of a part. ``asked`` yields everything
    that results depend on besides the tensors of the model.
    """
    if folder is None:
        yield None
        return
    if not isinstance(source, InMemory):
        raise ValueError(
            "partial: scores come from a function, and functions of two calls cannot be compared"
        )
    count, per_pass = cut
    found, model = Fingerprint(), source.model
    found.add("in memory", type(model).__name__, model.score, *cut)
    table = source.prepared.table
    found.add(table[:: max(1, len(table) // _SAMPLE)])
    found.add_each(state_of(model))
    found.add_each(asked)
    rows = _Parts(torch.zeros((count, 1), dtype=torch.float32, device=CPU))
    with using(folder) as path:
        yield Partial(path, RowReader(rows, 0, count, 1), found.text(), per_pass)


def add_queries(found: Fingerprint, source: InRows, anchors: Tensor, others: Tensor) -> None:
    for rows in zip(anchors.split(_PART), others.split(_PART), strict=True):
        found.add(source.vectors(*rows))
