"""The index of known triples: what filtered ranking asks for each query."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.graph.ids import INT64_MAX
from kgfast.graph.named import check_same_names, names_of, with_names
from kgfast.graph.pair_index import PairIndex, build_index, lower_bound
from kgfast.graph.triples import Triples, as_triples_tensor, one_past_max

Side = Literal["head", "relation", "tail"]
Cardinality = Literal["1-1", "1-N", "N-1", "N-N"]
IntArray = npt.NDArray[np.int64]


class KnownTriples:
    """The known triples, deduplicated and indexed both ways, for filtering.

    Two CSR indices: the known tails of each (h, r) and the known heads of each (r, t); a third, the
    known relations of each (h, t), is made when it is first asked for. Memory goes with the number
    of triples, not with the size of the id space.

    Parameters
    ----------
    *triples
        Any number of `Triples`, tensors, arrays or sequences `[T, 3]`, usually train, valid, test;
        or lists of such; or objects with `mapped_triples`.
    vocabulary
        A pair of vocabularies, or what has them: for rows of names.

    Raises
    ------
    TypeError, ValueError
        As `as_triples_tensor`; for rows of names without a vocabulary, and for parts whose labels
        name an id differently.
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

    def __init__(self, *triples: Any, vocabulary: Any = None) -> None:
        tensors, names = [], names_of(vocabulary)
        for part in _sets(triples):
            ids, own = with_names(part, vocabulary)
            check_same_names(own, names, "the parts before")
            names = names[0] or own[0], names[1] or own[1]
            tensors.append(as_triples_tensor(ids).cpu())
        num_entities = max((one_past_max(part[:, ::2]) for part in tensors), default=0)
        num_relations = max((one_past_max(part[:, 1]) for part in tensors), default=0)
        if num_entities * num_relations > INT64_MAX:
            raise ValueError(
                f"ids are too large to index: {num_entities} entities times {num_relations} "
                f"relations passes 2**63 - 1"
            )
        rows = [part.numpy() for part in tensors] or [np.empty((0, 3), np.int64)]
        self._num_entities = num_entities
        self._tails = build_index(rows, num_entities, num_relations)
        unique = self._tails.triples()
        self._heads = build_index([unique[:, ::-1]], num_entities, num_relations)
        self._relations: PairIndex | None = None

    @property
    def num_triples(self) -> int:
        """Number of distinct triples.

        Examples
        --------
        >>> KnownTriples([(0, 0, 1), (0, 0, 1)]).num_triples
        1
        """
        return len(self._tails.indices)

    @property
    def device(self) -> torch.device:
        """Where the index is held; see `to`.

        Examples
        --------
        >>> KnownTriples([(0, 0, 1)]).device
        device(type='cpu')
        """
        return self._tails.pairs.device

    def exclude(
        self, anchors: Tensor, relations: Tensor, side: Side, *, num_answers: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the known answers of each query, as CSR.

        Parameters
        ----------
        anchors, relations
            Integer `[B]`, on any device. An unseen pair has no known answers.
        side
            What is predicted. `"tail"`: anchors are heads, the answers the known tails of (h, r);
            `"head"`: anchors are tails, the answers the known heads of (r, t). `"relation"`:
            anchors are heads, `relations` holds tails, the answers the known relations of (h, t).
        num_answers
            The sum of `counts` of these queries, if it is at hand: an index on a GPU then answers
            without making the host wait.

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
            If side is none of these, or anchors and relations are not of one shape `[B]`.

        Examples
        --------
        >>> known = KnownTriples([(0, 0, 1), (2, 0, 1)])
        >>> known.exclude(torch.tensor([1]), torch.tensor([0]), "head")
        (tensor([0, 2]), tensor([0, 2]))
        """
        index = self._index(side)
        starts, ends = index.slices(anchors, relations)
        counts = ends - starts
        indptr = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
        torch.cumsum(counts, 0, out=indptr[1:])
        # Position j of the result belongs to query b and reads starts[b] + (j - indptr[b]).
        shift = torch.repeat_interleave(starts - indptr[:-1], counts, output_size=num_answers)
        indices = index.indices[
            shift + torch.arange(len(shift), dtype=torch.int64, device=shift.device)
        ]
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

    def contains(self, triples: Any) -> Tensor:
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

        A relation is "1-" if it has under 1.5 heads per (r, t) on average, else "N-"; "-1" if it
        has under 1.5 tails per (h, r), else "-N" (Bordes et al. 2013, section 4.3).

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
        """Return how often each entity is a head or a tail, int64 `[largest entity + 1]`.

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
        """Return the same index held on a device.

        Examples
        --------
        >>> KnownTriples([(0, 0, 1)]).to("cpu").num_triples
        1
        """
        moved = KnownTriples.__new__(KnownTriples)
        moved._num_entities = self._num_entities
        moved._tails = self._tails.to(device)
        moved._heads = self._heads.to(device)
        moved._relations = None if self._relations is None else self._relations.to(device)
        return moved

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

    def _of_pairs(self) -> "PairIndex":
        """The relations of each (h, t); made once, for all who ask."""
        if self._relations is None:
            size = self._num_entities
            if size * size > INT64_MAX:
                raise ValueError(
                    f"ids are too large to index by (h, t): {size} entities squared pass 2**63 - 1"
                )
            rows = self._tails.to("cpu").triples()[:, [0, 2, 1]]
            index = build_index([rows], size, size, self._tails.num_others)
            self._relations = index.to(self.device)
        return self._relations


def _sets(triples: tuple[Any, ...]) -> Iterator[Any]:
    """The sets of triples: what a list holds, where it holds things with two axes."""
    for part in triples:
        if isinstance(part, set | frozenset):
            yield list(part)
        elif isinstance(part, list | tuple) and any(_is_set(element) for element in part):
            yield from _sets(tuple(part))
        else:
            yield part


def _is_set(value: Any) -> bool:
    """Whether a value is triples, and not one of them."""
    if isinstance(value, Triples | set | frozenset) or hasattr(value, "mapped_triples"):
        return True
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == 2
    return isinstance(value, list | tuple) and any(
        isinstance(element, list | tuple) or getattr(element, "ndim", 0) == 1 for element in value
    )
