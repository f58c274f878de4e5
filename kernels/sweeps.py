"""Loop over blocks of queries and chunks of candidates, with scores in a bounded scratch.

A backend scores a chunk into the scratch. In a backward it carries a gradient of the scratch to
queries and candidates, which are collected here. Scores have the dtype of the backend's plan.
Memory: the scratch, and the needed gradients.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .backend import Into, LossPlan
from .labels import LossGradients, LossNeed
from .operands import Need, Operands
from .spares import empty_like

# A single row below 2**15 numbers is summed by one thread, so the order does not depend on the
# number of threads.
_WIDEST_CHUNK = 1 << 14


class GradientSums:
    """Gradients of all blocks of queries and chunks of candidates, collected.

    Gradients of queries have the plan's dtype. The table's gradient is filled chunk by chunk.
    """

    def __init__(self, backend: Any, operands: Operands, need: LossNeed) -> None:
        self.operands, plan = operands, backend.loss_plan(operands)
        queries, table = operands.queries, operands.table
        of_bias = result_dtype(operands)
        self.queries = queries.new_zeros(queries.shape, dtype=plan.dtype) if need.queries else None
        self.table = empty_like(table) if need.table else None
        if self.table is not None and not operands.num_queries:
            self.table.zero_()  # else chunks fill the whole table
        self.bias = table.new_zeros(len(table), dtype=of_bias) if need.bias else None
        self._in_blocks, self._room = plan.num_queries is not None, queries[:0]

    def into(self, rows: slice, chunk: slice) -> Into:
        """Return the part of a block of queries and a chunk of candidates."""
        of_queries = None if self.queries is None else self.queries[rows]
        room = None
        if of_queries is not None and self._in_blocks:
            # allocated once: malloc would give out pieces meanwhile
            if len(self._room) < len(of_queries):
                self._room = torch.empty_like(of_queries)
            room = self._room[: len(of_queries)]
        return Into(
            of_queries,
            None if self.table is None else self.table[chunk],
            adds_to_table=rows.start > 0,
            room=room,
        )

    def finished(self) -> LossGradients:
        """Return the gradients in the dtypes of the operands."""
        of_queries = self.queries
        if of_queries is not None:
            of_queries = of_queries.to(self.operands.queries.dtype)
        return LossGradients(of_queries, self.table, self.bias)


def sweeps(
    backend: Any,
    operands: Operands,
    sums: GradientSums | None = None,
    kept: Tensor | None = None,
) -> Iterator["Sweep"]:
    """Cut the queries into blocks that are swept together; ``kept`` has memory for all scores."""
    plan = backend.loss_plan(operands)
    step = plan.num_queries or max(1, operands.num_queries)
    scratch = None
    for first in range(0, operands.num_queries, step):
        rows = slice(first, min(first + step, operands.num_queries))
        sweep = Sweep(backend, operands.of_queries(rows), rows, plan, sums, scratch)
        if kept is not None:
            width = operands.candidates.num_rows
            sweep.keep_in(kept[rows.start * width : rows.stop * width])
        yield sweep
        # The next block gets the memory of this block: malloc would give out pieces of it
        # meanwhile.
        if kept is None:
            scratch = sweep.scratch


def chunks(num_queries: int, num_candidates: int, scratch: int) -> list[slice]:
    """Cut the candidates into ranges with scores that fit the scratch."""
    width = max(1, min(_WIDEST_CHUNK, scratch // max(1, num_queries)))
    width = width // 64 * 64 or width
    return [
        slice(first, min(first + width, num_candidates))
        for first in range(0, num_candidates, width)
    ]


class Sweep:
    """Block of queries against all candidates, chunk by chunk, through one scratch."""

    def __init__(
        self,
        backend: Any,
        operands: Operands,
        rows: slice,
        plan: LossPlan,
        sums: GradientSums | None,
        scratch: Tensor | None = None,
    ) -> None:
        self.backend, self.operands, self.rows, self._sums = backend, operands, rows, sums
        count = operands.num_queries
        self.chunks = chunks(count, operands.candidates.num_rows, plan.scratch)
        self.dtype = plan.dtype
        self.scratch = scratch  # flat

    def keep_in(self, scores: Tensor) -> None:
        """Use ``scores``, flat, as the scratch: all candidates are one chunk."""
        self.chunks = [slice(0, self.operands.candidates.num_rows)]
        self.scratch = scores

    def room(self, chunk: slice) -> Tensor:
        """Return the memory of a chunk's scores, ``[B, n]``."""
        rows, count = self.operands.num_queries, chunk.stop - chunk.start
        if self.scratch is None or len(self.scratch) < rows * count:
            self.scratch = self.operands.queries.new_empty(rows * count, dtype=self.dtype)
        return self.scratch[: rows * count].view(-1, count)

    def scores(self, chunk: slice) -> Tensor:
        """Return scores with the candidates of a chunk, bias included, for overwriting."""
        operands, room = self.operands.of_rows(chunk), self.room(chunk)
        scores: Tensor = self.backend.scores(operands, out=room)
        return scores

    def backward(self, slopes: Tensor, chunk: slice) -> None:
        """Carry the gradient of a chunk's scores to the needed gradients."""
        sums = self._sums
        assert sums is not None
        if sums.bias is not None:
            sums.bias[chunk] += slopes.sum(0)
        need = Need(sums.queries is not None, sums.table is not None)
        if any(need):
            into = sums.into(self.rows, chunk)
            self.backend.backward(self.operands.of_rows(chunk), slopes, need=need, into=into)


def result_dtype(operands: Operands) -> torch.dtype:
    """Return the dtype of row losses and of the gradient of a bias."""
    return torch.float64 if operands.queries.dtype == torch.float64 else torch.float32
