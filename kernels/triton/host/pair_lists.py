"""The pairs of an index as lists that share a gradient row, in pieces of bounded length."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PairLists:
    """Pairs of each gradient row, one after the other, in pieces."""

    order: Tensor | None  # [places] pair of each place; None: the place itself
    others: Tensor  # [places] row of the other side
    starts: Tensor  # [pieces + 1] first place of each piece
    owners: Tensor  # [pieces] row that the pairs of a piece share
    target: Tensor  # [pieces] gradient row, or -1 - extra row where a list has several pieces
    first_extra: Tensor  # [lists + 1]
    ids: Tensor  # [lists] row of each list
    is_cut: bool  # True if a list may have several pieces


def lists_of_queries(index: Tensor, length: int) -> PairLists:
    """Make a list per query, of the query's pairs, in pieces of at most ``length``."""
    num_queries, num_candidates = index.shape
    pieces = max(1, -(-num_candidates // length))
    ids = _places(num_queries + 1, index)
    piece = _places(num_queries * pieces + 1, index)
    query = piece.div(pieces, rounding_mode="floor")
    starts = query * num_candidates + (piece - query * pieces) * length
    target = ids[:-1] if pieces == 1 else -1 - piece[:-1]
    others = index.contiguous().view(-1)
    return PairLists(None, others, starts, query[:-1], target, ids * pieces, ids[:-1], pieces > 1)


def lists_of_ids(index: Tensor, length: int, num_rows: int) -> PairLists:
    """Make a list per distinct id, with pairs in the order of the index, in pieces.

    The host does not wait for the number of lists: there are as many lists and pieces as can be
    needed. Spare lists have no pairs, stand at the end, and have the last id; spare pieces belong
    to list ``len(ids)``.
    """
    ids, order = index.flatten().sort(stable=True)
    if not len(ids):
        return PairLists(order, order, ids.new_zeros(1), ids, ids, ids.new_zeros(1), ids, False)
    place = _places(len(ids), ids)
    is_new = torch.ones_like(ids, dtype=torch.bool)
    torch.ne(ids[1:], ids[:-1], out=is_new[1:])
    first = torch.where(is_new, place, 0).cummax(0).values
    list_of = is_new.cumsum(0) - 1
    piece_of = ((place - first) % length == 0).cumsum(0) - 1
    pairs = len(ids)
    num_lists = min(pairs, num_rows)
    num_pieces = min(pairs, num_lists + pairs // length)
    starts = torch.searchsorted(piece_of, _places(num_pieces + 1, ids))
    first_pair = starts[:-1].clamp(max=pairs - 1)
    list_of = torch.where(starts[:-1] < pairs, list_of[first_pair], num_lists)  # list of each piece
    first_piece = torch.searchsorted(list_of, _places(num_lists + 2, ids))
    count = first_piece.diff()
    count[-1:].zero_()  # the spare pieces
    first_extra = torch.nn.functional.pad(torch.where(count > 1, count, 0).cumsum(0), (1, 0))
    piece = _places(num_pieces, ids)
    extra = first_extra[list_of] + piece - first_piece[list_of]
    target = torch.where(count[list_of] > 1, -1 - extra, list_of)
    owners = ids[first_pair]
    distinct = owners[first_piece[:-2].clamp(max=num_pieces - 1)]
    others = order.div(index.shape[1], rounding_mode="floor")
    is_cut = pairs > length
    return PairLists(order, others, starts, owners, target, first_extra[:-1], distinct, is_cut)


def _places(count: int, like: Tensor) -> Tensor:
    """Return 0, 1, ... on the device of ``like``."""
    return torch.arange(count, dtype=torch.int64, device=like.device)
