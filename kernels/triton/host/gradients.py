"""Host's side of gradients of a block of pairs, and of lists of pairs in pieces."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...operands import Need, Operands
from ..device import backward as kernels
from ..device.backward import IndexLists, Sums
from . import launch as launcher
from .pull import SlopeFactors, add_parts
from .views import form_of, plane_of, rows_of, views_of

LIST_PAIRS, LIST_FEATURES, RSCF_LIST_FEATURES = 4, 64, 32
PIECE_PAIRS = 256  # fewest pairs of a piece
EXTRA_BYTES = 8 << 20


def segments(grad: Tensor, dims: Sequence[int]) -> Iterator[SlopeFactors]:
    """Yield ranges of features, the last first, with ``grad [C, ...]`` summed over the crops there.

    A crop adds to its own features, so the sum grows towards the first range.
    """
    coefficient = grad[-1]
    for crop in reversed(range(len(dims))):
        if crop + 1 < len(dims):
            coefficient = coefficient + grad[crop]
        yield SlopeFactors(dims[crop - 1] if crop else 0, dims[crop], coefficient)


def over_norms(values: Tensor, norms: Tensor) -> Tensor:
    """Return ``values / norms``, in the memory of ``norms``; 0 for a norm of 0."""
    is_zero = norms == 0
    return torch.div(values, norms, out=norms).masked_fill_(is_zero, 0.0)


class ListGradients:
    """Gradient of queries, or gradients of table and factor, of pairs in lists."""

    def __init__(self, operands: Operands, index: Tensor, need: Need, *, of_queries: bool) -> None:
        self.operands, self.of_queries = operands, of_queries
        rows, pairs = operands.queries if of_queries else operands.table, index.numel()
        length = max(PIECE_PAIRS, -(-8 * pairs * rows.shape[1] // EXTRA_BYTES))
        self.lists: PairLists
        if of_queries:
            self.lists = lists_of_queries(index, length)
        else:
            self.lists = lists_of_ids(index, length, len(operands.table))
        count = len(self.lists.ids) + (not of_queries)  # the row of spare pieces
        extras = 1 + 2 * pairs // length if self.lists.is_cut else 1
        factor = operands.factor if need.factor and not of_queries else None
        needed = (rows if of_queries or need.table else None), factor
        self._sums = [_zeros(like, count, extras) for like in needed]
        self.grads = [grad for grad, _ in self._sums]  # of the rows, and of the factor

    def write(self, slopes: SlopeFactors) -> None:
        """Write a range of features of the gradients, or of pieces."""
        operands, lists = self.operands, self.lists
        features = RSCF_LIST_FEATURES if operands.score.is_rscf else LIST_FEATURES
        (grad, extra), (factor, extra_factor) = self._sums
        planes = operands.query_planes if self.of_queries else None
        of_rows = None if grad is None else rows_of(grad, operands.score, planes)
        launcher.launch(
            kernels.backward_lists,
            (len(lists.pieces.target), -(-(slopes.high - slopes.low) // features)),
            {
                "views": views_of(operands),
                "lists": lists.pieces._replace(weight=slopes.coefficient),
                "sums": (
                    Sums(of_rows, extra),
                    Sums(None if factor is None else plane_of(factor), extra_factor),
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
        lists, count = self.lists, len(self.lists.ids)
        for grad, extra in self._sums:
            if lists.is_cut and grad is not None and extra is not None:
                sizes, tile = (count, 0, grad.shape[1]), (1, grad.shape[1])
                add_parts(extra, plane_of(grad), sizes, tile, first=lists.first_extra)


def _zeros(like: Tensor | None, count: int, extras: int) -> tuple[Tensor | None, Tensor | None]:
    """Make a gradient of rows, and float32 rows for the pieces of lists that are cut."""
    if like is None:
        return None, None
    width = like.shape[1]
    return like.new_zeros(count, width), like.new_zeros(extras, width, dtype=torch.float32)


@dataclass(frozen=True)
class PairLists:
    """Pairs of each gradient row, one after the other, in pieces."""

    pieces: IndexLists  # without the weights
    first_extra: Tensor  # [lists + 1]
    ids: Tensor  # [lists] row of each list
    is_cut: bool  # True if a list may have several pieces


def lists_of_queries(index: Tensor, length: int) -> PairLists:
    """Make a list per query, of the query's pairs, in pieces of at most ``length``."""
    num_queries, num_candidates = index.shape
    pieces = max(1, -(-num_candidates // length))
    places = _places(num_queries * pieces + 1, index)
    queries, piece = places[: num_queries + 1], places[:-1]
    starts = queries * num_candidates
    if pieces > 1:
        starts = (starts[:, None] + length * places[:pieces]).view(-1)[: len(places)]
    owners = queries[:-1, None].expand(-1, pieces).flatten().contiguous()
    lists = IndexLists(None, index.contiguous().view(-1), None, starts, owners, piece)
    if pieces > 1:
        lists = lists._replace(target=-1 - piece)
    return PairLists(lists, queries * pieces, queries[:-1], pieces > 1)


def lists_of_ids(index: Tensor, length: int, num_rows: int) -> PairLists:
    """Make a list per distinct id, with pairs in the order of the index, in pieces.

    The host does not wait for the number of lists: there are as many lists and pieces as can be
    needed. Spare lists have no pairs, stand at the end, and have the last id; spare pieces belong
    to list ``len(ids)``.
    """
    ids, order = index.flatten().sort(stable=True)
    pairs = len(ids)
    if not pairs:
        lists = IndexLists(order, order, None, ids.new_zeros(1), ids, ids)
        return PairLists(lists, ids.new_zeros(1), ids, False)
    num_lists = min(pairs, num_rows)
    num_pieces = min(pairs, num_lists + pairs // length)
    places = _places(pairs + 2, ids)
    first = torch.searchsorted(ids, ids)  # place of the first pair of an id
    piece_of = ((places[:pairs] - first) % length == 0).cumsum(0)
    starts = torch.searchsorted(piece_of, places[1 : num_pieces + 2])
    start = starts[:-1]
    first_pair = start.clamp(max=pairs - 1)
    list_of = (first[first_pair] == start).cumsum(0) - 1  # list of each piece
    list_of = torch.where(start < pairs, list_of, num_lists)
    first_piece = torch.searchsorted(list_of, places[: num_lists + 2])
    count = first_piece.diff()
    count[-1:].zero_()  # the spare pieces
    first_extra = torch.nn.functional.pad(torch.where(count > 1, count, 0).cumsum(0), (1, 0))
    extra = first_extra[list_of] + places[:num_pieces] - first_piece[list_of]
    target = torch.where(count[list_of] > 1, -1 - extra, list_of)
    owners = ids[first_pair]
    distinct = owners[first_piece[:-2].clamp(max=num_pieces - 1)]
    others = order.div(index.shape[1], rounding_mode="floor")
    lists = IndexLists(order, others, None, starts, owners, target)
    return PairLists(lists, first_extra[:-1], distinct, pairs > length)


def _places(count: int, like: Tensor) -> Tensor:
    """Return 0, 1, ... on the device of ``like``."""
    return torch.arange(count, dtype=torch.int64, device=like.device)
