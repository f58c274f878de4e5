"""Where candidates are: the source of a side, which meets queries a block of candidates at a time.

Counts add, and the best of two blocks are merged: so each block is a small table of its own, and
what was found in all blocks is what one sweep over the whole table finds.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from kgfast.eval.batches import prepared_candidates
from kgfast.eval.index import Index, panels_of
from kgfast.eval.queries import CPU, Queries, among, among_rows, between, within
from kgfast.eval.rows import RowReader, local_model
from kgfast.graph.ids import INT64_MAX
from kgfast.kernels.checks import Checks, NonFiniteError, nonfinite_error
from kgfast.kernels.operands import Counts, Known, Lists, Operands, Prepared
from kgfast.kernels.scores import get_score
from kgfast.models.base import Candidates, Side, candidates_at, is_nested
from kgfast.models.evaluated import evaluated_queries
from kgfast.ops import run
from kgfast.ops.checks import check_queries
from kgfast.tables.prefetch import RowBlock

_SCORED_BYTES = 8 << 20  # of targets that are scored at once, as float64

Crops = dict[int | None, int | None]  # of the model -> of the operator
Found = tuple[Tensor, Tensor]  # scores and ids, [B, k]
Part = TypeVar("Part")


class CandidateSource(ABC):
    """Candidates of one side, at the crops that share a sweep.

    Attributes
    ----------
    device : torch.device
        Where queries are made and candidates are.
    num_rows : int
        Rows of the table that candidates are of.
    sorted_ids : Tensor or None
        Only these are candidates, of queries that have no ids of their own.
    num_candidates : int
    num_crops : int
    is_whole : bool
        Whether one block holds all candidates: what is found there needs no merging.
    has_lists : bool
        Whether queries may have lists of candidates; else they are asked for one list at a time.
    batch_size : int
        Queries that are asked for at once, at most.
    span : (int, int) or None
        The rows that are candidates here, where others are elsewhere.
    home : torch.device
        Where ids of queries are, and what they find is kept.
    """

    model: Any
    side: Side
    device: torch.device
    num_rows: int
    num_crops: int
    allows_nan: bool
    sorted_ids: Tensor | None = None
    is_whole: bool = False
    has_lists: bool = True
    batch_size: int = INT64_MAX
    span: tuple[int, int] | None = None
    home: torch.device = CPU

    @property
    def num_candidates(self) -> int:
        """How many candidates there are."""
        return self.num_rows if self.sorted_ids is None else len(self.sorted_ids)

    def passes(self, parts: list[Part]) -> list[list[Part]]:
        """Return the parts that are served together, by the same blocks."""
        return [parts]

    @abstractmethod
    def prepare(self, queries: Queries) -> None:
        """Make what all blocks read of queries: their vectors, and the scores of their targets."""

    @abstractmethod
    def blocks(self, parts: Sequence[Queries], first: int) -> AbstractContextManager[Iterator[Any]]:
        """Open the blocks from a row on that hold candidates of some of the parts, in order."""

    @abstractmethod
    def counts(self, queries: Queries, block: Any) -> Counts | None:
        """Count the candidates of a block that beat or equal the targets, ``[C, B]`` each.

        None where the block holds no candidates.
        """

    @abstractmethod
    def best(self, queries: Queries, block: Any, k: int) -> Found | None:
        """Find the best answers of a block; None where it holds no candidates.

        Equal answers stand by ascending id, and places without an answer hold id -1.
        """


class Swept(CandidateSource):
    """A source whose scores a sweep makes of queries and the rows of a table."""

    def __init__(self, model: Any, side: Side, crops: Crops, *, allows_nan: bool = False) -> None:
        self.model, self.side, self.allows_nan = model, side, allows_nan
        self.num_crops = len(crops)
        self.dims = tuple(it for it in crops.values() if it is not None) or None
        # Queries and candidates of several crops are those of the whole model.
        self.dim = next(iter(crops)) if len(crops) == 1 else None

    def checks(self) -> Checks:
        """Return the checks of one call of an operator."""
        return run.checks_for(self.device, allows_nan=self.allows_nan)

    def operands(self, queries: Queries, candidates: Prepared) -> Operands:
        """Return the queries with some candidates, checked."""
        assert queries.vectors is not None
        check_queries(queries.vectors, candidates)
        return Operands(queries.vectors, candidates, self.dims)

    def _one_crop(self, found: Found) -> Found:
        return found if self.dims is None else (found[0][0], found[1][0])


class InMemory(Swept):
    """The candidates of a model in memory: one block, read in place, whose facts are known.

    Parameters
    ----------
    model, side, crops, allows_nan
    ids : Tensor, optional
        Only these are candidates, in any order, on any device.
    index : Index, optional
    """

    is_whole = True

    def __init__(
        self,
        model: Any,
        side: Side,
        crops: Crops,
        ids: Tensor | None = None,
        *,
        allows_nan: bool = False,
        index: Index | None = None,
    ) -> None:
        super().__init__(model, side, crops, allows_nan=allows_nan)
        candidates = candidates_at(model, side, self.dim)
        panels = panels_of(index, model, candidates, side, self.dim)
        self.prepared = prepared_candidates(
            model, candidates, ids, self.dims, allows_nan=allows_nan, panels=panels
        )
        self.sorted_ids = self.prepared.sorted_ids
        self.device = self.home = self.prepared.table.device
        self.num_rows = self.prepared.num_rows

    def prepare(self, queries: Queries) -> None:
        """Make the queries; the sweep scores targets itself."""
        asked = queries.anchors, queries.others
        queries.vectors = evaluated_queries(self.model, *asked, self.side, self.dim)

    def blocks(
        self, parts: Sequence[Queries], first: int
    ) -> AbstractContextManager[Iterator[Prepared]]:
        """Return the one block."""
        return nullcontext(iter((self.prepared,)))

    def counts(self, queries: Queries, block: Prepared) -> Counts:
        """Count all candidates."""
        assert queries.targets is not None
        assert queries.known is not None
        operands = self.operands(queries, self._of(queries, block))
        asked = queries.targets, queries.known, self.checks(), queries.lists
        try:
            return run.rank_counts(operands, *asked)
        except NonFiniteError:
            queries.check_finite()
            raise

    def best(self, queries: Queries, block: Prepared, k: int) -> Found:
        """Find the best answers."""
        operands = self.operands(queries, self._of(queries, block))
        try:
            found = run.topk(operands, k, queries.known, self.checks(), queries.lists)
        except NonFiniteError:
            queries.check_finite()
            raise
        return self._one_crop(found)

    def _of(self, queries: Queries, block: Prepared) -> Prepared:
        return block if queries.ids is None else block.only(queries.ids)


class Gathered(NamedTuple):
    """Some rows that lists of candidates name, by ascending ids."""

    ids: Tensor
    lists: Lists
    start: int  # the rows that are behind this block, for progress
    stop: int


class InRows(Swept):
    """Rows of a model's entities that are read in blocks: of a file, a shard, or a range of either.

    Queries are made of the rows of their anchors alone, and targets scored by their own.

    Parameters
    ----------
    model, side, crops, allows_nan
    reader : RowReader
        The rows that are candidates here.
    ids : Tensor, optional
        Ascending, on the host: only these are candidates.
    """

    def __init__(
        self,
        model: Any,
        side: Side,
        crops: Crops,
        reader: RowReader,
        ids: Tensor | None = None,
        *,
        allows_nan: bool = False,
    ) -> None:
        super().__init__(model, side, crops, allows_nan=allows_nan)
        self.reader, self.device, self.num_rows = reader, reader.device, reader.num_rows
        self.span = None if reader.is_whole else (reader.start, reader.stop)
        self.sorted_ids = ids
        self._whole: Candidates | None = None
        self._has_rows = reader.table is not None and hasattr(model, "with_entity")
        self._whole_bias = not self._has_rows or self._bias_is_of_all()
        self._block: tuple[RowBlock, Prepared] | None = None

    def vectors(self, anchors: Tensor, others: Tensor) -> Tensor:
        """Make queries of the rows of their anchors, ``[B, F]``."""
        local = self.model
        if self.reader.table is not None:
            local = local_model(self.model, self.reader.table, anchors)
        asked = anchors.to(self.device), others.to(self.device)
        return evaluated_queries(local, *asked, self.side, self.dim)

    def prepare(self, queries: Queries) -> None:
        """Make the queries; where they rank targets, score each by its own row alone."""
        queries.vectors = self.vectors(queries.anchors, queries.others)
        if queries.targets is None:
            return
        if queries.lists is None:
            queries.target_scores = self.target_scores(queries)
        else:
            queries.target_rows = self.reader.rows(queries.targets.unique())

    def target_scores(self, queries: Queries) -> Tensor:
        """Return canonical scores of the targets, float64 ``[C, B]``."""
        targets = queries.targets
        assert targets is not None
        step = max(1, _SCORED_BYTES // (8 * self.reader.width))
        parts = []
        for first in range(0, max(1, len(targets)), step):
            some = slice(first, first + step)
            ids, places = targets[some].unique(return_inverse=True)
            with self._named(queries, ids.__getitem__):
                operands = self.operands(queries, self.of(ids)).of_queries(some)
                found = run.target_scores(operands, places.to(self.device), self.checks())
            parts.append(found)
        return torch.cat(parts, 1)

    def blocks(
        self, parts: Sequence[Queries], first: int
    ) -> AbstractContextManager[Iterator[RowBlock | Gathered]]:
        """Open the blocks that hold candidates; of lists, the rows that they name."""
        lists = parts[0].lists
        if lists is not None:
            if self.span is not None:
                lists = Lists(*among_rows(lists, *self.span))
            return nullcontext(pieces_of(lists, self.reader.block_rows, self.num_rows))

        def is_needed(start: int, stop: int) -> bool:
            return any(_holds_some(self._ids_of(part), start, stop) for part in parts)

        return self.reader.blocks(first, is_needed)

    def counts(self, queries: Queries, block: RowBlock | Gathered) -> Counts | None:
        """Count the candidates of a block; None where it holds none."""
        assert queries.targets is not None
        assert queries.known is not None
        if isinstance(block, Gathered):
            return self._counts_of_lists(queries, block)
        candidates = self._among(queries, block)
        if candidates is None:
            return None
        start, stop = block.start, block.stop
        inside = (queries.targets >= start) & (queries.targets < stop)
        places = torch.where(inside, queries.targets - start, -1).to(self.device)
        known = self._here(within(queries.known, start, stop))
        with self._named(queries, lambda row: row + start):
            operands, scores = self.operands(queries, candidates), queries.target_scores
            checks = self.checks()
            return run.rank_counts(operands, places, known, checks, target_scores=scores)

    def best(self, queries: Queries, block: RowBlock | Gathered, k: int) -> Found | None:
        """Find the best answers of a block; None where it holds no candidates."""
        if isinstance(block, Gathered):
            return self._best_of_lists(queries, block, k)
        candidates, start = self._among(queries, block), block.start
        if candidates is None:
            return None
        known = queries.known
        known = None if known is None else self._here(within(known, start, block.stop))
        with self._named(queries, lambda row: row + start):
            operands = self.operands(queries, candidates)
            scores, ids = self._one_crop(run.topk(operands, k, known, self.checks()))
        return scores, torch.where(ids < 0, ids, ids + start)

    def of(self, ids: Tensor, more: tuple[Tensor, Tensor | None] | None = None) -> Prepared:
        """Return the rows of some ids as candidates of their own, by their places among these.

        ``more``: other ids, and their rows that were read before, which follow.
        """
        rows = self.reader.rows(ids)
        if more is not None:
            ids = torch.cat([ids, more[0]])
            rows = None if rows is None or more[1] is None else torch.cat([rows, more[1]])
        return self._made(rows, ids)

    @cached_property
    def query_width(self) -> int:
        """Columns of a query."""
        few = self._of_zeros() if self._has_rows else self._of_all()
        score = get_score(self.model.score)
        return score.query_width(few.table.shape[1], has_factor=few.factor is not None)

    def constants(self) -> list[Tensor]:
        """Return the bias and the factor of the candidates, as far as no rows are needed."""
        found = self._of_zeros() if self._has_rows else self._of_all()
        return [it for it in (found.bias, found.factor) if it is not None]

    def _counts_of_lists(self, queries: Queries, block: Gathered) -> Counts:
        assert queries.targets is not None
        assert queries.known is not None
        targets, own = queries.targets.unique(return_inverse=True)
        inside = torch.isin(queries.targets, block.ids)
        there = torch.searchsorted(block.ids, queries.targets)
        places = torch.where(inside, there, len(block.ids) + own).to(self.device)
        every = torch.cat([block.ids, targets])
        with self._named(queries, every.__getitem__):
            candidates = self.of(block.ids, (targets, queries.target_rows))
            operands = self.operands(queries, candidates)
            known = self._here(among(queries.known, block.ids))
            lists = Lists(*(it.to(self.device) for it in block.lists))
            return run.rank_counts(operands, places, known, self.checks(), lists)

    def _best_of_lists(self, queries: Queries, block: Gathered, k: int) -> Found | None:
        known = queries.known
        with self._named(queries, block.ids.__getitem__):
            operands = self.operands(queries, self.of(block.ids))
            known = None if known is None else self._here(among(known, block.ids))
            lists = Lists(*(it.to(self.device) for it in block.lists))
            scores, ids = self._one_crop(run.topk(operands, k, known, self.checks(), lists))
        if not len(block.ids):
            return None
        own = block.ids.to(ids.device)
        return scores, torch.where(ids < 0, ids, own[ids.clamp(min=0)])

    def _among(self, queries: Queries, block: RowBlock) -> Prepared | None:
        """Return the rows of a block that are candidates of some queries; None where none is."""
        ids = self._ids_of(queries)
        if ids is None:
            return self._at(queries, block)
        first, last = between(ids, block.start, block.stop)
        if first == last:
            return None
        own = ids[first:last] - block.start
        return self._at(queries, block).only(own.to(self.device))

    def _ids_of(self, queries: Queries) -> Tensor | None:
        return self.sorted_ids if queries.ids is None else queries.ids

    def _here(self, known: Known) -> Known:
        return Known(*(part.to(self.device) for part in known))

    def _at(self, queries: Queries, block: RowBlock) -> Prepared:
        """Return the rows of a block as candidates; they are kept until another is asked for."""
        if self._block is None or self._block[0] is not block:
            start = block.start
            with self._named(queries, lambda row: row + start):
                self._block = block, self._made(block.rows, slice(start, block.stop))
        return self._block[1]

    def _made(self, rows: Tensor | None, which: slice | Tensor) -> Prepared:
        """Return the candidates that rows are; ``which``: their ids in the whole table."""
        if rows is not None and self._has_rows:
            found = candidates_at(self.model.with_entity(rows), self.side, self.dim)
            if self.reader.is_part and not _is_part(found.table, rows):
                raise NotImplementedError(
                    f"{type(self.model).__name__} computes its candidates from all entities: it is "
                    f"ranked whole, by kgfast.rank"
                )
        else:
            whole = self._of_all()
            factor = None if whole.factor is None else whole.factor[which]
            own = whole.table[which] if rows is None or self.reader.table is None else rows
            found = Candidates(own, whole.bias, factor)
        if self._whole_bias and found.bias is not None and len(found.bias) > 1:
            found = replace(found, bias=found.bias.detach()[which])
        return prepared_candidates(self.model, found, None, self.dims, allows_nan=self.allows_nan)

    def _of_all(self) -> Candidates:
        """Return the candidates of a model that takes no other rows, or has them all in memory."""
        if self._whole is None:
            own = () if self.dim is None or is_nested(self.model) else (self.dim,)
            found = self.model.candidates(self.side, *own)
            self._whole = found if hasattr(found, "table") else Candidates(found)
        return self._whole

    def _of_zeros(self) -> Candidates:
        """Return the candidates of the model of a few rows."""
        shape = (2 + (int(self.model.num_entities) == 2), self.reader.width)
        few = torch.zeros(shape, dtype=self.reader.dtype, device=self.device)
        return candidates_at(self.model.with_entity(few), self.side, self.dim)

    def _bias_is_of_all(self) -> bool:
        """Return whether the bias of the model of a few rows is still that of all entities."""
        bias = self._of_zeros().bias
        return bias is not None and len(bias) == int(self.model.num_entities)

    @contextmanager
    def _named(self, queries: Queries, id_of: Any) -> Iterator[None]:
        """Name the query, or the row of the table, that is not finite; ``id_of`` a row within."""
        try:
            yield
        except NonFiniteError as error:
            queries.check_finite()
            if error.row is None or error.name not in ("candidates", "factor", "bias"):
                raise
            row = int(id_of(error.row))
            if self.reader.table is None:
                raise nonfinite_error(error.name, row) from None
            what = self.reader.table.where(row) if error.name != "bias" else f"bias: row {row}"
            raise not_finite(what) from None


def _is_part(table: Tensor, rows: Tensor) -> bool:
    """Return whether a table is rows, or columns of them, in place."""
    return table.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()


def not_finite(what: str) -> NonFiniteError:
    """Return the error of a row of a table, in words."""
    return NonFiniteError(
        f"{what} holds a NaN or an infinity; every number that takes part must be finite "
        f'(nan="worst" ranks it last)'
    )


def pieces_of(lists: Lists, rows: int, num_rows: int) -> Iterator[Gathered]:
    """Cut lists by ids, so that a table of ``num_rows`` is read once, from its first row on.

    Yields ascending ids, at most ``rows`` at a time, and what each list has of them, by their
    places there; lists without any id are one empty piece.
    """
    ids, places = lists.indices.unique(return_inverse=True)
    owners = torch.repeat_interleave(lists.indptr.diff(), output_size=len(places))
    order = places.argsort(stable=True)
    pieces = ids.split(rows)
    bounds = torch.arange(len(pieces) + 1, dtype=torch.int64, device=CPU) * rows
    ends = torch.searchsorted(places[order], bounds)
    done = 0
    for number, piece in enumerate(pieces):
        pairs = order[ends[number] : ends[number + 1]].sort().values
        counts = owners[pairs].bincount(minlength=len(lists.indptr) - 1)
        indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        stop = int(piece[-1]) + 1 if number < len(pieces) - 1 else num_rows
        yield Gathered(piece, Lists(indptr, places[pairs] - number * rows), done, stop)
        done = stop


def _holds_some(ids: Tensor | None, start: int, stop: int) -> bool:
    """Return whether a range of rows holds candidates."""
    if ids is None:
        return True
    first, last = between(ids, start, stop)
    return first < last
