"""Source of candidates that are rows of a table: of a file, a shard, or a range of either."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.preparation import prepared_candidates
from kgfast.eval.queries import Queries, between
from kgfast.eval.rows import RowReader
from kgfast.eval.sources import CandidateSource, Crops
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.operands import Known, Lists, Operands, Prepared
from kgfast.models.base import Side, candidates_at
from kgfast.models.evaluated import evaluated_queries
from kgfast.ops import run
from kgfast.tables.prefetch import RowBlock

_SCORED_BYTES = 8 << 20  # bytes of float64 rows of targets that are scored at once


class InRows(CandidateSource):
    """Rows of a model's entities, read in blocks from a file, a shard, or a range of either.

    Queries are made from the rows of the anchors alone, and targets are scored from the rows of the
    targets. ``ids`` are the only candidates, ascending, on the host. A block is a range of rows, or
    the ascending ids that lists name.
    """

    def __init__(
        self,
        model: Any,
        side: Side,
        crops: Crops,
        reader: RowReader,
        ids: Tensor | None,
        allows_nan: bool,
    ) -> None:
        super().__init__(model, side, crops, allows_nan)
        self.reader, self.table = reader, reader.table
        self.device, self.num_rows = self.table.device, len(self.table)
        self.row_range = None if reader.is_whole else (reader.start, reader.stop)
        self.checks = run.checks_for(self.device, allows_nan=allows_nan)
        self.sorted_ids = ids
        self._block: tuple[RowBlock, Prepared] | None = None

    def vectors(self, anchors: Tensor, others: Tensor) -> Tensor:
        """Make queries from the rows of the anchors, ``[B, F]``."""
        ids, anchors = anchors.unique(return_inverse=True)
        model = self.model.with_entity(self.table.rows(ids))
        columns = anchors.to(self.device), others.to(self.device)
        return evaluated_queries(model, *columns, self.side, self.dim)

    def prepare(self, queries: Queries) -> None:
        """Make the queries; score the targets, unless the rows of lists are read later."""
        queries.vectors = self.vectors(queries.anchors, queries.others)
        if queries.targets is not None and queries.lists is None:
            queries.target_scores = self.target_scores(queries)

    def target_scores(self, queries: Queries) -> Tensor:
        """Return canonical scores of the targets, float64 ``[C, B]``."""
        targets = queries.targets
        assert targets is not None
        step = max(1, _SCORED_BYTES // (8 * self.table.shape[1]))
        scores = []
        for first in range(0, max(1, len(targets)), step):
            some = slice(first, first + step)
            ids, places = targets[some].unique(return_inverse=True)
            try:
                operands = self._operands(queries, self._made(self.table.rows(ids), ids))
                operands = operands.of_queries(some)
                scores.append(run.target_scores(operands, places.to(self.device), self.checks))
            except NonFiniteError as error:
                raise self.named(error, queries, ids) from None
        return torch.cat(scores, 1)

    def blocks(self, results: Sequence[Any]) -> AbstractContextManager[Iterator[RowBlock | Tensor]]:
        """Open the blocks that hold candidates; for lists, the ids of lists and targets."""
        queries = results[0].queries
        if queries.lists is not None:
            ids = queries.lists.indices
            ids = ids if queries.targets is None else torch.cat([ids, queries.targets])
            return nullcontext(iter([ids.unique()]))

        def is_needed(start: int, stop: int) -> bool:
            pools = [result.source.ids_of(result.queries) for result in results]
            return any(ids is None or len(set(between(ids, start, stop))) > 1 for ids in pools)

        return self.reader.blocks(is_needed)

    def _located(self, queries: Queries, block: Any) -> tuple[Operands, Queries] | None:
        targets, known, lists = queries.targets, queries.known, queries.lists
        if lists is not None:
            candidates = self._made(self.table.rows(block), block)
            lists = Lists(lists.indptr, torch.searchsorted(block, lists.indices))
            lists = Lists(*(ids.to(self.device) for ids in lists))
        else:
            ids, start, stop = self.ids_of(queries), block.start, block.stop
            first, last = (0, 0) if ids is None else between(ids, start, stop)
            if ids is not None and first == last:
                return None
            if self._block is None or self._block[0] is not block:
                self._block = block, self._made(block.rows, slice(start, stop))
            candidates = self._block[1]
            if ids is not None:
                candidates = candidates.only((ids[first:last] - start).to(self.device))
        if targets is not None:
            targets = self._places(block, targets).to(self.device)
        if known is not None:
            places = self._places(block, known.indices)
            before = torch.nn.functional.pad((places >= 0).cumsum(0), (1, 0))
            indptr, places = before[known.indptr], places[places >= 0]
            known = Known(indptr.to(self.device), places.to(self.device))
        here = replace(queries, targets=targets, known=known, lists=lists)
        return self._operands(queries, candidates), here

    def _places(self, block: RowBlock | Tensor, ids: Tensor) -> Tensor:
        """Return places in a block for ids of the whole table; -1 for ids of other blocks."""
        if isinstance(block, RowBlock):
            return torch.where((ids >= block.start) & (ids < block.stop), ids - block.start, -1)
        return torch.where(torch.isin(ids, block), torch.searchsorted(block, ids), -1)

    def _whole_ids(self, block: RowBlock | Tensor, ids: Tensor) -> Tensor:
        if isinstance(block, RowBlock):
            return torch.where(ids < 0, ids, ids + block.start)
        if not len(block):
            return ids
        return torch.where(ids < 0, ids, block.to(ids.device)[ids.clamp(min=0)])

    def _made(self, rows: Tensor, which: slice | Tensor) -> Prepared:
        """Return the candidates of some rows; ``which`` are the ids in the whole table."""
        candidates = candidates_at(self.model.with_entity(rows), self.side, self.dim, len(rows))
        storages = {of.untyped_storage().data_ptr() for of in (candidates.table, rows)}
        if self.row_range is not None and len(storages) > 1:  # not rows, or columns, in place
            raise NotImplementedError(
                f"{type(self.model).__name__} computes its candidates from all entities: rank "
                "the whole model by kgfast.rank in one process"
            )
        bias = candidates.bias
        if bias is not None and len(bias) == int(self.model.num_entities) > len(rows):
            candidates = replace(candidates, bias=bias.detach()[which])
        arguments = self.model, candidates, None, self.dims
        return prepared_candidates(*arguments, allows_nan=self.allows_nan)

    def named(self, error: NonFiniteError, queries: Queries, block: Any) -> NonFiniteError:
        queries.check_finite()
        if error.row is None or error.name not in ("candidates", "factor", "bias"):
            return error
        row = error.row + block.start if isinstance(block, RowBlock) else int(block[error.row])
        what = self.table.where(row) if error.name != "bias" else f"bias: row {row}"
        return NonFiniteError(
            f"{what} holds a NaN or an infinity; every number that takes part must be finite "
            f'(nan="worst" ranks it last)'
        )
