"""The index of known triples, which filtered ranking reads for each query."""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from kgfast.graph.named import Names, VocabularyLike, id_sets
from kgfast.graph.pair_index import (
    CHUNK,
    Columns,
    PairIndex,
    build_index,
    check_sizes,
    lower_bound,
)
from kgfast.graph.stored import build_folder, checksum_of, open_folder, write_folder
from kgfast.graph.triples import TriplesLike, as_triples_tensor, one_past_max
from kgfast.whole_files import new_folder

Side = Literal["head", "relation", "tail"]
Cardinality = Literal["1-1", "1-N", "N-1", "N-N"]


class KnownTriples:
    """Known triples, deduplicated and indexed both ways, for filtering.

    Two CSR indexes hold the known tails of each (h, r) and the known heads of each (r, t). A third
    index, the known relations of each (h, t), is made in memory at its first use. For files larger
    than memory, :meth:`build` makes the indexes in a folder, and :meth:`open` maps the folder.

    Parameters
    ----------
    *triples
        Any number of `Triples`, tensors, arrays or sequences `[T, 3]`, usually train, valid, test;
        or objects with `mapped_triples`.
    vocabulary
        A pair of vocabularies, or an object with vocabularies, for rows of names.
    num_times
        The number of times of quads `[T, 4]` (h, r, t, time). `Triples` of quads have theirs.
    times
        For quads, `"same"`: a query at a time leaves out what is known at that time; `"any"`: what
        is known at any time (the static filter).

    Raises
    ------
    TypeError, ValueError
        As `as_triples_tensor`; for rows of names without a vocabulary, for parts with different
        labels for an id or different numbers of times, for `times="any"` without times, and if
        (largest entity + 1) * (largest relation + 1) passes 2**63 - 1.

    Examples
    --------
    >>> known = KnownTriples([(0, 0, 2), (0, 0, 1)], [(0, 0, 1), (3, 0, 1)])
    >>> known
    KnownTriples(3 triples, 2 (h, r) pairs, 2 (r, t) pairs)
    >>> known.exclude(torch.tensor([3, 0]), torch.tensor([0, 0]), "tail")
    (tensor([0, 1, 3]), tensor([1, 1, 2]))
    """

    names: Names = (None, None)  # of a folder: its arrays are ids

    def __init__(
        self,
        *triples: TriplesLike,
        vocabulary: VocabularyLike | None = None,
        num_times: int | None = None,
        times: Literal["same", "any"] = "same",
    ) -> None:
        tensors, self.names, self.num_times = id_sets(triples, vocabulary, num_times)
        if times not in ("same", "any") or (times == "any" and self.num_times is None):
            raise ValueError(f"times must be 'same', or 'any' of quads; got {times!r}")
        self._times_of_key = (self.num_times or 1) if times == "any" else 1
        if self._times_of_key > 1:
            tensors = [ids // ids.new_tensor([1, self._times_of_key, 1]) for ids in tensors]
        num_entities = max((one_past_max(ids[:, ::2]) for ids in tensors), default=0)
        num_relations = max((one_past_max(ids[:, 1]) for ids in tensors), default=0)
        num_relations = -(-num_relations // self._width) * self._width  # all pairs of a relation
        sizes = num_entities, num_relations
        check_sizes(*sizes)

        def rows() -> Iterator[Columns]:
            for block in (block.numpy() for ids in tensors for block in ids.split(CHUNK)):
                yield block[:, 0], block[:, 1], block[:, 2]

        self._indices = {"tail": build_index("tail", rows, sum(map(len, tensors)), sizes)}
        self._index("head")

    @classmethod
    def build(
        cls,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        folder: str | os.PathLike[str],
    ) -> "KnownTriples":
        """Index files of ids that may be larger than memory, in a folder, and open the folder.

        Rows are sorted in a file that is mapped, so that the system chooses how much of the file
        stays in memory. The disk needs up to 48 bytes for each triple. The index has the integers
        of ``KnownTriples(...)`` for these triples, in any order and with any repeats.

        Parameters
        ----------
        files
            A path, or a list of paths: ``.npy`` ``[T, 3]`` of integers, or text, lines of three ids
            between tabs or spaces. Ids are whole numbers from 0.
        folder
            The folder to make, new or empty. Until the end, all files lie in a folder beside it,
            ``.<folder>-<process>``, which an error deletes and a kill leaves.

        Raises
        ------
        FileNotFoundError
            If a file is not there.
        ValueError
            For a file that is truncated, has other columns, or holds values that are no ids: the
            message names file and row, or line. For ids too large to index. If the folder is there
            already.
        OSError
            If the disk is too small.
        """
        paths = [files] if isinstance(files, str | os.PathLike) else files
        with new_folder(folder) as scratch:
            build_folder([Path(path) for path in paths], scratch)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "KnownTriples":
        """Open a folder that :meth:`build` wrote; its arrays are mapped and must not change.

        Raises FileNotFoundError if a file is not there, and ValueError if a file is truncated or
        damaged, or of another version.
        """
        known = cls.__new__(cls)
        facts = open_folder(Path(folder))
        known.checksum, known._indices, known.num_times, known._times_of_key = facts
        return known

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a new folder that :meth:`open` reads; a ValueError if the folder is there."""
        with new_folder(folder) as scratch:
            more = {} if self.num_times is None else {"times": (self.num_times, self._times_of_key)}
            write_folder(scratch, self._indices, **more)

    @property
    def sizes(self) -> tuple[int, int]:
        """Return one past the largest entity and one past the largest relation."""
        return self._indices["tail"].num_anchors, self._indices["tail"].num_others

    @cached_property
    def checksum(self) -> str:
        """Return the checksum of the triples: equal for equal triples, in memory or in a folder."""
        return checksum_of(self._indices["tail"])

    @property
    def num_triples(self) -> int:
        """Return the number of distinct triples."""
        return len(self._indices["tail"].indices)

    @property
    def device(self) -> torch.device:
        """Return the device that holds the index; see `to`."""
        return self._indices["tail"].pairs.device

    def exclude(
        self,
        anchors: Tensor,
        relations: Tensor,
        side: Side,
        *,
        num_answers: int | None = None,
        within: tuple[int, int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the known answers of each query, as CSR.

        Parameters
        ----------
        anchors, relations
            Integer `[B]`, on any device. An unseen pair has no known answers.
        side
            `"tail"`: anchors are heads, the answers the known tails of (h, r). `"head"`: anchors
            are tails, the answers the known heads of (r, t). `"relation"`: anchors are heads,
            `relations` holds tails, the answers the known relations of (h, t).
        num_answers
            The sum of `counts` of these queries, if known, so that the host need not wait for an
            index on a GPU.
        within
            ``(start, stop)``: only answers ``start .. stop - 1``; `num_answers` must then be None.

        Returns
        -------
        indptr
            int64 `[B + 1]`, on the anchors' device: query b has `indices[indptr[b]:indptr[b + 1]]`.
        indices
            int64 `[nnz]`, ascending and unique within a query.

        Raises
        ------
        TypeError, ValueError
            If anchors or relations are not integers of one shape `[B]`, or side is none of these.
        """
        index, times = self._index(side), self._times_of_key
        relations = relations if times == 1 or side == "relation" else relations // times
        is_one = anchors.shape == relations.shape == (1,) and within is None
        is_one = is_one and anchors.dtype == relations.dtype == torch.int64
        if is_one and index.files is None and index.pairs.device.type == "cpu":
            ids = index.of_pair(int(anchors), int(relations))
            indptr = torch.tensor([0, len(ids)], dtype=torch.int64, device=anchors.device)
            return indptr, ids.to(anchors.device, torch.int64)
        starts, ends = index.slices(anchors, relations)
        if within is not None:
            first, last = (torch.full_like(starts, id) for id in within)
            low = lower_bound(index.indices, first, starts, ends)
            starts, ends = low, lower_bound(index.indices, last, low, ends)
        counts = ends - starts
        indptr = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
        torch.cumsum(counts, 0, out=indptr[1:])
        # Position j of the result belongs to query b and reads starts[b] + (j - indptr[b]).
        shift = torch.repeat_interleave(starts - indptr[:-1], counts, output_size=num_answers)
        places = shift + torch.arange(len(shift), dtype=torch.int64, device=shift.device)
        ids = index.indices[places]
        if index.files is not None:
            index.check_ids(ids, self.sizes[side == "relation"])
        return indptr.to(anchors.device), ids.to(anchors.device, torch.int64)

    def counts(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Return the number of known answers of each query, int64 `[B]`; arguments as `exclude`."""
        times = 1 if side == "relation" else self._times_of_key
        starts, ends = self._index(side).slices(anchors, relations // times)
        return (ends - starts).to(anchors.device)

    def contains(self, triples: TriplesLike) -> Tensor:
        """Return whether each triple is known, bool `[T]`; errors as `as_triples_tensor`."""
        hrt = as_triples_tensor(triples, num_times=self.num_times)
        tails = self._indices["tail"]
        starts, ends = tails.slices(hrt[:, 0], hrt[:, 1] // self._times_of_key)
        ids = hrt[:, 2].to(starts.device)
        low = lower_bound(tails.indices, ids, starts, ends)
        is_known = low < ends
        is_known[is_known.clone()] = tails.indices[low[is_known]] == ids[is_known]
        return is_known.to(hrt.device)

    def relation_cardinalities(self) -> dict[int, Cardinality]:
        """Return the mapping class of each relation that occurs, such as "1-N".

        Heads and tails of quads are counted at each time, with `times="any"` at all times. A
        relation with under 1.5 heads per (r, t) on average is "1-", else "N-". A relation with
        under 1.5 tails per (h, r) is "-1", else "-N" (Bordes et al. 2013, section 4.3).
        """
        triples, pairs_hr = map(self._over_times, self._indices["tail"].per_relation())
        pairs_rt = self._over_times(self._indices["head"].per_relation()[1])
        heads = (triples >= 1.5 * pairs_rt).tolist()
        tails = (triples >= 1.5 * pairs_hr).tolist()
        kinds: tuple[tuple[Cardinality, Cardinality], ...] = (("1-1", "1-N"), ("N-1", "N-N"))
        occurring = triples.nonzero()[:, 0].tolist()
        return {relation: kinds[heads[relation]][tails[relation]] for relation in occurring}

    def entity_frequency(self) -> Tensor:
        """Count each entity among heads and tails of triples, int64 `[largest entity + 1]`."""
        return self._indices["tail"].per_anchor() + self._indices["head"].per_anchor()

    def relation_frequency(self) -> Tensor:
        """Return the number of triples of each relation, int64 `[largest relation + 1]`."""
        return self._over_times(self._indices["tail"].per_relation()[0])

    @property
    def _width(self) -> int:
        """Return the number of keys of a relation: one for each time, where times differ."""
        return (self.num_times or 1) // self._times_of_key

    def _over_times(self, counts: Tensor) -> Tensor:
        return counts.view(-1, self._width).sum(1)

    def to(self, device: torch.device | str) -> "KnownTriples":
        """Return the index on a device."""
        moved = KnownTriples.__new__(KnownTriples)
        moved.__dict__.update(self.__dict__)
        moved._indices = {side: index.to(device) for side, index in self._indices.items()}
        return moved

    def __len__(self) -> int:
        return self.num_triples

    def __repr__(self) -> str:
        pairs_hr, pairs_rt = (len(self._indices[side].pairs) for side in ("tail", "head"))
        pairs = f"{pairs_hr:,} (h, r) pairs, {pairs_rt:,} (r, t) pairs"
        return f"KnownTriples({len(self):,} triples, {pairs})"

    def _index(self, side: Side) -> PairIndex:
        if side not in self._indices:
            if side not in ("head", "relation"):
                raise ValueError(f"side must be 'head', 'relation' or 'tail', got {side!r}")
            if side == "relation":
                check_sizes(self.sizes[0], self.sizes[0], "(h, t)")
            tails = self._indices["tail"].to("cpu")
            index = build_index(side, tails.rows, len(tails.indices), self.sizes)
            self._indices[side] = index.to(self.device)
        return self._indices[side]
