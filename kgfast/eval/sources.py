"""Sources of a side's candidates, which meet queries one block of candidates at a time.

Counts of blocks add up and best answers of blocks are merged, so each block is a small table of its
own. All blocks together give the result of one sweep over the whole table.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.index import Index
from kgfast.eval.preparation import prepared_candidates
from kgfast.eval.queries import CPU, Queries
from kgfast.graph.ids import INT64_MAX
from kgfast.kernels.checks import Checks, NonFiniteError
from kgfast.kernels.operands import Above, Counts, Operands, Prepared
from kgfast.models.base import Side, candidates_at, is_nested, operator_width
from kgfast.models.evaluated import evaluated_queries
from kgfast.ops import run
from kgfast.ops.checks import check_queries

Crops = dict[int | None, int | None]  # crop widths of the model -> crop widths of the operator
Best = tuple[Tensor, Tensor]  # scores and ids, [B, k]


def crops_of(model: Any, dims: Sequence[int | None]) -> Crops:
    """Return the operator's width of each crop; None for the whole model."""
    return {dim: None if dim is None else operator_width(model, dim) for dim in dims}


class CandidateSource(ABC):
    """Candidates of one side, for the crops that share a sweep over queries and rows of a table."""

    device: torch.device  # device of queries and candidates
    num_rows: int  # rows of the whole table
    checks: Checks
    sorted_ids: Tensor | None = None  # the only candidates of queries without ids of their own
    is_whole: bool = False  # one block holds all candidates: results need no merging
    has_lists: bool = True  # each query may have a list; else a pass serves one list
    batch_size: int = INT64_MAX  # maximal number of queries of a pass
    row_range: tuple[int, int] | None = None  # rows of this process; None: all rows
    home: torch.device = CPU  # device of ids and results

    def __init__(self, model: Any, side: Side, crops: Crops, allows_nan: bool) -> None:
        self.model, self.side, self.allows_nan = model, side, allows_nan
        self.num_crops = len(crops)
        # Queries and candidates of several crops are made for the whole model.
        self.dim: int | None = None
        self.dims: tuple[int, ...] | None = None
        if None not in crops.values():
            self.dims = tuple(width for width in crops.values() if width is not None)
        if len(crops) == 1:
            (self.dim,) = crops

    @property
    def num_candidates(self) -> int:
        """Number of candidates that queries share."""
        return self.num_rows if self.sorted_ids is None else len(self.sorted_ids)

    def ids_of(self, queries: Queries) -> Tensor | None:
        """Return the candidates that queries share; None for all rows."""
        return self.sorted_ids if queries.ids is None else queries.ids

    @abstractmethod
    def prepare(self, queries: Queries) -> None:
        """Make the vectors of queries and score the targets, as far as blocks need them."""

    @abstractmethod
    def blocks(self, results: Sequence[Any]) -> AbstractContextManager[Iterator[Any]]:
        """Open the blocks that hold candidates of any result, in order.

        Results (:class:`kgfast.eval.job.SoFar`) may have other sources of the same rows.
        """

    def _located(self, queries: Queries, block: Any) -> tuple[Operands, Any] | None:
        """Return operands, and queries with places in the block as ids; None: no candidates."""
        return None

    def _operands(self, queries: Queries, candidates: Prepared) -> Operands:
        assert queries.vectors is not None
        check_queries(queries.vectors, candidates)
        return Operands(queries.vectors, candidates, self.dims)

    def named(self, error: NonFiniteError, queries: Queries, block: Any) -> NonFiniteError:
        """Return an error that names the query, or the row of the table, that is not finite."""
        if queries.vectors is not None:
            queries.check_finite()
        return error

    def _whole_ids(self, block: Any, ids: Tensor) -> Tensor:
        """Return ids of the whole table for ids of a block, which may be -1."""
        return ids

    def counts(self, queries: Queries, block: Any) -> Counts | None:
        """Count candidates that beat or equal targets, ``[C, B]``; None where there are none."""
        located = self._located(queries, block)
        if located is None:
            return None
        operands, here = located
        problem = operands, here.targets, here.known, self.checks, here.lists
        return run.rank_counts(*problem, here.target_scores)

    def best(self, queries: Queries, block: Any, k: int) -> Best | None:
        """Find the best answers of a block; None where the block holds no candidates.

        Equal answers stand by ascending id; places without an answer hold id -1.
        """
        located = self._located(queries, block)
        if located is None:
            return None
        operands, here = located
        scores, ids = run.topk(operands, k, here.known, self.checks, here.lists)
        if self.dims is not None:
            scores, ids = scores[0], ids[0]
        return scores, ids if self.is_whole else self._whole_ids(block, ids)

    def above(
        self, queries: Queries, block: Any, thresholds: Tensor, most: int
    ) -> Above | int | None:
        """Find the answers of a block that reach float64 ``thresholds [B]``.

        The result is None if the block holds no candidates. It is the number of answers if that is
        above ``most``, or if ``most`` is negative.
        """
        located = self._located(queries, block)
        if located is None:
            return None
        answers = run.above(located[0], thresholds, located[1].known, self.checks, most)
        if isinstance(answers, int):
            return answers
        return answers._replace(ids=self._whole_ids(block, answers.ids))


class InMemory(CandidateSource):
    """Candidates of a model in memory: one block that is read in place.

    ``ids`` are the only candidates, in any order, on any device. ``other`` is the source of another
    side; if both have the same table, this source takes the prepared candidates of ``other``.
    """

    is_whole = True
    prepared: Prepared

    def __init__(
        self,
        model: Any,
        side: Side,
        crops: Crops,
        ids: Tensor | None,
        allows_nan: bool,
        index: Index | None = None,
        other: "InMemory | None" = None,
    ) -> None:
        super().__init__(model, side, crops, allows_nan)
        candidates = candidates_at(model, side, self.dim)
        is_plain = candidates.bias is None and candidates.factor is None
        is_plain = is_plain and ids is None and self.dims is None
        prepared, checks, panels = None, None, None
        if index is not None and side != "relation" and (self.dim is None or is_nested(model)):
            prepared = index.prepared(candidates, model.score)
            if prepared is not None:  # kernels that read packed rows do not wait for a device
                panels, checks = prepared.panels, Checks(deferred=False, allows_nan=allows_nan)
        elif other is not None and is_plain and other.prepared.table is candidates.table:
            prepared, checks = other.prepared, other.checks
        if prepared is None or not is_plain:
            arguments = model, candidates, ids, self.dims
            prepared = prepared_candidates(*arguments, allows_nan=allows_nan, panels=panels)
        self.prepared = prepared
        self.sorted_ids = prepared.sorted_ids
        self.device = self.home = prepared.table.device
        self.num_rows = prepared.table.shape[0]
        self.checks = checks or run.checks_for(self.device, allows_nan=allows_nan)

    def prepare(self, queries: Queries) -> None:
        """Make the queries; the sweep scores the targets."""
        ids = queries.anchors, queries.others
        queries.vectors = evaluated_queries(self.model, *ids, self.side, self.dim)

    def blocks(self, results: Sequence[Any]) -> AbstractContextManager[Iterator[Prepared]]:
        return nullcontext(iter((self.prepared,)))

    def _located(self, queries: Queries, block: Prepared) -> tuple[Operands, Queries]:
        block = block if queries.ids is None else block.only(queries.ids)
        return self._operands(queries, block), queries
