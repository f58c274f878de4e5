"""The rows of the entity table that a process holds, as models of their own."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.batches import prepared_candidates
from kgfast.eval.passes import not_finite
from kgfast.kernels.checks import NonFiniteError, nonfinite_error
from kgfast.kernels.operands import Operands, Prepared
from kgfast.kernels.scores import get_score
from kgfast.models.base import Candidates, Side, candidates_at, operator_width
from kgfast.models.evaluated import evaluated_queries
from kgfast.models.relations import is_in_blocks
from kgfast.ops import run
from kgfast.ops.checks import check_queries
from kgfast.tables import Shard, as_rows, is_table

_BLOCK_BYTES = 64 << 20  # of a table that is read in blocks
_PAIR_BYTES = 8 << 20  # of rows that are scored one by one, as float64


@dataclass(frozen=True)
class Held:
    """Rows ``start .. stop - 1`` of a model's entities, at one crop.

    Attributes
    ----------
    model : Model
    start, stop : int
    dim : int, optional
        The crop.
    allows_nan : bool
    """

    model: Any
    start: int
    stop: int
    dim: int | None = None
    allows_nan: bool = False
    _kept: dict[Side, Candidates] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, model: Any, dim: int | None = None, *, allows_nan: bool = False) -> "Held":
        """What a model holds: the rows of its shard, else all."""
        if is_in_blocks(model):
            raise TypeError(
                "model: a function that scores has no rows to share out; give each process a part "
                "of the triples and call kgfast.rank"
            )
        entity = getattr(model, "entity", None)
        if entity is None:
            raise TypeError(f"{type(model).__name__} must have entity, its table of entities")
        if isinstance(entity, Shard):
            return cls(model, entity.start, entity.stop, dim, allows_nan)
        return cls(model, 0, int(model.num_entities), dim, allows_nan)

    @property
    def total(self) -> int:
        """Entities of the whole table."""
        return int(self.model.num_entities)

    @property
    def is_read_in_blocks(self) -> bool:
        """Whether rows come from a file, so that every pass reads them again."""
        entity = self.model.entity
        return is_table(entity.held if isinstance(entity, Shard) else entity)

    @property
    def device(self) -> torch.device:
        """Where the rows are, or are handed out."""
        entity = self.model.entity
        return torch.device(getattr(entity, "device", "cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers."""
        dtype: torch.dtype = self.model.entity.dtype
        return dtype

    @property
    def width(self) -> int:
        """Columns of a row."""
        return int(self.model.entity.shape[1])

    @property
    def crops(self) -> tuple[int] | None:
        """The crop of the operators."""
        width = None if self.dim is None else operator_width(self.model, self.dim)
        return None if width is None else (width,)

    def query_width(self, side: Side) -> int:
        """Columns of a query."""
        score = get_score(self.model.score)
        if is_table(self.model.entity):
            return score.query_width(self.width, has_factor=False)
        candidates = self._candidates(side)  # perhaps some columns of the table
        return score.query_width(candidates.table.shape[1], candidates.factor is not None)

    def holds(self, ids: Tensor) -> Tensor:
        """Which of the ids are among its rows, bool."""
        return (ids >= self.start) & (ids < self.stop)

    def queries(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Those of anchors that are held, ``[B, F]``."""
        model, ids = self.model, anchors
        if is_table(model.entity):
            model = self._with(model.entity.rows(anchors))
            anchors = torch.arange(len(anchors), dtype=torch.int64, device=anchors.device)
        queries = evaluated_queries(model, anchors, relations, side, self.dim)
        if not (self.allows_nan or bool(queries.isfinite().all())):
            row = int((~queries.isfinite().all(1)).nonzero()[0])
            raise ValueError(
                f"the {side} query of entity {int(ids[row])} and relation {int(relations[row])} "
                f"holds a NaN or an infinity, from their embeddings"
            )
        return queries.double() if queries.dtype == torch.float64 else queries.float()

    def target_scores(self, queries: Tensor, targets: Tensor, side: Side) -> Tensor:
        """Canonical scores of queries with targets that are held, float64 ``[B]``."""
        entity = self.model.entity
        if is_table(entity):
            rows = entity.rows(targets)
            bad = (~rows.isfinite().all(1)).nonzero()
            if len(bad) and not self.allows_nan:
                raise self.not_finite(int(targets[bad[0]]))
            own = self._prepared(rows, targets, side)
            targets = torch.arange(len(targets), dtype=torch.int64, device=targets.device)
        else:
            own = self._whole(side)
        check_queries(queries, own)
        operands = Operands(queries, own, self.crops)
        checks = run.checks_for(queries.device, allows_nan=self.allows_nan)
        return run.target_scores(operands, targets, checks)[0]

    def scores_of(self, queries: Tensor, ids: Tensor, side: Side) -> Tensor:
        """Canonical scores of pairs ``ids [B, K]`` that are held or -1, which score -inf."""
        rows, columns = (ids >= 0).nonzero(as_tuple=True)
        scores = torch.full(ids.shape, -torch.inf, dtype=torch.float64, device=ids.device)
        step = max(1, _PAIR_BYTES // (8 * self.width))
        for row, column in zip(rows.split(step), columns.split(step), strict=True):
            if len(row):
                scores[row, column] = self.target_scores(queries[row], ids[row, column], side)
        return scores

    def blocks(self, side: Side, ids: Tensor | None) -> Iterator[tuple[int, Prepared]]:
        """The rows held as candidates, with the id of the first; blocks without one are left out.

        ``ids``: ascending; only these are candidates.
        """
        entity = self.model.entity
        step = max(1, self.stop - self.start)
        if self.is_read_in_blocks:
            step = max(1, _BLOCK_BYTES // (entity.shape[1] * entity.dtype.itemsize))
        for first in range(self.start, self.stop, step):
            last = min(first + step, self.stop)
            own = None
            if ids is not None:
                ends = torch.tensor([first, last], dtype=torch.int64, device=ids.device)
                left, right = torch.searchsorted(ids, ends).tolist()
                own = ids[left:right] - first
                if not len(own):
                    continue
            if is_table(entity):
                yield first, self._prepared(entity.block(first, last), (first, last), side, own)
            else:
                yield first, self._whole(side, first, last, own)

    def not_finite(self, row: int) -> NonFiniteError:
        """The error of a row that is held, by its id: of a file with its name."""
        entity = self.model.entity
        if is_table(entity):
            return not_finite(as_rows(entity).where(row))
        return nonfinite_error("candidates", row)

    def _candidates(self, side: Side) -> Candidates:
        if side not in self._kept:
            self._kept.clear()  # the factor of the other side's
            self._kept[side] = candidates_at(self.model, side, self.dim)
        return self._kept[side]

    def _with(self, rows: Tensor) -> Any:
        """The model of some rows."""
        if not hasattr(self.model, "with_entity"):
            raise TypeError(
                f"{type(self.model).__name__} must have with_entity(rows), the same model of some "
                f"of its entities, to be ranked in parts"
            )
        return self.model.with_entity(rows)

    def _prepared(
        self, rows: Tensor, which: Any, side: Side, ids: Tensor | None = None
    ) -> Prepared:
        """Some rows as candidates; ``which``: their ids, or first and last."""
        candidates = candidates_at(self._with(rows), side, self.dim)
        if candidates.factor is not None or not _is_part(candidates.table, rows):
            raise NotImplementedError(
                f"{type(self.model).__name__} computes its candidates from all entities: it is "
                f"ranked whole, by kgfast.rank"
            )
        bias = candidates.bias
        if bias is not None and len(bias) == self.total != len(rows):
            bias = bias[which[0] : which[1]] if isinstance(which, tuple) else bias[which]
        part = Candidates(candidates.table, bias)
        return prepared_candidates(self.model, part, ids, self.crops, allows_nan=self.allows_nan)

    def _whole(
        self, side: Side, first: int = 0, last: int | None = None, ids: Tensor | None = None
    ) -> Prepared:
        """The candidates of a model that has them all, or a range of them."""
        candidates = self._candidates(side)
        table, bias, factor = candidates.table, candidates.bias, candidates.factor
        last = len(table) if last is None else last
        if bias is not None and len(bias) == len(table):
            bias = bias[first:last]
        part = Candidates(table[first:last], bias, None if factor is None else factor[first:last])
        return prepared_candidates(self.model, part, ids, self.crops, allows_nan=self.allows_nan)


def _is_part(table: Tensor, rows: Tensor) -> bool:
    """Whether a table is rows, or columns of them, in place."""
    return table.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()
