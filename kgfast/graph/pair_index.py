"""CSR from pairs of ids to sorted ids, in which known triples are looked up."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.graph.ids import INT64_MAX

IntArray = npt.NDArray[np.int64]

_CHUNK = 1 << 22  # pairs that are read together: an index may lie in a file


@dataclass(frozen=True, eq=False)
class PairIndex:
    """CSR from pairs, packed as anchor * num_others + relation (or other), to ids."""

    pairs: Tensor  # int64 [P], ascending
    indptr: Tensor  # int32 or int64 [P + 1]
    indices: Tensor  # int32 or int64 [T], ascending within a pair
    num_anchors: int
    num_others: int
    files: Path | None = None  # path of an index in files: `files.indptr.npy`

    def slices(
        self, anchors: Tensor, relations: Tensor, within: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return start and end of each query's ids, int64 `[B]` each; equal for unseen pairs.

        `within` is the first id and one past the last id to return.
        """
        _check_queries(anchors, relations)
        anchors = anchors.to(self.pairs.device, torch.int64)
        relations = relations.to(self.pairs.device, torch.int64)
        # Ids out of range are unseen, too, and would collide with other pairs when packed.
        inside = (anchors >= 0) & (anchors < self.num_anchors)
        inside &= (relations >= 0) & (relations < self.num_others)
        packed = torch.where(inside, anchors * self.num_others + relations, -1)
        starts_at = torch.searchsorted(self.pairs, packed)
        ends_at = torch.searchsorted(self.pairs, packed, right=True)
        starts = self.indptr[starts_at].to(torch.int64)
        ends = self.indptr[ends_at].to(torch.int64)
        if self.files is not None:
            self._check_slices(starts, ends)
        for place, id in enumerate(within or ()):
            bound = lower_bound(self.indices, torch.full_like(starts, id), starts, ends)
            starts, ends = (starts, bound) if place else (bound, ends)
        return starts, ends

    def triples(self) -> IntArray:
        """Return the rows (anchor, relation, id), int64 `[T, 3]`, sorted."""
        self._check_all()
        pairs = np.repeat(self.pairs.numpy(), np.diff(self.indptr.numpy()))
        rows = np.empty((len(pairs), 3), np.int64)
        if len(pairs):
            np.floor_divide(pairs, self.num_others, out=rows[:, 0])
            np.remainder(pairs, self.num_others, out=rows[:, 1])
        rows[:, 2] = self.indices.numpy()
        return rows

    def per_relation(self) -> tuple[Tensor, Tensor]:
        """Return the number of triples and of pairs of each relation, int64 `[num_others]`."""
        triples, pairs = torch.zeros(
            (2, self.num_others), dtype=torch.int64, device=self.pairs.device
        )
        for keys, counts in self._chunks():
            relations = keys % max(self.num_others, 1)
            triples.index_add_(0, relations, counts)
            pairs += torch.bincount(relations, minlength=self.num_others)
        return triples, pairs

    def per_anchor(self, size: int) -> Tensor:
        """Return the number of triples of each anchor, int64 `[size]`."""
        triples = torch.zeros(size, dtype=torch.int64, device=self.pairs.device)
        for keys, counts in self._chunks():
            triples.index_add_(0, keys // max(self.num_others, 1), counts)
        return triples

    def to(self, device: torch.device | str) -> "PairIndex":
        moves = torch.device(device).type != self.pairs.device.type
        if moves:
            self._check_all()
        return PairIndex(
            self.pairs.to(device),
            self.indptr.to(device),
            self.indices.to(device),
            self.num_anchors,
            self.num_others,
            None if moves else self.files,
        )

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs, and the number of ids of each, int64."""
        for first in range(0, len(self.pairs), _CHUNK):
            pairs = self.pairs[first : first + _CHUNK]
            indptr = self.indptr[first : first + len(pairs) + 1]
            if self.files is not None:
                self._check_slices(indptr[:-1], indptr[1:])
                self._refuse((pairs < 0) | (pairs >= self.num_anchors * self.num_others), "pairs")
            yield pairs, indptr.diff().to(torch.int64)

    def check_ids(self, ids: Tensor, limit: int) -> None:
        """Check that ids read from a file are below a limit."""
        if self.files is not None:
            self._refuse((ids < 0) | (ids >= limit), "indices")

    def _check_all(self) -> None:
        for _ in self._chunks() if self.files is not None else ():
            pass

    def _check_slices(self, starts: Tensor, ends: Tensor) -> None:
        """Check that slices lie within the ids: a file may be damaged."""
        self._refuse((starts < 0) | (starts > ends) | (ends > len(self.indices)), "indptr")

    def _refuse(self, bad: Tensor, part: str) -> None:
        if bool(bad.any()):
            raise ValueError(
                f"{self.files}.{part}.npy: damaged: values do not ascend within their range; "
                "KnownTriples.open(folder, verify=True) says which files are damaged"
            )


def build_index(
    rows: list[IntArray], num_anchors: int, num_others: int, num_ids: int | None = None
) -> PairIndex:
    """Sort rows (anchor, relation, id) `[T, 3]`, drop duplicates, and cut them into pairs.

    `num_ids` defaults to `num_anchors`.
    """
    num_ids = num_anchors if num_ids is None else num_ids
    narrow = narrow_dtype(num_ids)
    pairs = np.concatenate([_packed(part, num_others) for part in rows])
    ids = np.concatenate([part[:, 2] for part in rows], dtype=narrow, casting="unsafe")
    pairs, ids = sorted_unique(pairs, ids, num_ids)
    starts = np.flatnonzero(differs_from_previous(pairs))
    indptr = np.append(starts, len(pairs)).astype(narrow_dtype(len(ids) + 1), copy=False)
    return PairIndex(
        torch.from_numpy(pairs[starts]),
        torch.from_numpy(indptr),
        torch.from_numpy(ids.astype(narrow, copy=False)),
        num_anchors,
        num_others,
    )


def check_sizes(num_entities: int, num_relations: int, *, has_relations: bool = False) -> None:
    """Check that pairs of ids pack into an int64; with `has_relations`, also pairs (h, t)."""
    if num_entities * num_relations > INT64_MAX:
        raise ValueError(
            f"ids are too large to index: {num_entities} entities times {num_relations} "
            f"relations passes 2**63 - 1"
        )
    if has_relations and num_entities * num_entities > INT64_MAX:
        raise ValueError(
            f"ids are too large to index by (h, t): {num_entities} entities squared pass 2**63 - 1"
        )


def narrow_dtype(size: int) -> type[np.int32] | type[np.int64]:
    """Return the dtype of integers 0 .. size - 1."""
    return np.int32 if size <= 2**31 else np.int64


def sorted_unique(
    pairs: IntArray, ids: npt.NDArray[Any], num_ids: int
) -> tuple[IntArray, npt.NDArray[Any]]:
    """Return the distinct (pair, id), by pair, then id; `pairs` are overwritten."""
    if not len(pairs):
        return pairs, ids
    least = int(pairs.min())
    if (int(pairs.max()) - least + 1) * num_ids <= INT64_MAX:
        # One int64 holds pair and id: a plain sort, many times faster than an argsort.
        keys = pairs
        keys -= least
        keys *= num_ids
        keys += ids
        keys.sort()
        keys = keys[differs_from_previous(keys)]
        pairs = keys // num_ids
        keys -= pairs * num_ids
        pairs += least
        return pairs, keys
    order = np.lexsort((ids, pairs))
    pairs, ids = pairs[order], ids[order]
    new = differs_from_previous(pairs) | differs_from_previous(ids)
    return pairs[new], ids[new]


def _packed(rows: IntArray, num_others: int) -> IntArray:
    packed = rows[:, 0] * num_others
    packed += rows[:, 1]
    return packed


def differs_from_previous(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Mark values that differ from the previous value, and the first value."""
    differs = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=differs[1:])
    return differs


def lower_bound(indices: Tensor, ids: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """Return the first position in each slice with a value >= the slice's id, all at once."""
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
