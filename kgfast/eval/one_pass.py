"""One pass: queries meet the blocks of a source, and accumulators keep what is found.

    for queries in plan:  for block in source:  accumulator.take(block)    exchange.join(...)

Who plans a pass says which queries it serves: a batch where candidates are in memory, and as many
as find room where a file is read.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.accumulators import Accumulator
from kgfast.eval.exchange import NOBODY, Exchange
from kgfast.eval.partial import BLOCK_BYTES, Fingerprint, Partial, using
from kgfast.eval.queries import CPU
from kgfast.eval.rows import RowReader, state_of
from kgfast.eval.sources import InRows
from kgfast.tables import Rows
from kgfast.tables.prefetch import BUFFERS, RowBlock

_RANGES = 256  # after which what was found is kept, at most
_SAMPLE = 64  # rows of a table whose files are known by size and time of change
_PAIR_BYTES = 128  # of a candidate that one query names, while it is looked for
_PART = 1 << 12  # queries of a fingerprint that are made at once

Advance = Callable[[int, int], None]  # by rows, and the queries that they met


def run_pass(
    parts: Sequence[Accumulator],
    exchange: Exchange = NOBODY,
    kept: "KeptPass | None" = None,
    advance: Advance | None = None,
) -> None:
    """Read the blocks of a source once, and let all parts take what they find.

    Parameters
    ----------
    parts : sequence of Accumulator
        Of one source, or of sources that read one file.
    exchange : Exchange
        Who else works on these queries.
    kept : KeptPass, optional
        Where what is found is kept after each range of rows: the pass goes on from there.
    advance : callable, optional
        Told of rows, and of the queries that they met.
    """
    done = 0
    if kept is not None:
        done = kept.load(parts)
        if advance is not None:
            advance(done, 0)
        if done == kept.num_rows:
            return
    exchange.prepare(parts)
    for part in parts:
        part.begin()
    exchange.together(lambda: _read(parts, done, kept, advance))
    for part in parts:
        exchange.join(part)


def _read(
    parts: Sequence[Accumulator], done: int, kept: "KeptPass | None", advance: Advance | None
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
    kept: "KeptPass | None",
    advance: Advance | None,
) -> Iterator[RowBlock]:
    """Yield blocks of rows; tell of each, and keep what was found, when it was taken."""
    queries, num_rows = sum(len(part.queries) for part in parts), parts[0].source.num_rows
    for block in blocks:
        if kept is not None:
            kept.folder.check(block)
        yield block
        if advance is not None:
            advance(block.stop - done, queries)
        done = block.stop
        if kept is not None and kept.is_end(block):
            kept.save(parts, done)
    if kept is not None and done < num_rows:
        kept.save(parts, num_rows)
    if advance is not None:
        advance(num_rows - done, 0)


@dataclass(frozen=True)
class Cut:
    """How a table is read within a limit of memory.

    Attributes
    ----------
    block_rows : int
        Rows that are read at once.
    per_pass : int
        Queries that one pass over the file serves.
    gives_back : bool
        Whether pages of the file are given back: all of them, where it is larger than the limit.
    pairs : int
        Candidates of queries that name their own, which are looked for at once.
    """

    block_rows: int
    per_pass: int
    gives_back: bool
    pairs: int

    @classmethod
    def of(cls, table: Rows, limit: int, dim: int, query_bytes: int) -> "Cut":
        """Return the cut within a limit, for a model of ``dim`` features and queries of a size.

        Raises
        ------
        ValueError
            If not even one row and one query find room.
        """
        stored = table.row_bytes
        row_bytes = max(1, BUFFERS * stored + 8 + 8 * dim)  # with its factor and its id
        if limit < row_bytes + query_bytes:
            raise ValueError(
                f"max_memory must be at least {row_bytes + query_bytes:,} bytes here, for one row "
                f"and one query; got {limit:,}"
            )
        most = BLOCK_BYTES // max(1, stored)
        rows = max(1, min(most, limit // 4 // row_bytes, max(1, len(table))))
        queries = max(1, (limit - rows * row_bytes) // query_bytes)
        pairs = max(1, limit // 4 // _PAIR_BYTES)
        return cls(rows, queries, len(table) * stored > limit, pairs)

    def reader(self, table: Rows) -> RowReader:
        """Return what reads the whole table so."""
        return RowReader(table, 0, len(table), self.block_rows, self.gives_back)


@dataclass(frozen=True)
class KeptPass:
    """What one pass of a call found so far, in the folder of the call.

    Attributes
    ----------
    folder : Partial
    number : int
        Of the pass.
    num_rows : int
        Rows of the table.
    """

    folder: Partial
    number: int
    num_rows: int

    def load(self, parts: Sequence[Accumulator]) -> int:
        """Fill in what was found, and return the row that the pass goes on from."""
        states = [part.state for part in parts]
        done = self.folder.load(self.number, [it for own in states for it in own])
        for part, own in zip(parts, states, strict=True):
            part.restore(own)
        return done

    def is_end(self, block: RowBlock) -> bool:
        """Return whether a range ends with a block, after which what was found is kept."""
        step = max(self.folder.block_rows, -(-self.num_rows // _RANGES))
        return block.stop >= self.num_rows or block.stop // step > block.start // step

    def save(self, parts: Sequence[Accumulator], done: int) -> None:
        """Keep what was found up to a row."""
        self.folder.save(self.number, [it for part in parts for it in part.state], done)


@contextmanager
def keeping(
    folder: Any, table: Rows, cut: Cut, fingerprint: Callable[[], str]
) -> Iterator[tuple[Partial | None, Cut]]:
    """Keep in a folder, if any, what passes find; the cut is that of the call that made it.

    Raises
    ------
    ValueError, OSError
        As :class:`kgfast.eval.partial.Partial`; if another process uses the folder.
    """
    if folder is None:
        yield None, cut
        return
    with using(folder) as path:
        kept = Partial(path, table, fingerprint(), cut.per_pass, cut.block_rows)
        yield kept, replace(cut, per_pass=kept.per_pass, block_rows=kept.block_rows)


def fingerprint_of(kind: str, model: Any, table: Rows, *asked: Any) -> Fingerprint:
    """Begin the fingerprint of a call with its model and table, of which Partial has the rest."""
    found = Fingerprint()
    found.add(kind, type(model).__name__, model.score, table.shape, table.dtype, table.facts)
    few = min(_SAMPLE, len(table))
    ids = torch.arange(few, dtype=torch.int64, device=CPU) * len(table) // max(1, few)
    found.add(table.rows(ids), *state_of(model), *asked)
    return found


def add_queries(found: Fingerprint, source: InRows, anchors: Tensor, others: Tensor) -> None:
    """Add all queries of a source to a fingerprint; they are made some at a time."""
    for rows in zip(anchors.split(_PART), others.split(_PART), strict=True):
        found.add(source.vectors(*rows))
