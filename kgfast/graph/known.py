"""The index of known triples, which filtered ranking reads for each query."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.graph.named import VocabularyLike, check_same_names, names_of, with_names
from kgfast.graph.pair_index import PairIndex, build_index, check_sizes, lower_bound
from kgfast.graph.stored import building
from kgfast.graph.stored.folder import checksum_of, open_folder, write_folder
from kgfast.graph.stored.inputs import ReadOptions
from kgfast.graph.triples import Triples, TriplesLike, as_triples_tensor, one_past_max
from kgfast.storage import memory_limit
from kgfast.whole_files import new_folder

Side = Literal["head", "relation", "tail"]
Cardinality = Literal["1-1", "1-N", "N-1", "N-N"]
IntArray = npt.NDArray[np.int64]


class KnownTriples:
    """Known triples, deduplicated and indexed both ways, for filtering.

    Two CSR indexes hold the known tails of each (h, r) and the known heads of each (r, t). A third
    index, the known relations of each (h, t), is made at its first use. Memory grows with the
    number of triples, not with the size of the id space. For files larger than memory,
    :meth:`build` makes the indexes in a folder, and :meth:`open` maps the folder.

    Parameters
    ----------
    *triples
        Any number of `Triples`, tensors, arrays or sequences `[T, 3]`, usually train, valid, test;
        or lists of such; or objects with `mapped_triples`.
    vocabulary
        A pair of vocabularies, or an object with vocabularies, for rows of names.

    Raises
    ------
    TypeError, ValueError
        As `as_triples_tensor`; for rows of names without a vocabulary, and for parts with different
        labels for an id.
    ValueError
        If (largest entity + 1) * (largest relation + 1) passes 2**63 - 1.

    Examples
    --------
    >>> known = KnownTriples([(0, 0, 2), (0, 0, 1)], [(0, 0, 1), (3, 0, 1)])
    >>> known
    KnownTriples(3 triples, 2 (h, r) pairs, 2 (r, t) pairs)
    >>> known.exclude(torch.tensor([3, 0]), torch.tensor([0, 0]), "tail")
    (tensor([0, 1, 3]), tensor([1, 1, 2]))
    """

    def __init__(
        self,
        *triples: TriplesLike | Iterable[TriplesLike],
        vocabulary: VocabularyLike | None = None,
    ) -> None:
        tensors, names = [], names_of(vocabulary)
        for part in sets_of(triples):
            ids, own = with_names(part, vocabulary)
            check_same_names(own, names, "the parts before")
            names = names[0] or own[0], names[1] or own[1]
            tensors.append(as_triples_tensor(ids).cpu())
        num_entities = max((one_past_max(part[:, ::2]) for part in tensors), default=0)
        num_relations = max((one_past_max(part[:, 1]) for part in tensors), default=0)
        check_sizes(num_entities, num_relations)
        rows = [part.numpy() for part in tensors] or [np.empty((0, 3), np.int64)]
        self._num_entities = num_entities
        self._tails = build_index(rows, num_entities, num_relations)
        unique = self._tails.triples()
        self._heads = build_index([unique[:, ::-1]], num_entities, num_relations)
        self._relations: PairIndex | None = None
        self._folder: Path | None = None
        self._checksum: str | None = None

    @classmethod
    def build(
        cls,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        folder: str | os.PathLike[str],
        *,
        num_entities: int | None = None,
        num_relations: int | None = None,
        columns: str = "hrt",
        relations: bool = False,
        max_memory: int | str = "1GiB",
        progress: bool = False,
    ) -> "KnownTriples":
        r"""Index files of ids that may be larger than memory, in a folder, and open the folder.

        Rows are sorted in parts, and merged. Memory grows with `max_memory`, disk with the number
        of triples, up to 44 bytes each (60 with `relations`). The index has the integers of
        ``KnownTriples(...)`` for these triples, in any order and with any repeats.

        Parameters
        ----------
        files
            A path, or a list of paths: ``.npy`` ``[T, 3]``; Parquet, of columns head, relation,
            tail (or h, r, t; subject, predicate, object; source, relation, target); lines of three
            ids between tabs or spaces (``.tsv``, ``.txt``, ``.del``); folders of such. Ids are
            whole numbers from 0.
        folder
            The folder to make. Until the end, all files lie in ``<folder>.building``. If the call
            is killed, or the disk is full, the same call resumes from there.
        num_entities, num_relations
            Ids must lie below these, if given.
        columns
            The order of the columns of ``.npy`` and text.
        relations
            Also index the relations of (h, t), for the side "relation".
        max_memory
            A number of bytes, or a text like ``"4GiB"``.
        progress
            Show a progress bar.

        Raises
        ------
        FileNotFoundError, FileExistsError
            If a file is not there; if the folder is there already.
        ValueError, TypeError
            For a file that is truncated, has other columns, or holds values that are no ids or out
            of range: the message names file and row, or line. For ids too large to index. If
            another process builds the same folder.
        ImportError
            For Parquet, without pyarrow.
        OSError
            If the disk is full: finished work is saved.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     parts = [f"{folder}/a.npy", f"{folder}/b.tsv"]
        ...     np.save(parts[0], [(0, 0, 2), (0, 0, 1)])
        ...     _ = Path(parts[1]).write_text("0\t0\t1\n3\t0\t1\n")
        ...     KnownTriples.build(parts, f"{folder}/known")
        KnownTriples(3 triples, 2 (h, r) pairs, 2 (r, t) pairs)
        """
        asked = ReadOptions(columns, num_entities, num_relations)
        limit = memory_limit(max_memory)
        building.build(files, folder, building.Options(asked, limit, relations, progress))
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool = False) -> "KnownTriples":
        """Open a folder that :meth:`build` wrote; arrays stay in their files, mapped.

        Parameters
        ----------
        folder
            The folder, which must not change while it is open.
        verify
            Read all files, and compare their checksums.

        Raises
        ------
        FileNotFoundError
            If the folder, or one of its files, is not there.
        ValueError
            If a file is truncated or damaged, or of another version.
        """
        known = cls.__new__(cls)
        known._open(folder, verify=verify)
        return known

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index as a new folder that :meth:`open` reads, whole or not at all.

        Raises
        ------
        ValueError
            If the folder is there already.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     KnownTriples([(0, 0, 1)]).save(f"{folder}/known")
        ...     KnownTriples.open(f"{folder}/known")
        KnownTriples(1 triples, 1 (h, r) pairs, 1 (r, t) pairs)
        """
        indices = {"tail": self._tails, "head": self._heads}
        if self._folder is None or self._relations is not None:
            indices["relation"] = self._of_pairs()
        with new_folder(folder) as scratch:
            write_folder(scratch, self.sizes, indices)

    @property
    def sizes(self) -> tuple[int, int]:
        """Return one past the largest entity and one past the largest relation."""
        return self._num_entities, self._tails.num_others

    def _open(self, folder: str | os.PathLike[str], *, verify: bool = False) -> None:
        stored = open_folder(folder, verify=verify)
        self._num_entities, self._checksum = stored.num_entities, stored.checksum
        self._tails, self._heads = stored.indices["tail"], stored.indices["head"]
        self._relations = stored.indices.get("relation")
        self._folder = Path(folder).resolve()

    @property
    def checksum(self) -> str:
        """Return the checksum of the triples: equal for equal triples, in memory or in a folder.

        A folder stores the checksum. For triples in memory, the checksum is computed at the first
        use, some of the values at a time.

        Examples
        --------
        >>> one = KnownTriples([(0, 0, 1), (2, 0, 1)])
        >>> one.checksum == KnownTriples([(2, 0, 1), (0, 0, 1), (0, 0, 1)]).checksum
        True
        """
        if self._checksum is None:
            self._checksum = checksum_of(self._tails)
        return self._checksum

    @property
    def num_triples(self) -> int:
        """Return the number of distinct triples."""
        return len(self._tails.indices)

    @property
    def device(self) -> torch.device:
        """Return the device that holds the index; see `to`."""
        return self._tails.pairs.device

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
            The predicted side. `"tail"`: anchors are heads, the answers the known tails of (h, r);
            `"head"`: anchors are tails, the answers the known heads of (r, t). `"relation"`:
            anchors are heads, `relations` holds tails, the answers the known relations of (h, t).
        num_answers
            The sum of `counts` of these queries, if known: with this number, an index on a GPU
            answers without making the host wait.
        within
            ``(start, stop)``: only answers ``start .. stop - 1``, for a shard of the entities.
            Other answers are not copied. `num_answers` must then be None.

        Returns
        -------
        indptr
            int64 `[B + 1]`, on the anchors' device: query b has `indices[indptr[b]:indptr[b + 1]]`.
        indices
            int64 `[nnz]`, ascending and unique within a query.

        Raises
        ------
        TypeError
            If anchors or relations are not integers.
        ValueError
            If side is none of these, if anchors and relations do not have one shape `[B]`, or if
            both num_answers and within are given.

        Examples
        --------
        >>> known = KnownTriples([(0, 0, 1), (2, 0, 1)])
        >>> known.exclude(torch.tensor([1]), torch.tensor([0]), "head")
        (tensor([0, 2]), tensor([0, 2]))
        """
        index = self._index(side)
        if within is not None and num_answers is not None:
            raise ValueError(
                "num_answers counts all answers: leave num_answers out if within is given"
            )
        starts, ends = index.slices(anchors, relations, within)
        counts = ends - starts
        indptr = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
        torch.cumsum(counts, 0, out=indptr[1:])
        # Position j of the result belongs to query b and reads starts[b] + (j - indptr[b]).
        shift = torch.repeat_interleave(starts - indptr[:-1], counts, output_size=num_answers)
        indices = index.indices[
            shift + torch.arange(len(shift), dtype=torch.int64, device=shift.device)
        ]
        index.check_ids(indices, self._num_ids(side))
        return indptr.to(anchors.device), indices.to(anchors.device, torch.int64)

    def counts(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Return the number of known answers of each query, int64 `[B]`; arguments as `exclude`.

        Examples
        --------
        >>> known = KnownTriples([(0, 0, 1), (0, 0, 2)])
        >>> known.counts(torch.tensor([0, 1]), torch.tensor([0, 0]), "tail")
        tensor([2, 0])
        """
        starts, ends = self._index(side).slices(anchors, relations)
        return (ends - starts).to(anchors.device)

    def contains(self, triples: TriplesLike) -> Tensor:
        """Return whether each triple is known, bool `[T]`, on the triples' device.

        Raises
        ------
        TypeError, ValueError
            As `as_triples_tensor`.

        Examples
        --------
        >>> KnownTriples([(0, 0, 1)]).contains([(0, 0, 1), (1, 0, 0)])
        tensor([ True, False])
        """
        hrt = as_triples_tensor(triples)
        starts, ends = self._tails.slices(hrt[:, 0], hrt[:, 1])
        ids = hrt[:, 2].to(starts.device)
        low = lower_bound(self._tails.indices, ids, starts, ends)
        is_known = low < ends
        is_known[is_known.clone()] = self._tails.indices[low[is_known]] == ids[is_known]
        return is_known.to(hrt.device)

    def relation_cardinalities(self) -> dict[int, Cardinality]:
        """Return the mapping class of each relation that occurs.

        A relation with under 1.5 heads per (r, t) on average is "1-", else "N-". A relation with
        under 1.5 tails per (h, r) is "-1", else "-N" (Bordes et al. 2013, section 4.3).

        Examples
        --------
        >>> KnownTriples([(0, 0, 1), (0, 0, 2), (0, 1, 1)]).relation_cardinalities()
        {0: '1-N', 1: '1-1'}
        """
        triples, pairs_hr = self._tails.per_relation()
        _, pairs_rt = self._heads.per_relation()
        names: dict[tuple[bool, bool], Cardinality] = {
            (False, False): "1-1",
            (False, True): "1-N",
            (True, False): "N-1",
            (True, True): "N-N",
        }
        return {
            relation: names[bool(total >= 1.5 * by_tail), bool(total >= 1.5 * by_head)]
            for relation, (total, by_head, by_tail) in enumerate(
                zip(triples.tolist(), pairs_hr.tolist(), pairs_rt.tolist(), strict=True)
            )
            if total
        }

    def entity_frequency(self) -> Tensor:
        """Count the triples with each entity as head or tail, int64 `[largest entity + 1]`.

        Examples
        --------
        >>> KnownTriples([(0, 0, 1), (0, 0, 3)]).entity_frequency()
        tensor([2, 1, 0, 1])
        """
        return self._tails.per_anchor(self._num_entities) + self._heads.per_anchor(
            self._num_entities
        )

    def relation_frequency(self) -> Tensor:
        """Return the number of triples of each relation, int64 `[largest relation + 1]`.

        Examples
        --------
        >>> KnownTriples([(0, 0, 1), (0, 2, 3)]).relation_frequency()
        tensor([1, 0, 1])
        """
        return self._tails.per_relation()[0]

    def to(self, device: torch.device | str) -> "KnownTriples":
        """Return the index on a device."""
        moved = KnownTriples.__new__(KnownTriples)
        moved._num_entities = self._num_entities
        moved._tails = self._tails.to(device)
        moved._heads = self._heads.to(device)
        moved._relations = None if self._relations is None else self._relations.to(device)
        moved._folder, moved._checksum = self._folder, self._checksum
        return moved

    def __getstate__(self) -> dict[str, Any]:
        """Return the path of a folder: another process maps the files of the folder."""
        if self._folder is None or self.device.type != "cpu":
            return self.__dict__
        return {"_folder": self._folder, "_checksum": self._checksum}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "_tails" in state:
            return
        self._open(self._folder or "")
        if self._checksum != state["_checksum"]:
            raise ValueError(f"{self._folder} holds other triples than at the earlier opening")

    def __len__(self) -> int:
        return self.num_triples

    def __repr__(self) -> str:
        return (
            f"KnownTriples({len(self):,} triples, {len(self._tails.pairs):,} (h, r) pairs, "
            f"{len(self._heads.pairs):,} (r, t) pairs)"
        )

    def _index(self, side: Side) -> "PairIndex":
        if side == "relation":
            return self._of_pairs()
        if side not in ("head", "tail"):
            raise ValueError(f"side must be 'head', 'relation' or 'tail', got {side!r}")
        return self._tails if side == "tail" else self._heads

    def _num_ids(self, side: Side) -> int:
        return self._tails.num_others if side == "relation" else self._num_entities

    def _of_pairs(self) -> "PairIndex":
        """Return the relations of each (h, t), made at the first call."""
        if self._relations is None:
            size = self._num_entities
            if self._folder is not None:
                raise ValueError(
                    f"{self._folder} was built without the relations of (h, t): build the folder "
                    "with relations=True"
                )
            check_sizes(size, self._tails.num_others, has_relations=True)
            rows = self._tails.to("cpu").triples()[:, [0, 2, 1]]
            index = build_index([rows], size, size, self._tails.num_others)
            self._relations = index.to(self.device)
        return self._relations


def sets_of(triples: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the sets of triples: the elements of a list of objects with two axes."""
    for part in triples:
        if isinstance(part, set | frozenset):
            yield list(part)
        elif isinstance(part, list | tuple) and any(_is_set(element) for element in part):
            yield from sets_of(tuple(part))
        else:
            yield part


def _is_set(value: Any) -> bool:
    """Return whether a value is a set of triples, not one triple."""
    if isinstance(value, Triples | set | frozenset) or hasattr(value, "mapped_triples"):
        return True
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == 2
    return isinstance(value, list | tuple) and any(
        isinstance(element, list | tuple) or getattr(element, "ndim", 0) == 1 for element in value
    )
