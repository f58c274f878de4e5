"""CSR from pairs of ids to sorted ids, in which known triples are looked up."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.graph.ids import INT64_MAX

IntArray = npt.NDArray[np.int64]
Column = npt.NDArray[Any]

_CHUNK = 1 << 22  # ids that are read together: an index may lie in a file


@dataclass(frozen=True, eq=False)
class PairIndex:
    """CSR from pairs, packed as anchor * num_others + relation (or other), to ids."""

    pairs: Tensor  # int64 [P], ascending
    indptr: Tensor  # int32 or int64 [P + 1]
    indices: Tensor  # int32 or int64 [T], ascending within a pair
    num_anchors: int
    num_others: int
    files: Path | None = None  # path of an index in files: `files.indptr.npy`

    def slices(self, anchors: Tensor, relations: Tensor) -> tuple[Tensor, Tensor]:
        """Return start and end of each query's ids, int64 `[B]` each; equal for unseen pairs."""
        for name, ids in (("anchors", anchors), ("relations", relations)):
            if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
                raise TypeError(f"{name} must be integers, got dtype {ids.dtype}")
        if anchors.ndim != 1 or anchors.shape != relations.shape:
            raise ValueError(
                f"anchors and relations must have one shape [B], "
                f"got {list(anchors.shape)} and {list(relations.shape)}"
            )
        anchors = anchors.to(self.pairs.device, torch.int64)
        relations = relations.to(self.pairs.device, torch.int64)
        # Ids out of range are unseen, too, and would collide with other pairs when packed.
        inside = (anchors >= 0) & (anchors < self.num_anchors)
        inside &= (relations >= 0) & (relations < self.num_others)
        queries = torch.where(inside, anchors * self.num_others + relations, -1)
        # The pair after an integer begins where the integer ends.
        both = torch.stack([queries, queries + 1])
        starts, ends = self.indptr[torch.searchsorted(self.pairs, both)].to(torch.int64)
        if self.files is not None:
            self._refuse((starts < 0) | (starts > ends) | (ends > len(self.indices)), "indptr")
        return starts, ends

    def check_ids(self, ids: Tensor, num_ids: int) -> None:
        """Check that ids of an index in files are below `num_ids`."""
        self._refuse((ids < 0) | (ids >= num_ids), "indices")

    def columns(self, most: int) -> Iterator[tuple[Column, Column, Column]]:
        """Yield anchors, relations (or others) and ids of the rows in order, `most` at a time."""
        indptr, indices = self.indptr.numpy(), self.indices.numpy()
        for first in range(0, len(indices), most):
            last = min(first + most, len(indices))
            low = int(np.searchsorted(indptr, np.asarray(first, indptr.dtype), "right")) - 1
            high = int(np.searchsorted(indptr, np.asarray(last, indptr.dtype)))
            counts = np.diff(indptr[low : high + 1].clip(first, last))
            pairs = np.repeat(self.pairs[low:high].numpy(), counts)
            anchors = pairs // self.num_others
            pairs -= anchors * self.num_others
            yield anchors, pairs, indices[first:last]

    def triples(self) -> IntArray:
        """Return the rows (anchor, relation, id), int64 `[T, 3]`, sorted."""
        rows = np.empty((len(self.indices), 3), np.int64)
        for columns in self.columns(max(1, len(rows))):
            rows[:, 0], rows[:, 1], rows[:, 2] = columns
        return rows

    def per_relation(self) -> tuple[Tensor, Tensor]:
        """Return the number of triples and of pairs of each relation, int64 `[num_others]`."""
        triples, pairs = torch.zeros(
            (2, self.num_others), dtype=torch.int64, device=self.pairs.device
        )
        for keys, counts in self._chunks():
            relations = keys % self.num_others
            triples.index_add_(0, relations, counts)
            pairs += torch.bincount(relations, minlength=self.num_others)
        return triples, pairs

    def per_anchor(self) -> Tensor:
        """Return the number of triples of each anchor, int64 `[num_anchors]`."""
        triples = torch.zeros(self.num_anchors, dtype=torch.int64, device=self.pairs.device)
        for keys, counts in self._chunks():
            triples.index_add_(0, keys // self.num_others, counts)
        return triples

    def to(self, device: torch.device | str) -> "PairIndex":
        if torch.device(device).type == self.pairs.device.type:
            return self
        for _ in self._chunks():  # a damaged file is refused here
            pass
        parts = [part.to(device) for part in (self.pairs, self.indptr, self.indices)]
        return replace(self, pairs=parts[0], indptr=parts[1], indices=parts[2], files=None)

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pairs, and the number of ids of each, int64."""
        for first in range(0, len(self.pairs), _CHUNK):
            pairs = self.pairs[first : first + _CHUNK]
            indptr = self.indptr[first : first + len(pairs) + 1]
            if self.files is not None:
                ends = indptr[[0, -1]]
                self._refuse((ends < 0) | (ends > len(self.indices)), "indptr")
                self._refuse(indptr[1:] < indptr[:-1], "indptr")
                self._refuse((pairs < 0) | (pairs >= self.num_anchors * self.num_others), "pairs")
            yield pairs, indptr.diff().to(torch.int64)

    def _refuse(self, bad: Tensor, part: str) -> None:
        """Raise if values read from a file, which may be damaged, are bad."""
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
    pairs = np.concatenate([packed(part[:, 0], part[:, 1], num_others) for part in rows])
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


def packed(anchors: Column, others: Column, num_others: int) -> IntArray:
    """Return anchor * num_others + other."""
    pairs: IntArray = anchors.astype(np.int64)
    pairs *= num_others
    pairs += others
    return pairs


def sorted_unique(pairs: IntArray, ids: Column, num_ids: int) -> tuple[IntArray, Column]:
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


def differs_from_previous(values: Column) -> npt.NDArray[np.bool_]:
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
