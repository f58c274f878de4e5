"""What rank() and topk() ask of a model whose entities are a table in files.

Its queries are made of the rows of their anchors alone, and its candidates a block of rows at a
time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.batches import prepared_candidates
from kgfast.eval.queries import CPU
from kgfast.eval.rows import local_model
from kgfast.graph import KnownTriples
from kgfast.kernels.operands import Known, Prepared
from kgfast.models.base import Candidates, Side, candidates_at, is_nested
from kgfast.models.evaluated import evaluated_queries
from kgfast.tables import Rows
from kgfast.tables.prefetch import Block

_PART = 1 << 12  # queries of a fingerprint that are made at once


class Pool:
    """One side and crop of a model: its queries, and its candidates, of the rows that are read.

    Parameters
    ----------
    model : Model
    table : Rows
        Its entities.
    side : {"head", "tail"}
    dim : int, optional
        The crop of the model.
    dims : sequence of int, optional
        Those of the operator.
    allows_nan : bool
    """

    def __init__(
        self,
        model: Any,
        table: Rows,
        side: Side,
        dim: int | None,
        dims: Sequence[int] | None,
        *,
        allows_nan: bool = False,
    ) -> None:
        self.model, self.table, self.side, self.dim = model, table, side, dim
        self.dims = None if dims is None else tuple(dims)
        self.allows_nan = allows_nan
        self._has_rows = hasattr(model, "with_entity")
        self._whole_bias = not self._has_rows or self._bias_is_of_all()
        self._block: tuple[Block, Prepared] | None = None

    def queries(self, anchors: Tensor, relations: Tensor) -> Tensor:
        """``[B, F]``, of the rows of the anchors."""
        local, device = local_model(self.model, self.table, anchors), self.device
        asked = anchors.to(device), relations.to(device)
        return evaluated_queries(local, *asked, self.side, self.dim)

    def queries_in_parts(self, anchors: Tensor, relations: Tensor) -> Iterator[Tensor]:
        """Make all queries, some of them at a time."""
        for rows in zip(anchors.split(_PART), relations.split(_PART), strict=True):
            yield self.queries(*rows)

    def constants(self) -> list[Tensor]:
        """Return the bias and the factor of the candidates, as far as no rows are needed."""
        found = self._of_zeros() if self._has_rows else self._whole()
        return [it for it in (found.bias, found.factor) if it is not None]

    @property
    def device(self) -> torch.device:
        """Where rows are handed out, and queries made."""
        return self.table.device

    def known(self, known: KnownTriples | None, anchors: Tensor, relations: Tensor) -> Known:
        """The known answers of queries, CSR on the host."""
        if known is None:
            zeros = torch.zeros(len(anchors) + 1, dtype=torch.int64, device=CPU)
            return Known(zeros, zeros[:0])
        found = known.exclude(anchors.to(known.device), relations.to(known.device), self.side)
        return Known(*(part.cpu() for part in found))

    def at(self, block: Block) -> Prepared:
        """The rows of a block as candidates; kept until another is asked for."""
        if self._block is None or self._block[0] is not block:
            self._block = block, self._made(block.rows, slice(block.start, block.stop))
        return self._block[1]

    def of(self, ids: Tensor, held: tuple[Tensor, Tensor] | None = None) -> Prepared:
        """The rows of some ids as candidates of their own, by their places among these.

        ``held``: ids of rows that were read before, and these, which follow.
        """
        rows = self.table.rows(ids)
        if held is not None:
            ids, rows = torch.cat([ids, held[0]]), torch.cat([rows, held[1]])
        return self._made(rows, ids)

    def _made(self, rows: Tensor, which: slice | Tensor) -> Prepared:
        """The candidates that rows are; ``which``: their ids in the whole table."""
        if self._has_rows:
            found = candidates_at(self.model.with_entity(rows), self.side, self.dim)
        else:
            whole = self._whole()
            factor = None if whole.factor is None else whole.factor[which]
            found = Candidates(rows, whole.bias, factor)
        if self._whole_bias and found.bias is not None and len(found.bias) > 1:
            found = replace(found, bias=found.bias.detach()[which])
        return prepared_candidates(self.model, found, None, self.dims, allows_nan=self.allows_nan)

    def _whole(self) -> Candidates:
        """The candidates of a model that takes no other rows."""
        own = () if self.dim is None or is_nested(self.model) else (self.dim,)
        found = self.model.candidates(self.side, *own)
        return found if hasattr(found, "table") else Candidates(found)

    def _of_zeros(self) -> Candidates:
        """The candidates of the model of a few rows."""
        shape = (2 + (int(self.model.num_entities) == 2), self.table.shape[1])
        few = torch.zeros(shape, dtype=self.table.dtype, device=self.device)
        return candidates_at(self.model.with_entity(few), self.side, self.dim)

    def _bias_is_of_all(self) -> bool:
        """Whether the bias of the model of a few rows is still that of all entities."""
        bias = self._of_zeros().bias
        return bias is not None and len(bias) == int(self.model.num_entities)
