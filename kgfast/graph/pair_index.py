"""CSR from pairs of ids to sorted ids, in which known triples are looked up."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.graph.ids import INT64_MAX, as_integers

Column = npt.NDArray[Any]
Columns = tuple[Column, Column, Column]  # anchors, relations (or others) and ids of rows
Room = Callable[[str, type[np.integer[Any]], int], Column]  # array by name, dtype and length

# Columns of anchor, other and id.
_SIDES = {"tail": (0, 1, 2), "head": (2, 1, 0), "relation": (0, 2, 1)}
CHUNK = 1 << 22  # rows that are worked on together: an index may lie in a file


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
        anchors = as_integers("anchors", anchors).to(self.pairs.device)
        relations = as_integers("relations", relations).to(self.pairs.device)
        if anchors.ndim != 1 or anchors.shape != relations.shape:
            raise ValueError(
                f"anchors and relations must have one shape [B], "
                f"got {list(anchors.shape)} and {list(relations.shape)}"
            )
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

    def of_pair(self, anchor: int, relation: int) -> Tensor:
        """Return the ids of one query; for many queries :meth:`slices` is faster."""
        if not (0 <= anchor < self.num_anchors and 0 <= relation < self.num_others):
            return self.indices[:0]
        pair = anchor * self.num_others + relation
        place = int(torch.searchsorted(self.pairs, pair))
        if place == len(self.pairs) or int(self.pairs[place]) != pair:
            return self.indices[:0]
        start, end = self.indptr[place : place + 2].tolist()
        return self.indices[start:end]

    def check_ids(self, ids: Tensor, num_ids: int) -> None:
        """Check that ids of an index in files are below `num_ids`."""
        self._refuse((ids < 0) | (ids >= num_ids), "indices")

    def rows(self) -> Iterator[Columns]:
        """Yield anchors, relations (or others) and ids of the rows in order, many at a time."""
        for pairs, starts, counts in self._chunks():
            keys = np.repeat(pairs.numpy(), counts.numpy())
            anchors = keys // self.num_others
            keys -= anchors * self.num_others
            yield anchors, keys, self.indices[starts : starts + len(keys)].numpy()

    def per_relation(self) -> tuple[Tensor, Tensor]:
        """Return the number of triples and of pairs of each relation, int64 `[num_others]`."""
        triples, pairs = torch.zeros(
            (2, self.num_others), dtype=torch.int64, device=self.pairs.device
        )
        for keys, _, counts in self._chunks():
            relations = keys % self.num_others
            triples.index_add_(0, relations, counts)
            pairs += torch.bincount(relations, minlength=self.num_others)
        return triples, pairs

    def per_anchor(self) -> Tensor:
        """Return the number of triples of each anchor, int64 `[num_anchors]`."""
        triples = torch.zeros(self.num_anchors, dtype=torch.int64, device=self.pairs.device)
        for keys, _, counts in self._chunks():
            triples.index_add_(0, keys // self.num_others, counts)
        return triples

    def to(self, device: torch.device | str) -> "PairIndex":
        if torch.device(device).type == self.pairs.device.type:
            return self
        for _ in self._chunks():  # a damaged file is refused here
            pass
        parts = [array.to(device) for array in (self.pairs, self.indptr, self.indices)]
        return replace(self, pairs=parts[0], indptr=parts[1], indices=parts[2], files=None)

    def _chunks(self) -> Iterator[tuple[Tensor, int, Tensor]]:
        """Yield pairs, the place of their first id, and the number of ids of each, int64."""
        for first in range(0, len(self.pairs), CHUNK):
            pairs = self.pairs[first : first + CHUNK]
            indptr = self.indptr[first : first + len(pairs) + 1]
            if self.files is not None:
                ends = indptr[[0, -1]]
                self._refuse((ends < 0) | (ends > len(self.indices)), "indptr")
                self._refuse(indptr[1:] < indptr[:-1], "indptr")
                self._refuse((pairs < 0) | (pairs >= self.num_anchors * self.num_others), "pairs")
            yield pairs, int(indptr[0]), indptr.diff().to(torch.int64)

    def _refuse(self, bad: Tensor, name: str) -> None:
        """Raise if a file, which may be damaged, gave bad values."""
        if bool(bad.any()):
            raise ValueError(
                f"{self.files}.{name}.npy: damaged: values do not ascend within their range"
            )


def build_index(
    side: str,
    rows: Callable[[], Iterator[Columns]],
    count: int,
    sizes: tuple[int, int],
    room: Room = lambda name, dtype, count: np.empty(count, dtype),
) -> PairIndex:
    """Sort rows by the pair that asks for a side, drop duplicates, and cut them into pairs.

    `rows` yields `count` rows (head, relation, tail), some at a time, in any order, and may be
    called twice. `sizes` are one past the largest entity and relation.

    Cost model: one sort of 8 bytes a row, in the array "keys" of `room`, which may lie in a file.
    """
    turned = itemgetter(*_SIDES[side])
    num_anchors, num_others, num_ids = turned((*sizes, sizes[0]))

    def packed() -> Iterator[tuple[Column, Column]]:
        for anchors, others, ids in map(turned, rows()):
            pairs = anchors.astype(np.uint64)
            pairs *= np.uint64(num_others)
            np.add(pairs, others, out=pairs, dtype=np.uint64, casting="unsafe")
            yield pairs, ids

    distinct: Column | None = None
    if num_anchors * num_others * num_ids > 2**64:  # keys count the pairs that occur
        distinct = np.unique(np.concatenate([pairs for pairs, _ in packed()]))
    keys, done = room("keys", np.uint64, count), 0
    for pairs, ids in packed():
        if distinct is not None:
            pairs = np.searchsorted(distinct, pairs).astype(np.uint64)
        pairs *= np.uint64(num_ids)
        here = keys[done : done + len(pairs)]
        np.add(pairs, ids, out=here, dtype=np.uint64, casting="unsafe")
        done += len(pairs)
    keys.sort()
    keys = _distinct(keys)

    def cut() -> Iterator[tuple[int, Column, Column, Column]]:
        """Yield the place of the first id, ids, places of the first of each pair, and pairs."""
        before = None
        for first in range(0, len(keys), CHUNK):
            ids = keys[first : first + CHUNK]
            pairs = ids // np.uint64(num_ids)
            starts = np.flatnonzero(_differs(pairs, before))
            before = pairs[-1]
            yield first, ids - pairs * np.uint64(num_ids), starts, pairs[starts]

    blocks = list(cut()) if len(keys) <= CHUNK else None  # else cut twice
    num_pairs, done = sum(len(starts) for _, _, starts, _ in blocks or cut()), 0
    pairs = room("pairs", np.int64, num_pairs)
    indptr = room("indptr", narrow_dtype(len(keys) + 1), num_pairs + 1)
    indices = room("indices", narrow_dtype(num_ids), len(keys))
    for first, ids, starts, keys_of_pairs in blocks or cut():
        indices[first : first + len(ids)] = ids
        filled = slice(done, done + len(starts))
        pairs[filled] = keys_of_pairs if distinct is None else distinct[keys_of_pairs]
        indptr[filled] = first + starts
        done = filled.stop
    indptr[-1] = len(keys)
    parts = torch.from_numpy(pairs), torch.from_numpy(indptr), torch.from_numpy(indices)
    return PairIndex(*parts, num_anchors, num_others)


def check_sizes(num_anchors: int, num_others: int, what: str = "(h, r)") -> None:
    """Check that pairs of ids pack into an int64."""
    if num_anchors * num_others > INT64_MAX:
        raise ValueError(
            f"ids are too large to index by {what}: {num_anchors} times {num_others} passes "
            "2**63 - 1"
        )


def narrow_dtype(size: int) -> type[np.int32] | type[np.int64]:
    """Return the dtype of integers 0 .. size - 1."""
    return np.int32 if size <= 2**31 else np.int64


def _distinct(keys: Column) -> Column:
    """Move the distinct of sorted keys to the front, and return these."""
    count = 0
    for first in range(0, len(keys), CHUNK):
        block = keys[first : first + CHUNK]
        block = block[_differs(block, keys[count - 1] if count else None)]
        keys[count : count + len(block)] = block
        count += len(block)
    return keys[:count]


def _differs(values: Column, before: Any) -> npt.NDArray[np.bool_]:
    """Mark values that differ from the previous value; `before` is that of the first, or None."""
    differs = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=differs[1:])
    if before is not None and len(values):
        differs[0] = values[0] != before
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
