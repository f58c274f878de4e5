"""Sources of candidates that are rows of a table: of a file, a shard, or a range of either."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast.eval.preparation import prepared_candidates
from kgfast.eval.queries import CPU, Queries, among, among_rows, between, within
from kgfast.eval.rows import RowReader, local_model
from kgfast.eval.sources import Crops, Located, Swept
from kgfast.kernels.checks import NonFiniteError, nonfinite_error
from kgfast.kernels.operands import Known, Lists, Operands, Prepared
from kgfast.kernels.scores import get_score
from kgfast.models.base import Candidates, Side, is_nested
from kgfast.models.evaluated import evaluated_queries
from kgfast.ops import run
from kgfast.ops.checks import check_queries
from kgfast.tables.prefetch import RowBlock

_SCORED_BYTES = 8 << 20  # bytes of float64 rows of targets that are scored at once


class Gathered(NamedTuple):
    """Rows that lists of candidates name, by ascending ids."""

    ids: Tensor
    lists: Lists
    start: int  # number of rows before this block, for progress
    stop: int


class InRows(Swept):
    """Rows of a model's entities, read in blocks from a file, a shard, or a range of either.

    Queries are made from the rows of the anchors alone, and targets are scored from the rows of the
    targets. ``ids`` are the only candidates, ascending, on the host.
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
        self._has_rows = reader.table is not None and hasattr(model, "with_entity")
        self._block: tuple[RowBlock, Prepared] | None = None

    def vectors(self, anchors: Tensor, others: Tensor) -> Tensor:
        """Make queries from the rows of the anchors, ``[B, F]``."""
        local = self.model
        if self.reader.table is not None:
            local = local_model(self.model, self.reader.table.rows, anchors)
        given = anchors.to(self.device), others.to(self.device)
        return evaluated_queries(local, *given, self.side, self.dim)

    def prepare(self, queries: Queries) -> None:
        """Make the queries; score the targets, or read the targets' rows for lists."""
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
            try:
                operands = self._operands(queries, self._made(self.reader.rows(ids), ids))
                operands = operands.of_queries(some)
                checks = run.checks_for(self.device, allows_nan=self.allows_nan)
                parts.append(run.target_scores(operands, places.to(self.device), checks))
            except NonFiniteError as error:
                raise self._named(error, queries, ids) from None
        return torch.cat(parts, 1)

    def blocks(
        self, parts: Sequence[Queries], first: int
    ) -> AbstractContextManager[Iterator[RowBlock | Gathered]]:
        """Open the blocks that hold candidates; for lists, the rows that lists name."""
        lists = parts[0].lists
        if lists is not None:
            if self.span is not None:
                lists = Lists(*among_rows(lists, *self.span))
            return nullcontext(pieces_of(lists, self.reader.block_rows, self.num_rows))

        def is_needed(start: int, stop: int) -> bool:
            return any(_holds_some(self.ids_of(part), start, stop) for part in parts)

        return self.reader.blocks(first, is_needed)

    def _located(self, queries: Queries, block: RowBlock | Gathered) -> Located | None:
        if isinstance(block, Gathered):
            return self._of_lists(queries, block)
        ids, start, stop = self.ids_of(queries), block.start, block.stop
        first, last = (0, 0) if ids is None else between(ids, start, stop)
        if ids is not None and first == last:
            return None
        if self._block is None or self._block[0] is not block:
            self._block = block, self._made(block.rows, slice(start, stop))
        candidates, targets, known = self._block[1], queries.targets, queries.known
        if ids is not None:
            candidates = candidates.only((ids[first:last] - start).to(self.device))
        if targets is not None:
            inside = (targets >= start) & (targets < stop)
            targets = torch.where(inside, targets - start, -1)
        known = None if known is None else within(known, start, stop)
        return self._here(queries, candidates, targets, known)

    def _of_lists(self, queries: Queries, block: Gathered) -> Located:
        """Return the rows that lists name; the rows of targets, if any, follow these."""
        targets, known, ids = queries.targets, queries.known, block.ids
        rows, places = self.reader.rows(ids), None
        if targets is not None:
            others, place = targets.unique(return_inverse=True)
            inside, there = torch.isin(targets, ids), torch.searchsorted(ids, targets)
            places = torch.where(inside, there, len(ids) + place)
            ids = torch.cat([ids, others])
            if rows is not None and queries.target_rows is not None:
                rows = torch.cat([rows, queries.target_rows])
        known = None if known is None else among(known, block.ids)
        return self._here(queries, self._made(rows, ids), places, known, block.lists)

    def _here(
        self,
        queries: Queries,
        candidates: Prepared,
        targets: Tensor | None,
        known: Known | None,
        lists: Lists | None = None,
    ) -> Located:
        targets = None if targets is None else targets.to(self.device)
        if known is not None:
            known = Known(*(part.to(self.device) for part in known))
        if lists is not None:
            lists = Lists(*(part.to(self.device) for part in lists))
        return Located(self._operands(queries, candidates), targets, known, lists)

    def _operands(self, queries: Queries, candidates: Prepared) -> Operands:
        assert queries.vectors is not None
        check_queries(queries.vectors, candidates)
        return Operands(queries.vectors, candidates, self.dims)

    def _whole_ids(self, block: RowBlock | Gathered, ids: Tensor) -> Tensor:
        if not isinstance(block, Gathered):
            return torch.where(ids < 0, ids, ids + block.start)
        if not len(block.ids):
            return ids
        return torch.where(ids < 0, ids, block.ids.to(ids.device)[ids.clamp(min=0)])

    @property
    def query_width(self) -> int:
        """Number of columns of a query."""
        few, score = self._sample, get_score(self.model.score)
        return score.query_width(few.table.shape[1], has_factor=few.factor is not None)

    def constants(self) -> list[Tensor | None]:
        return [it for it in (self._sample.bias, self._sample.factor) if it is not None]

    def _made(self, rows: Tensor | None, which: slice | Tensor) -> Prepared:
        """Return the candidates of some rows; ``which`` are the ids in the whole table."""
        if rows is not None and self._has_rows:
            found = self._of_rows(rows)
            if self.reader.is_part and not _is_part(found.table, rows):
                raise NotImplementedError(
                    f"{type(self.model).__name__} computes its candidates from all entities: rank "
                    "the whole model by kgfast.rank in one process"
                )
        else:
            whole = self._sample
            factor = None if whole.factor is None else whole.factor[which]
            own = whole.table[which] if rows is None or self.reader.table is None else rows
            found = Candidates(own, whole.bias, factor)
        if self._bias_is_of_all and found.bias is not None and len(found.bias) > 1:
            found = replace(found, bias=found.bias.detach()[which])
        return prepared_candidates(self.model, found, None, self.dims, allows_nan=self.allows_nan)

    @cached_property
    def _sample(self) -> Candidates:
        """Candidates of two or three rows of zeros; of all rows, if a model takes no fewer."""
        if not self._has_rows:
            return self._given(self.model)
        shape = (2 + (int(self.model.num_entities) == 2), self.reader.width)
        return self._of_rows(torch.zeros(shape, dtype=self.reader.dtype, device=self.device))

    @cached_property
    def _bias_is_of_all(self) -> bool:
        """True if the bias of some rows' candidates belongs to all entities."""
        bias = self._sample.bias
        return bias is not None and (
            not self._has_rows or len(bias) == int(self.model.num_entities)
        )

    def _of_rows(self, rows: Tensor) -> Candidates:
        """Return the candidates of a model of some rows; these may still number all entities."""
        found = self._given(self.model.with_entity(rows))
        shape = list(getattr(found.table, "shape", ()))
        if not isinstance(found.table, Tensor) or shape[:1] != [len(rows)] or len(shape) != 2:
            raise ValueError(
                f"{type(self.model).__name__}.with_entity(rows).candidates({self.side!r}) must "
                f"have a row for each of {len(rows)} rows; got {shape or type(found.table)}"
            )
        return found

    def _given(self, model: Any) -> Candidates:
        own = () if self.dim is None or is_nested(model) else (self.dim,)
        found = model.candidates(self.side, *own)
        return found if hasattr(found, "table") else Candidates(found)

    def _named(self, error: NonFiniteError, queries: Queries, block: Any) -> NonFiniteError:
        queries.check_finite()
        if error.row is None or error.name not in ("candidates", "factor", "bias"):
            return error
        ids, row = block, error.row
        if isinstance(block, Gathered):
            ids = block.ids
            if queries.targets is not None:
                ids = torch.cat([ids, queries.targets.unique()])
        row = int(ids[row]) if isinstance(ids, Tensor) else row + block.start
        if self.reader.table is None:
            return nonfinite_error(error.name, row)
        what = self.reader.table.where(row) if error.name != "bias" else f"bias: row {row}"
        return NonFiniteError(
            f"{what} holds a NaN or an infinity; every number that takes part must be finite "
            f'(nan="worst" ranks it last)'
        )


def _is_part(table: Tensor, rows: Tensor) -> bool:
    """Return True if a table is rows, or columns of rows, in place."""
    return table.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()


def pieces_of(lists: Lists, rows: int, num_rows: int) -> Iterator[Gathered]:
    """Cut lists by ids, so that a table of ``num_rows`` is read once, from the first row on.

    Each piece has ascending ids, at most ``rows``, and the part of each list with these ids, as
    places in the piece. Lists without any id are one empty piece.
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
    """Return True if a range of rows holds candidates."""
    if ids is None:
        return True
    first, last = between(ids, start, stop)
    return first < last
