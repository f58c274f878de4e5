"""CSR from pairs of ids to sorted ids: what known triples are looked up in."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.graph.ids import INT64_MAX

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PairIndex:
    """CSR from pairs, packed as anchor * num_others + relation (or other), to ids."""

    pairs: Tensor  # int64 [P], ascending
    indptr: Tensor  # int64 [P + 1]
    indices: Tensor  # int32 or int64 [T], ascending within a pair
    num_anchors: int
    num_others: int

    def slices(self, anchors: Tensor, relations: Tensor) -> tuple[Tensor, Tensor]:
        """Return start and end of each query's ids, int64 `[B]` each; equal where it is unseen."""
        _check_queries(anchors, relations)
        anchors = anchors.to(self.pairs.device, torch.int64)
        relations = relations.to(self.pairs.device, torch.int64)
        # Ids out of range are unseen, too, and packing them would collide with other pairs.
        inside = (anchors >= 0) & (anchors < self.num_anchors)
        inside &= (relations >= 0) & (relations < self.num_others)
        packed = torch.where(inside, anchors * self.num_others + relations, -1)
        starts_at = torch.searchsorted(self.pairs, packed)
        ends_at = torch.searchsorted(self.pairs, packed, right=True)
        return self.indptr[starts_at], self.indptr[ends_at]

    def triples(self) -> IntArray:
        """Return the rows (anchor, relation, id), int64 `[T, 3]`, sorted."""
        pairs = np.repeat(self.pairs.numpy(), np.diff(self.indptr.numpy()))
        rows = np.empty((len(pairs), 3), np.int64)
        if len(pairs):
            np.floor_divide(pairs, self.num_others, out=rows[:, 0])
            np.remainder(pairs, self.num_others, out=rows[:, 1])
        rows[:, 2] = self.indices.numpy()
        return rows

    def per_relation(self) -> tuple[Tensor, Tensor]:
        """Return the number of triples and of pairs of each relation, int64 `[num_others]`."""
        relations = self.pairs % max(self.num_others, 1)
        triples = torch.zeros(self.num_others, dtype=torch.int64, device=self.pairs.device)
        triples.index_add_(0, relations, self.indptr.diff())
        return triples, torch.bincount(relations, minlength=self.num_others)

    def per_anchor(self, size: int) -> Tensor:
        """Return the number of triples of each anchor, int64 `[size]`."""
        anchors = self.pairs // max(self.num_others, 1)
        triples = torch.zeros(size, dtype=torch.int64, device=self.pairs.device)
        return triples.index_add_(0, anchors, self.indptr.diff())

    def to(self, device: torch.device | str) -> "PairIndex":
        """Return the same index held on a device."""
        return PairIndex(
            self.pairs.to(device),
            self.indptr.to(device),
            self.indices.to(device),
            self.num_anchors,
            self.num_others,
        )


def build_index(
    rows: list[IntArray], num_anchors: int, num_others: int, num_ids: int | None = None
) -> PairIndex:
    """Sort rows (anchor, relation, id) `[T, 3]`, drop duplicates, and cut them into pairs.

    Ids are as many as anchors where they are not said to be others.
    """
    num_ids = num_anchors if num_ids is None else num_ids
    pairs, ids = _sorted_unique(rows, num_anchors, num_others, num_ids)
    starts = np.flatnonzero(_differs_from_previous(pairs))
    indptr = np.append(starts, len(pairs)).astype(np.int64, copy=False)
    narrow = np.int32 if num_ids <= 2**31 else np.int64
    return PairIndex(
        torch.from_numpy(pairs[starts]),
        torch.from_numpy(indptr),
        torch.from_numpy(ids.astype(narrow, copy=False)),
        num_anchors,
        num_others,
    )


def _sorted_unique(
    rows: list[IntArray], num_anchors: int, num_others: int, num_ids: int
) -> tuple[IntArray, IntArray]:
    """Return packed pairs and ids of the distinct rows, sorted by pair, then id."""
    if num_anchors * num_others * num_ids <= INT64_MAX:
        # One int64 holds the whole row: a plain sort, many times faster than an argsort.
        keys = np.concatenate([_packed(part, num_others, num_ids) for part in rows])
        keys.sort()
        keys = keys[_differs_from_previous(keys)]
        return np.divmod(keys, max(num_ids, 1))
    pairs = np.concatenate([_packed(part, num_others) for part in rows])
    ids = np.concatenate([part[:, 2] for part in rows])
    order = np.lexsort((ids, pairs))
    pairs, ids = pairs[order], ids[order]
    new = _differs_from_previous(pairs) | _differs_from_previous(ids)
    return pairs[new], ids[new]


def _packed(rows: IntArray, *sizes: int) -> IntArray:
    packed = rows[:, 0].copy()
    for column, size in enumerate(sizes, start=1):
        packed *= size
        packed += rows[:, column]
    return packed


def _differs_from_previous(values: IntArray) -> npt.NDArray[np.bool_]:
    differs = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=differs[1:])
    return differs


def lower_bound(indices: Tensor, ids: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Return the first position in each slice whose value is >= its id: all searches at once."""
    low, high = starts, ends
    longest = int((ends - starts).max()) if len(starts) else 0
    for _ in range(longest.bit_length()):
        middle = (low + high) // 2
        beyond = middle.clamp(max=len(indices) - 1)  # read only where low == high: not used
        right = (low < high) & (indices[beyond] < ids)
        low, high = (torch.where(right, middle + 1, low), torch.where(right, high, middle))
    return low


def _check_queries(anchors: Tensor, relations: Tensor) -> None:
    for name, ids in (("anchors", anchors), ("relations", relations)):
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise TypeError(f"{name} must be integers, got dtype {ids.dtype}")
        if ids.ndim != 1 or len(ids) != len(anchors):
            raise ValueError(
                f"anchors and relations must have one shape [B], "
                f"got {list(anchors.shape)} and {list(relations.shape)}"
            )
