"""Gradients of a block of pairs, and of lists of them, as the host asks for them."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor

from ...operands import Operands
from ..device import backward as kernels
from ..device.arguments import Rows
from ..device.backward import WEIGHTS, Block, Lists, Sums
from . import launch as launcher
from .configs import MAX_GRID, RSCF_REGISTERS
from .layout import pack_weights
from .lists import PairLists, lists_of_ids, lists_of_queries
from .views import form_of, plane_of, queries_of, rows_of, views_of

PARTIAL_BYTES = 8 << 20
MATMUL_BYTES = 8 << 20  # a chunk of rows converted for a GEMM
BACKWARD_PROGRAMS = 4096  # warps that fill a machine: into as many the other side is split
BACKWARD_ROWS, RSCF_QUERIES, RSCF_CANDIDATES = 16, 4, 8  # of a program
LIST_PAIRS, LIST_FEATURES, RSCF_LIST_FEATURES = 4, 64, 32
PIECE_PAIRS = 256  # of a list, at least
EXTRA_BYTES = 8 << 20
ADD_COLUMNS = 128


class GradAccumulator:
    """Float32 sums for rows of a gradient, in as many splits as fill the machine."""

    def __init__(self, grad: Tensor) -> None:
        self.grad = grad
        is_float = grad.dtype == torch.float32
        self.total = grad if is_float else grad.to(torch.float32)
        self.partial: Tensor | None = None

    def splits(self, programs: int, num_others: int, splits: int | None = None) -> Tensor:
        """``[splits, R, G]`` to add to; the same for every range of features."""
        if self.partial is None:
            room = PARTIAL_BYTES // (4 * self.total.numel())
            if splits is None:
                splits = min(BACKWARD_PROGRAMS // programs, room, num_others // 64, MAX_GRID)
            if splits > 1:
                self.partial = self.total.new_zeros(splits, *self.total.shape)
        return self.total[None] if self.partial is None else self.partial

    def finish(self) -> None:
        """Bring the sums into the gradient, in its dtype."""
        if self.partial is not None:
            self.total += self.partial.sum(0)
        if self.total is not self.grad:
            self.grad.copy_(self.total)


class Accumulators(NamedTuple):
    """Of each operand; None where its gradient is not needed."""

    queries: GradAccumulator | None
    table: GradAccumulator | None
    factor: GradAccumulator | None = None


class Slopes(NamedTuple):
    """A range of features, and what the slopes of a block's pairs are multiplied by there."""

    low: int
    high: int
    coefficient: Tensor  # [b, k]


def zero_gradient(rows: Tensor | None, needed: bool) -> Tensor | None:
    """A contiguous gradient to add to."""
    if rows is None or not needed:
        return None
    return torch.zeros_like(rows, memory_format=torch.contiguous_format)


def row_cap(operands: Operands) -> int:
    """How many rows of a gradient are summed at once: those whose float32 copy is small."""
    caps = [max(1, len(operands.table))]
    for rows in (operands.table, operands.factor):
        if rows is not None and rows.dtype != torch.float32:
            caps.append(max(1, PARTIAL_BYTES // (4 * rows.shape[1])))
    return min(caps)


def add_gradients(operands: Operands, slopes: Slopes, into: Accumulators, arch: int) -> None:
    """Add the gradients of a block, all pairs of its queries and candidates, without a bias."""
    if not operands.score.monotone:
        _add_by_matmul(operands, slopes, into)
        return
    if into.queries is not None:
        _add_side(operands, slopes, (into.queries, None), arch, of_queries=True)
    if into.table is not None or into.factor is not None:
        _add_side(operands, slopes, (into.table, into.factor), arch, of_queries=False)


def _add_side(
    operands: Operands,
    slopes: Slopes,
    into: tuple[GradAccumulator | None, GradAccumulator | None],
    arch: int,
    *,
    of_queries: bool,
) -> None:
    rows, others, coefficient = operands.queries, operands.table, slopes.coefficient
    if not of_queries:
        rows, others, coefficient = others, rows, coefficient.T
    side, options = _side_of(operands, arch, of_queries=of_queries)
    tiles, columns = -(-len(rows) // side.rows), -(-(slopes.high - slopes.low) // side.features)
    programs = tiles * -(-operands.num_features // side.features)
    splits = None  # both have as many
    targets: list[Tensor | None] = [None, None]
    for i, accumulator in enumerate(into):
        if accumulator is not None:
            target = accumulator.splits(programs, len(others), splits)
            targets[i], splits = target, len(target)
    grad, grad_factor = targets
    per_split = -(-len(others) // (splits or 1))
    views = views_of(operands)
    launcher.launch(
        kernels.backward,
        (tiles, columns, -(-len(others) // per_split)),
        {
            "block": Block(
                *views[:3],
                pack_weights(coefficient, WEIGHTS),
                None if grad is None else _grad_rows(operands, grad[0], of_queries=of_queries),
                None if grad_factor is None else plane_of(grad_factor[0]),
            ),
            "num_rows": len(rows),
            "num_others": len(others),
            "first_feature": slopes.low,
            "last_feature": slopes.high,
            "FORM": form_of(operands),
            "SIDE": side,
        },
        num_warps=1,
        **options,
    )


def _side_of(
    operands: Operands, arch: int, *, of_queries: bool
) -> tuple[kernels.Side, dict[str, int]]:
    """The tile of one side, and options of its launch."""
    features = 32 if arch else 64  # the lanes of a warp
    if not operands.score.is_rscf:
        return kernels.Side(of_queries, BACKWARD_ROWS, features), {}
    rows = RSCF_QUERIES if of_queries else RSCF_CANDIDATES
    options = {"maxnreg": RSCF_REGISTERS} if arch else {}
    return kernels.Side(of_queries, rows, features), options


def _grad_rows(operands: Operands, grad: Tensor, *, of_queries: bool) -> Rows:
    if of_queries:
        return queries_of(operands, grad)
    return rows_of(grad, operands.score)


def _add_by_matmul(operands: Operands, slopes: Slopes, into: Accumulators) -> None:
    low, high, coefficient = slopes
    for accumulator, others, weights in (
        (into.queries, operands.table, coefficient),
        (into.table, operands.queries, coefficient.T),
    ):
        if accumulator is not None:
            total = accumulator.total[:, low:high]
            with no_autocast(others.device):
                for part, rows in float_chunks(others[:, low:high]):
                    total.addmm_(weights[:, part], rows)


def float_chunks(rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows as a GEMM takes them: float32, one stride 1; in place or by bounded copies."""
    (height, width), (row, column) = rows.shape, rows.stride()
    is_matrix = (column == 1 and row >= width) or (row == 1 and column >= height)
    in_place = rows.dtype == torch.float32 and is_matrix
    step = len(rows) if in_place else max(1, MATMUL_BYTES // (4 * max(1, rows.shape[1])))
    for first in range(0, len(rows), max(1, step)):
        part = slice(first, first + step)
        yield part, rows[part] if in_place else rows[part].float().contiguous()


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which autocast leaves GEMMs alone."""
    return torch.autocast(device.type, enabled=False)


class ListGradients:
    """The gradient of the queries, or those of the table and the factor, of pairs in lists."""

    def __init__(
        self, operands: Operands, index: Tensor, need: Sequence[bool], *, of_queries: bool
    ) -> None:
        """``need``: of the rows, and of the factor."""
        self.operands, self.of_queries = operands, of_queries
        rows, pairs = operands.queries if of_queries else operands.table, index.numel()
        length = max(PIECE_PAIRS, -(-8 * pairs * rows.shape[1] // EXTRA_BYTES))
        self.lists: PairLists = (lists_of_queries if of_queries else lists_of_ids)(index, length)
        count = len(self.lists.ids)
        self.grad = rows.new_zeros(count, rows.shape[1]) if need[0] else None
        self.grad_factor = None
        if need[1] and operands.factor is not None:
            self.grad_factor = operands.factor.new_zeros(count, operands.factor.shape[1])
        extras = 1 + 2 * pairs // length if self.lists.is_cut else 1
        self._extra = _extra_rows(self.grad, extras)
        self._extra_factor = _extra_rows(self.grad_factor, extras)

    def write(self, slopes: Slopes) -> None:
        """Write a range of features of the gradients, or of their pieces."""
        operands, lists = self.operands, self.lists
        features = RSCF_LIST_FEATURES if operands.score.is_rscf else LIST_FEATURES
        grad, factor = self.grad, self.grad_factor
        of_rows = None if grad is None else _grad_rows(operands, grad, of_queries=self.of_queries)
        launcher.launch(
            kernels.backward_lists,
            (len(lists.target), -(-(slopes.high - slopes.low) // features)),
            {
                "views": views_of(operands),
                "lists": Lists(
                    lists.order,
                    lists.others,
                    slopes.coefficient,
                    lists.starts,
                    lists.owners,
                    lists.target,
                ),
                "sums": (
                    Sums(of_rows, self._extra),
                    Sums(None if factor is None else plane_of(factor), self._extra_factor),
                ),
                "first_feature": slopes.low,
                "last_feature": slopes.high,
                "FORM": form_of(operands),
                "SIDE": kernels.Side(self.of_queries, LIST_PAIRS, features),
            },
            num_warps=1,
        )

    def add_pieces(self) -> None:
        """Sum the extra rows of lists that were cut."""
        parts = (self.grad, self._extra), (self.grad_factor, self._extra_factor)
        for grad, extra in parts:
            if self.lists.is_cut and grad is not None:
                launcher.launch(
                    kernels.add_pieces,
                    (len(grad), -(-grad.shape[1] // ADD_COLUMNS)),
                    {
                        "grad": plane_of(grad),
                        "p_extra": extra,
                        "p_first": self.lists.first_extra,
                        "width": grad.shape[1],
                        "COLUMNS": ADD_COLUMNS,
                    },
                    num_warps=4,
                )


def _extra_rows(grad: Tensor | None, count: int) -> Tensor | None:
    """Float32 room for the pieces of lists that are cut."""
    return None if grad is None else grad.new_zeros(count, grad.shape[1], dtype=torch.float32)
