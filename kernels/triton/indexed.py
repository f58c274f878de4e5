"""Scores of each query with its own candidates on a GPU, and their gradients.

Memory: 8 MiB of extra rows for lists that are cut, and O(index) words. The host waits once, in the
backward for the table, for the number of its distinct rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..scores import Score, get_score
from .device.gather import add_pieces, gather_scores, pull_lists
from .device.operands import factor_args, query_args, view_args
from .device.terms import score_code, takes_root
from .host import launch as launcher
from .host.gradients import extra_rows, pull_side
from .host.widths import crop_order, over_norms, segments

GATHER_PAIRS, GATHER_FEATURES = 16, 64
PULL_PAIRS, PULL_FEATURES = 4, 64
ADD_COLUMNS = 128
PIECE_PAIRS = 256  # of a list, at least
EXTRA_BYTES = 8 << 20
MAX_GRID = 65535  # of the second axis


def indexed_scores(
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
) -> Tensor:
    """The contract of :func:`kgfast.ops.indexed_scores`; see there."""
    facts = get_score(score)
    launcher.architecture(table.device)
    crops = [facts.num_features(table.shape[1])] if dims is None else list(dims)
    out = torch.empty(len(crops), *index.shape, dtype=torch.float32, device=table.device)
    with launcher.on_device(table.device):
        fill_indexed(out, queries, table, index, facts, crops, bias, factor)
    return out[0] if dims is None else out


def fill_indexed(
    out: Tensor,
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    facts: Score,
    crops: Sequence[int],
    bias: Tensor | None,
    factor: Tensor | None = None,
) -> None:
    """Write the scores of pairs ``index [B, K]`` into ``out [C, B, K]`` of column stride 1."""
    if not out.numel():
        return
    order = crop_order(crops, table.device)
    bias = None if bias is None else bias.expand(len(table))
    step = MAX_GRID * GATHER_PAIRS
    for first in range(0, index.shape[1], step):
        part = index[:, first : first + step]
        launcher.launch(
            gather_scores,
            (len(index), -(-part.shape[1] // GATHER_PAIRS)),
            {
                **query_args(queries, facts, factor),
                **view_args(table, facts, "p_table", "c_"),
                **factor_args(factor),
                "p_index": part,
                "index_row_stride": index.stride(0),
                "index_stride": index.stride(1),
                "p_crops": order,
                "p_bias": bias,
                "bias_stride": 0 if bias is None else bias.stride(0),
                "p_out": out[:, :, first:],
                "crop_stride": out.stride(0),
                "row_stride": out.stride(1),
                "num_candidates": part.shape[1],
                "num_crops": len(crops),
                "SCORE": score_code(facts),
                "PLANES": facts.planes,
                "HAS_BIAS": bias is not None,
                "PAIRS": GATHER_PAIRS,
                "FEATURES": GATHER_FEATURES,
            },
            num_warps=2,
        )


def indexed_backward(
    grad: Tensor,
    queries: Tensor,
    table: Tensor,
    index: Tensor,
    score: str,
    factor: Tensor | None = None,
    dims: Sequence[int] | None = None,
    need: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None, Tensor | None]:
    """Gradient of the queries, ``(ids [U] ascending, rows [U, G])`` of the table, the factor's."""
    facts = get_score(score)
    launcher.architecture(table.device)
    crops = [facts.num_features(table.shape[1])] if dims is None else list(dims)
    grad = grad[None] if dims is None else grad  # [C, B, K]
    needs_factor = need[2] and factor is not None
    with launcher.on_device(table.device):
        if takes_root(facts):
            norms = torch.empty(grad.shape, dtype=torch.float32, device=table.device)
            fill_indexed(norms, queries, table, index, facts, crops, None, factor)
            grad = over_norms(grad, norms.neg_())
        by_query: _Side | _FilteredSide | None = None
        by_row: _Side | _FilteredSide | None = None
        if facts.filters:
            operands = queries, table, factor, index, facts
            if need[0]:
                by_query = _FilteredSide(*operands, (True, False), by_table=False)
            if need[1] or needs_factor:
                by_row = _FilteredSide(*operands, (need[1], needs_factor), by_table=True)
        else:
            by_query = _Side(queries, table, index, facts, by_table=False) if need[0] else None
            by_row = _Side(table, queries, index, facts, by_table=True) if need[1] else None
        sides = [side for side in (by_query, by_row) if side is not None]
        for low, high, coefficient in segments(grad, crops):
            weights = coefficient.contiguous()
            for side in sides:
                side.pull(weights, low, high)
        for side in sides:
            side.add_pieces()
    of_table = None
    if by_row is not None and by_row.grad is not None:
        of_table = by_row.lists.ids, by_row.grad
    of_factor = by_row.grad_factor if isinstance(by_row, _FilteredSide) else None
    return None if by_query is None else by_query.grad, of_table, of_factor


@dataclass(frozen=True)
class Lists:
    """The pairs of each gradient row, one after the other, in pieces."""

    order: Tensor | None  # [places] pair of each place; None: its own number
    others: Tensor  # [places] row of the other side
    starts: Tensor  # [pieces + 1] first place of each piece
    owners: Tensor  # [pieces] row that the pairs of a piece share
    target: Tensor  # [pieces] gradient row, or -1 - extra row where a list has several pieces
    first_extra: Tensor  # [lists + 1]
    ids: Tensor  # [lists] row of each list
    is_cut: bool


def lists_of_queries(index: Tensor, length: int) -> Lists:
    """A list per query: its own pairs, in pieces of at most ``length``."""
    num_queries, num_candidates = index.shape
    pieces = max(1, -(-num_candidates // length))
    ids = _places(num_queries + 1, index)
    piece = _places(num_queries * pieces + 1, index)
    query = piece.div(pieces, rounding_mode="floor")
    starts = query * num_candidates + (piece - query * pieces) * length
    target = ids[:-1] if pieces == 1 else -1 - piece[:-1]
    others = index.contiguous().view(-1)
    return Lists(None, others, starts, query[:-1], target, ids * pieces, ids[:-1], pieces > 1)


def lists_of_ids(index: Tensor, length: int) -> Lists:
    """A list per distinct id: its pairs in the order of the index, in pieces of ``length``."""
    ids, order = index.flatten().sort(stable=True)
    if not len(ids):
        return Lists(order, order, ids.new_zeros(1), ids, ids, ids.new_zeros(1), ids, False)
    place = _places(len(ids), ids)
    is_new = torch.ones_like(ids, dtype=torch.bool)
    torch.ne(ids[1:], ids[:-1], out=is_new[1:])
    first = torch.where(is_new, place, 0).cummax(0).values
    list_of = is_new.cumsum(0) - 1
    piece_of = ((place - first) % length == 0).cumsum(0) - 1
    num_lists, num_pieces = (torch.stack([list_of[-1], piece_of[-1]]) + 1).tolist()
    starts = torch.searchsorted(piece_of, _places(num_pieces + 1, ids))
    list_of = list_of[starts[:-1]]  # of each piece
    first_piece = torch.searchsorted(list_of, _places(num_lists + 1, ids))
    count = first_piece.diff()
    first_extra = torch.nn.functional.pad(torch.where(count > 1, count, 0).cumsum(0), (1, 0))
    piece = _places(num_pieces, ids)
    extra = first_extra[list_of] + piece - first_piece[list_of]
    target = torch.where(count[list_of] > 1, -1 - extra, list_of)
    owners = ids[starts[:-1]]
    distinct = owners[first_piece[:-1]]
    others = order.div(index.shape[1], rounding_mode="floor")
    is_cut = num_pieces > num_lists
    return Lists(order, others, starts, owners, target, first_extra, distinct, is_cut)


def _places(count: int, like: Tensor) -> Tensor:
    """0, 1, ... on the device of ``like``."""
    return torch.arange(count, dtype=torch.int64, device=like.device)


class _Side:
    """The gradient of one operand."""

    def __init__(
        self, rows: Tensor, others: Tensor, index: Tensor, facts: Score, *, by_table: bool
    ) -> None:
        self.rows, self.others, self.facts = rows, others, facts
        pairs, width = index.numel(), rows.shape[1]
        length = max(PIECE_PAIRS, -(-8 * pairs * width // EXTRA_BYTES))
        self.lists = (lists_of_ids if by_table else lists_of_queries)(index, length)
        self.grad = rows.new_zeros(len(self.lists.ids), width)
        extras = 1 + 2 * pairs // length if self.lists.is_cut else 1
        self.extra = torch.zeros(extras, width, dtype=torch.float32, device=rows.device)

    def pull(self, weights: Tensor, low: int, high: int) -> None:
        """Write features ``low .. high - 1`` of the gradient, or of its pieces."""
        launcher.launch(
            pull_lists,
            (len(self.lists.target), -(-(high - low) // PULL_FEATURES)),
            {
                **view_args(self.rows, self.facts, "p_row", "r_"),
                **view_args(self.others, self.facts, "p_other", "c_"),
                **view_args(self.grad, self.facts, "p_grad", "g_"),
                "p_order": self.lists.order,
                "p_others": self.lists.others,
                "p_weight": weights,
                "p_starts": self.lists.starts,
                "p_owners": self.lists.owners,
                "p_target": self.lists.target,
                "p_extra": self.extra,
                "extra_stride": self.extra.stride(0),
                "first_feature": low,
                "last_feature": high,
                "SCORE": score_code(self.facts),
                "PLANES": self.facts.planes,
                "HAS_ORDER": self.lists.order is not None,
                "PAIRS": PULL_PAIRS,
                "FEATURES": PULL_FEATURES,
            },
            num_warps=1,
        )

    def add_pieces(self) -> None:
        """Sum the pieces of lists that were cut."""
        if self.lists.is_cut:
            _add_pieces(self.grad, self.extra, self.lists)


class _FilteredSide:
    """The gradient of the queries, or those of the table and the factor."""

    def __init__(
        self,
        queries: Tensor,
        table: Tensor,
        factor: Tensor | None,
        index: Tensor,
        facts: Score,
        need: tuple[bool, bool],
        *,
        by_table: bool,
    ) -> None:
        self.operands = queries, table, factor, facts
        self.by_table = by_table
        rows, pairs = table if by_table else queries, index.numel()
        length = max(PIECE_PAIRS, -(-8 * pairs * rows.shape[1] // EXTRA_BYTES))
        self.lists = (lists_of_ids if by_table else lists_of_queries)(index, length)
        count = len(self.lists.ids)
        self.grad = rows.new_zeros(count, rows.shape[1]) if need[0] else None
        self.grad_factor = None
        if need[1] and factor is not None:
            self.grad_factor = factor.new_zeros(count, factor.shape[1])
        extras = 1 + 2 * pairs // length if self.lists.is_cut else 1
        self.extra = extra_rows(self.grad, extras)
        self.extra_factor = extra_rows(self.grad_factor, extras)

    def pull(self, weights: Tensor, low: int, high: int) -> None:
        """Write features ``low .. high - 1`` of the gradients, or of their pieces."""
        into = self.grad, self.extra, self.grad_factor, self.extra_factor
        of_queries = not self.by_table
        pull_side(*self.operands, self.lists, weights, *into, low, high, of_queries=of_queries)

    def add_pieces(self) -> None:
        """Sum the pieces of lists that were cut."""
        parts = (self.grad, self.extra), (self.grad_factor, self.extra_factor)
        for grad, extra in parts:
            if self.lists.is_cut and grad is not None and extra is not None:
                _add_pieces(grad, extra, self.lists)


def _add_pieces(grad: Tensor, extra: Tensor, lists: Lists) -> None:
    """Sum the extra rows of lists that were cut."""
    width = grad.shape[1]
    launcher.launch(
        add_pieces,
        (len(grad), -(-width // ADD_COLUMNS)),
        {
            "p_grad": grad,
            "grad_stride": grad.stride(0),
            "p_extra": extra,
            "p_first": lists.first_extra,
            "width": width,
            "COLUMNS": ADD_COLUMNS,
        },
        num_warps=4,
    )
