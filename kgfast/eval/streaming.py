"""What rank() and topk() share where entities are a table in files: one pass, many queries.

Each block of rows stands behind the rows of the targets in one small table, of which it alone are
the candidates: so every backend scores targets by the definition and counts as ever, and the
integers of all blocks add to those of the whole table.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from kgfast.eval.batches import prepared_candidates
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.operands import Known, Prepared
from kgfast.models.base import Candidates, Side, candidates_at, is_nested
from kgfast.models.blocks import BlockScorer
from kgfast.models.relations import blocks_at
from kgfast.ops.checks import check_ids, check_index, check_unique
from kgfast.tables import Rows, as_rows, is_table
from kgfast.tables.prefetch import BUFFERS, Block, prefetched
from kgfast.tables.shard import Shard

_BLOCK_BYTES = 32 << 20  # of rows that are read at once; nobody works while the first is read
_SAMPLE = 64  # rows that stand for a table
_RANGES = 256  # after which what was found is kept, at most


def entity_table(model: Any) -> Rows | None:
    """The table in files that a model's entities are; None of every other model.

    Raises
    ------
    ValueError
        If this process holds only some of the rows.
    """
    held = getattr(model, "entity", None)
    if not is_table(held) and not isinstance(model, nn.Module):
        held = next((it for it in getattr(model, "__dict__", {}).values() if is_table(it)), None)
    if not is_table(held):
        return None
    if isinstance(held, Shard) and (held.start, held.stop) != (0, held.total_rows):
        raise ValueError(
            f"entities are {held!r}: kgfast.distributed ranks the shards of several processes, and "
            f"kgfast.tables.open([...]) makes one table of those of one process"
        )
    return as_rows(held)


def check_limits(table: Rows | None, max_memory: Any, partial: Any) -> None:
    """That what only tables in files take is not given for another model.

    Raises
    ------
    ValueError
        If it is.
    """
    for name, value in (("max_memory", max_memory), ("partial", partial)):
        if table is None and value is not None:
            raise ValueError(
                f"{name} is of models whose entities are a kgfast.tables.Table: tensors are read "
                f"in place, within 64 MiB"
            )


class LocalModel:
    """A model whose queries know the rows of a few entities, by their ids in the whole table.

    Parameters
    ----------
    model : Model
    table : Rows
        Its entities.
    ids : Tensor
        int64: those that queries will ask for.
    """

    def __init__(self, model: Any, table: Rows, ids: Tensor) -> None:
        self.ids = ids.unique()
        self.model = model.with_entity(table.rows(self.ids))
        self.num_entities, self.num_relations = model.num_entities, model.num_relations
        self.score, self.dim, self.nested = model.score, model.dim, is_nested(model)

    def queries(
        self, anchors: Tensor, relations: Tensor, side: Side, dims: int | None = None
    ) -> Tensor:
        """As of the model; of side relation the second are tails, which are entities too."""
        others = self._own(relations) if side == "relation" else relations
        found: Tensor = self.model.queries(self._own(anchors), others, side, dims=dims)
        return found

    def candidates(self, side: Side, dims: int | None = None) -> Candidates:
        """Those of side relation."""
        return candidates_at(self.model, side, dims)

    def crop_width(self, dim: int) -> int | None:
        """As of the model."""
        width: int | None = self.model.crop_width(dim)
        return width

    def in_blocks(self, side: Side, dims: int | None = None) -> BlockScorer | None:
        """What scores relations of a model that has no queries for them."""
        inner = blocks_at(self.model, side, dims)
        if inner is None:
            return None
        outer, fn = copy.copy(inner), inner.fn

        def scores(anchors: Tensor, others: Tensor, side: Side, ids: Tensor) -> Tensor:
            return fn(self._own(anchors), self._own(others), side, ids)

        scores.__qualname__ = getattr(fn, "__qualname__", type(fn).__qualname__)
        outer.fn = scores
        return outer

    def _own(self, ids: Tensor) -> Tensor:
        return torch.searchsorted(self.ids, ids.contiguous())


def local_model(model: Any, table: Rows, ids: Tensor) -> Any:
    """A model that makes queries of some entities; one of another class makes them itself."""
    return LocalModel(model, table, ids) if hasattr(model, "with_entity") else model


class Pool:
    """The candidates of one side and crop: made for each block, of what the model says of it."""

    def __init__(self, model: Any, side: Side, dim: int | None, dims: Sequence[int] | None) -> None:
        self.model, self.side, self.dim, self.dims = model, side, dim, dims
        self.count = int(model.num_entities)
        self.own = () if dim is None or is_nested(model) else (dim,)
        self.whole_bias = True
        if hasattr(model, "with_entity"):  # whether its bias is that of all entities, or of rows
            few = torch.zeros(
                (2 + (self.count == 2), model.entity.shape[1]),
                dtype=model.entity.dtype,
                device="cpu",
            )
            bias = candidates_at(model.with_entity(few), side, dim).bias
            self.whole_bias = bias is not None and len(bias) == self.count
        self._block: tuple[Block, Prepared] | None = None

    def at(self, block: Block, before: Tensor, *, allows_nan: bool) -> Prepared:
        """Those of a block, which stands behind the rows of ids ``before [F]``; kept for it."""
        if self._block is None or self._block[0] is not block:
            self._block = block, self._made(block, before, allows_nan)
        return self._block[1]

    def _made(self, block: Block, before: Tensor, allows_nan: bool) -> Prepared:
        def every() -> Tensor:
            """The ids of all rows of the block, in the whole table."""
            own = torch.arange(block.start, block.stop, dtype=torch.int64, device="cpu")
            return torch.cat([before, own])

        rows = block.rows
        if hasattr(self.model, "with_entity"):
            found = candidates_at(self.model.with_entity(rows), self.side, self.dim)
        else:
            whole = self.model.candidates(self.side, *self.own)
            whole = whole if hasattr(whole, "table") else Candidates(whole)
            factor = None if whole.factor is None else whole.factor[every()]
            found = Candidates(rows, whole.bias, factor)
        if self.whole_bias and found.bias is not None and len(found.bias) > 1:
            found = replace(found, bias=found.bias.detach()[every()])
        prepared = prepared_candidates(self.model, found, None, self.dims, allows_nan=allows_nan)
        if not block.first:
            return prepared
        ids = torch.arange(block.first, len(rows), dtype=torch.int64, device="cpu")
        return _only(prepared, ids)


def checked_candidates(ids: Tensor, count: int) -> Tensor:
    """Ids of candidates, distinct rows of a table of so many, ascending on the host."""
    ids = ids.cpu()
    check_index("candidate_ids", ids, (None,), ids)
    check_ids("candidate_ids", ids, count)
    check_unique("candidate_ids", ids)
    return ids.sort().values


def in_block(known: Known, block: Block) -> Known:
    """The known answers that are rows of a block, by their places in it."""
    inside = (known.indices >= block.start) & (known.indices < block.stop)
    before = torch.nn.functional.pad(inside.cumsum(0), (1, 0))
    return Known(before[known.indptr], known.indices[inside] - block.start + block.first)


def among(known: Known, ids: Tensor) -> Known:
    """The known answers that are among ascending ``ids``, by their places there."""
    inside = torch.isin(known.indices, ids)
    before = torch.nn.functional.pad(inside.cumsum(0), (1, 0))
    return Known(before[known.indptr], torch.searchsorted(ids, known.indices[inside]))


def few_rows(pool: Pool, table: Rows, ids: Tensor, *, allows_nan: bool) -> tuple[Block, Prepared]:
    """The rows of ascending ``ids`` as candidates of their own, by their places there."""
    block = Block(table.rows(ids), len(ids), 0, 0)  # all of them stand before no row
    return block, replace(pool.at(block, ids, allows_nan=allows_nan), ids=None)


def only_in_block(prepared: Prepared, ids: Tensor | None, block: Block) -> Prepared | None:
    """The candidates of a block among ascending ``ids``; None where there are none."""
    if ids is None:
        return prepared
    ends = torch.tensor([block.start, block.stop], dtype=torch.int64, device="cpu")
    first, last = torch.searchsorted(ids, ends).tolist()
    if first == last:
        return None
    return _only(prepared, ids[first:last] - block.start + block.first)


def _only(prepared: Prepared, ascending: Tensor) -> Prepared:
    """Some rows as the only candidates, by ids that need no sorting."""
    own = prepared.only(ascending)
    own.__dict__["sorted_ids"] = ascending
    return own


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
    """

    block_rows: int
    per_pass: int
    gives_back: bool

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
        query_bytes += (BUFFERS + 1) * stored  # the target's row
        if limit < row_bytes + query_bytes:
            raise ValueError(
                f"max_memory must be at least {row_bytes + query_bytes:,} bytes here, for one row "
                f"and one query; got {limit:,}"
            )
        most = _BLOCK_BYTES // max(1, stored)
        rows = max(1, min(most, limit // 4 // row_bytes, max(1, len(table))))
        queries = max(1, (limit - rows * row_bytes) // query_bytes)
        return cls(rows, queries, len(table) * stored > limit)

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


def swept(
    table: Rows,
    cut: Cut,
    first: int,
    before: Tensor,
    needed: Callable[[int, int], bool],
) -> AbstractContextManager[Iterator[Block]]:
    """The blocks of a table from a row on that someone needs, prefetched; a context.

    ``before``: ids of rows that stand in front of each.
    """
    ranges = [span for span in cut.ranges(first, len(table)) if needed(*span)]
    return prefetched(table, ranges, table.rows(before), gives_back=cut.gives_back)


def raise_named(error: NonFiniteError, table: Rows, block: Block, before: Tensor) -> None:
    """Raise for the row of the table that a row of a block is; queries are the caller's."""
    if error.row is None or error.name not in ("candidates", "factor", "bias"):
        return
    row = error.row - block.first + block.start
    if error.row < block.first:
        row = int(before[error.row])
    what = table.where(row) if error.name != "bias" else f"bias: row {row}"
    raise NonFiniteError(
        f"{what} holds a NaN or an infinity; every number that takes part must be finite "
        f'(nan="worst" ranks it last)'
    ) from None


def state_of(model: Any) -> Iterator[Tensor]:
    """Every tensor that a model holds, but for the table."""
    if isinstance(model, nn.Module):
        yield from model.parameters()
        yield from model.buffers()
        return
    for value in getattr(model, "__dict__", {}).values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, nn.Module) or hasattr(value, "with_entity"):
            yield from state_of(value)


def sample_of(table: Rows) -> Tensor:
    """A few rows from all over a table, which stand for it in a fingerprint."""
    count = min(_SAMPLE, len(table))
    ids = torch.arange(count, dtype=torch.int64, device="cpu") * len(table) // max(1, count)
    return table.rows(ids)


def has_any(ids: Tensor | None, first: int, last: int) -> bool:
    """Whether a range of rows holds candidates."""
    if ids is None:
        return True
    ends = torch.tensor([first, last], dtype=torch.int64, device=torch.device("cpu"))
    return bool(torch.searchsorted(ids, ends).diff() > 0)
