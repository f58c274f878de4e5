"""One pass over a table in files: whom it serves, what it reads, and what it keeps.

Counts add, and the best of two blocks are merged: so each block of rows is a small table of its
own, and what was found in all blocks is what one sweep over the whole table finds.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.partial import BLOCK_BYTES, Fingerprint, Partial, using
from kgfast.eval.queries import CPU
from kgfast.eval.rows import state_of
from kgfast.eval.streaming import Pool
from kgfast.graph import KnownTriples
from kgfast.kernels.checks import Checks, NonFiniteError
from kgfast.kernels.operands import Known, Lists, Operands, Prepared
from kgfast.models.base import Side
from kgfast.ops import run
from kgfast.ops.checks import check_queries
from kgfast.tables import Rows
from kgfast.tables.prefetch import BUFFERS, Block, prefetched

_RANGES = 256  # after which what was found is kept, at most
_SAMPLE = 64  # rows of a table whose files are known by size and time of change
_PAIR_BYTES = 128  # of a candidate that one query names, while it is looked for


class Ask:
    """Queries of one side that share their candidates, and what was found for them so far.

    Parameters
    ----------
    pool : Pool
    anchors, relations : Tensor
        int64 ``[B]``, on the host.
    known : KnownTriples or None
    ids : Tensor, optional
        Ascending: only these are candidates.

    Attributes
    ----------
    queries : Tensor
        ``[B, F]``, where the rows are.
    known : Known
        On the host.
    state : list of Tensor
        What was found, on the host: changed in place by each block.
    """

    state: list[Tensor]

    def __init__(
        self,
        pool: Pool,
        anchors: Tensor,
        relations: Tensor,
        known: KnownTriples | None,
        ids: Tensor | None,
    ) -> None:
        self.pool, self.ids = pool, ids
        self.queries = pool.queries(anchors, relations)
        self.known = pool.known(known, anchors, relations)

    def __len__(self) -> int:
        """How many queries these are."""
        return len(self.queries)

    def take(self, block: Block) -> None:
        """Add what is found in a block, if it holds candidates."""
        start, stop = block.start, block.stop
        if not self.needs(start, stop):
            return
        with self.named(lambda row: row + start):
            prepared = self.pool.at(block)
            if self.ids is not None:
                first, last = _between(self.ids, start, stop)
                prepared = prepared.only((self.ids[first:last] - start).to(self.pool.device))
            known = self.here(within(self.known, start, stop))
            self.add(block, self.operands(prepared), known)

    def add(self, block: Block, operands: Operands, known: Known) -> None:
        """Add what a block's candidates are to the queries; known answers are its rows."""
        raise NotImplementedError

    def check_finite_queries(self) -> None:
        """Raise for the first query that is not finite, in the caller's words."""
        raise NotImplementedError

    def needs(self, start: int, stop: int) -> bool:
        """Whether a range of rows holds candidates."""
        if self.ids is None:
            return True
        first, last = _between(self.ids, start, stop)
        return first < last

    def operands(self, prepared: Prepared) -> Operands:
        """The queries, with some candidates."""
        check_queries(self.queries, prepared)
        return Operands(self.queries, prepared, self.pool.dims)

    def here(self, known: Known) -> Known:
        """Known answers where the rows are."""
        return Known(*(part.to(self.pool.device) for part in known))

    def checks(self) -> Checks:
        """Those of one call."""
        return run.checks_for(self.pool.device, allows_nan=self.pool.allows_nan)

    @contextmanager
    def named(self, id_of: Any) -> Iterator[None]:
        """Name the query, or the row of the table, that is not finite; ``id_of`` a row within."""
        try:
            yield
        except NonFiniteError as error:
            self.check_finite_queries()
            if error.row is None or error.name not in ("candidates", "factor", "bias"):
                raise
            row = int(id_of(error.row))
            what = self.pool.table.where(row) if error.name != "bias" else f"bias: row {row}"
            raise not_finite(what) from None


def not_finite(what: str) -> NonFiniteError:
    """The error of a row of a table, in words."""
    return NonFiniteError(
        f"{what} holds a NaN or an infinity; every number that takes part must be finite "
        f'(nan="worst" ranks it last)'
    )


def within(known: Known, first: int, last: int) -> Known:
    """The known answers that are among rows ``first .. last - 1``, counted from the first."""
    inside = (known.indices >= first) & (known.indices < last)
    before = torch.nn.functional.pad(inside.cumsum(0), (1, 0))
    return Known(before[known.indptr], known.indices[inside] - first)


def among(known: Known, ids: Tensor) -> Known:
    """The known answers that are among ascending ``ids``, by their places there."""
    inside = torch.isin(known.indices, ids)
    before = torch.nn.functional.pad(inside.cumsum(0), (1, 0))
    return Known(before[known.indptr], torch.searchsorted(ids, known.indices[inside]))


def pieces_of(lists: Lists, rows: int) -> Iterator[tuple[Tensor, Lists]]:
    """Lists cut by ids, so that a table is read once, from its first row on.

    Yields ascending ids, at most so many at a time, and what each list has of them, by their places
    there; lists without any id are one empty piece.
    """
    ids, places = lists.indices.unique(return_inverse=True)
    owners = torch.repeat_interleave(lists.indptr.diff(), output_size=len(places))
    order = places.argsort(stable=True)
    pieces = ids.split(rows)
    bounds = torch.arange(len(pieces) + 1, dtype=torch.int64, device=CPU) * rows
    ends = torch.searchsorted(places[order], bounds)
    for number, piece in enumerate(pieces):
        pairs = order[ends[number] : ends[number + 1]].sort().values
        counts = owners[pairs].bincount(minlength=len(lists.indptr) - 1)
        indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        yield piece, Lists(indptr, places[pairs] - number * rows)


def _between(ids: Tensor, start: int, stop: int) -> tuple[int, int]:
    """Which of ascending ids lie within a range."""
    ends = torch.tensor([start, stop], dtype=torch.int64, device=CPU)
    first, last = torch.searchsorted(ids, ends).tolist()
    return first, last


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
    def of(cls, table: Rows, limit: int, row_bytes: int, query_bytes: int) -> "Cut":
        """The cut within a limit, for queries of so many bytes and rows that take so many.

        Raises
        ------
        ValueError
            If not even one row and one query find room.
        """
        stored = table.row_bytes
        row_bytes = max(1, BUFFERS * stored + row_bytes)
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

    def ranges(self, first: int, count: int) -> list[tuple[int, int]]:
        """The blocks of rows ``first .. count - 1``."""
        return [
            (start, min(start + self.block_rows, count))
            for start in range(first, count, self.block_rows)
        ]

    def is_end(self, stop: int, start: int, count: int) -> bool:
        """Whether a range ends with a block, after which what was found is kept."""
        step = max(self.block_rows, -(-count // _RANGES))
        return stop >= count or stop // step > start // step


def mean_answers(known: KnownTriples | None, asked: tuple[Tensor, Tensor], side: Side) -> int:
    """How many known answers a query of a side has, on average."""
    if known is None or not len(asked[0]):
        return 0
    anchors, relations = (ids.contiguous().to(known.device) for ids in asked)
    return int(known.counts(anchors, relations, side).double().mean())


def sweep(
    table: Rows, cut: Cut, asks: Sequence[Ask], kept: tuple[Partial, int] | None, advance: Any
) -> None:
    """Read the table once, and let all who ask take what they find.

    Parameters
    ----------
    table : Rows
    cut : Cut
    asks : sequence of Ask
    kept : (Partial, int), optional
        Where what is found is kept after each range, as which pass: it goes on from there.
    advance : callable
        Told of rows, and of the queries that they met.
    """
    state = [part for ask in asks for part in ask.state]
    count, done, queries = len(table), 0, sum(len(ask) for ask in asks)
    if kept is not None:
        done = kept[0].load(kept[1], state)
        advance(done, 0)
    ranges = [span for span in cut.ranges(done, count) if any(ask.needs(*span) for ask in asks)]
    with prefetched(table, ranges, gives_back=cut.gives_back) as blocks:
        for block in blocks:
            if kept is not None:
                kept[0].check(block)
            for ask in asks:
                ask.take(block)
            advance(block.stop - done, queries)
            done = block.stop
            if kept is not None and cut.is_end(done, block.start, count):
                kept[0].save(kept[1], state, done)
    if kept is not None and done < count:
        kept[0].save(kept[1], state, count)
    advance(count - done, 0)


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
