"""Queries of one side with shared candidates, and the division of a call into such queries."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.candidate_ids import Given, ListedCandidates, pool_sizes, runs_of
from kgfast.graph import KnownTriples, TypeConstraints
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.operands import Known, Lists
from kgfast.models.base import Side

CPU = torch.device("cpu")
_PINNING = ("cuda",)  # devices that read pinned memory while the host goes on


@dataclass
class Queries:
    """Queries of one side with shared candidates.

    Attributes
    ----------
    rows : Tensor
        int64 ``[B]``, on the host: places of the queries in the call.
    anchors, others : Tensor
        int64 ``[B]``; ``others`` are relations, or tails where relations are predicted.
    words : callable
        Function of these queries and a place: the error message for a query that is not finite.
    targets : Tensor or None
        int64 ``[B]``: the candidates that are ranked.
    ids : Tensor or None
        int64, ascending: the only candidates.
    vectors : Tensor or None
        ``[B, F]``, once made; None for functions.
    target_scores : Tensor or None
        Canonical, float64 ``[C, B]``. None where the sweep scores targets.
    target_rows : Tensor or None
        Rows of the distinct targets, ascending, of queries with lists.
    """

    side: Side
    rows: Tensor
    anchors: Tensor
    others: Tensor
    words: Callable[["Queries", int], str]
    known: Known | None = None
    targets: Tensor | None = None
    ids: Tensor | None = None
    lists: Lists | None = None
    vectors: Tensor | None = None
    target_scores: Tensor | None = None
    target_rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.anchors)

    def part(self, rows: slice, ids: Tensor | None = None) -> "Queries":
        """Return some of the queries; ``ids`` are new candidates for them."""
        return replace(
            self,
            rows=self.rows[rows],
            anchors=self.anchors[rows],
            others=self.others[rows],
            known=None if self.known is None else rows_of(self.known, rows),
            targets=None if self.targets is None else self.targets[rows],
            ids=ids,
            lists=None,
        )

    def __getitem__(self, rows: slice) -> "Queries":
        return self.part(rows)

    def batches(self, size: int) -> "list[Queries]":
        """Cut the queries into batches; no queries are one batch."""
        if len(self) <= size:
            return [self]
        return [self[first : first + size] for first in range(0, len(self), size)]

    def where(self, chosen: Tensor) -> "Queries":
        """Return the queries of a mask on the host, with vectors and without known answers."""

        def some(values: Tensor | None) -> Any:
            return None if values is None else values[chosen.to(values.device)]

        rows, anchors, others = some(self.rows), some(self.anchors), some(self.others)
        own = Queries(self.side, rows, anchors, others, self.words)
        own.targets, own.vectors, own.ids = some(self.targets), some(self.vectors), self.ids
        return own

    def check_finite(self) -> None:
        """Raise for the first query of the call that is not finite."""
        assert self.vectors is not None
        bad = (~self.vectors.isfinite().all(1)).nonzero()[:, 0].cpu()
        if len(bad):
            raise NonFiniteError(self.words(self, int(bad[self.rows[bad].argmin()])))

    def sizes(self, num_rows: int, sorted_ids: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return :func:`pool_sizes` of these queries; ``sorted_ids`` are the shared candidates."""
        assert self.known is not None
        assert self.targets is not None
        ids = sorted_ids if self.ids is None else self.ids
        return pool_sizes(self.known, self.targets, num_rows, ids, self.lists)


def shared(queries: Queries, given: Given, source: Any) -> Iterator[tuple[slice, Queries]]:
    """Cut queries into parts with shared candidates; yield the rows of a part, and the part.

    Queries must be ordered by relation if each relation has candidates of its own.
    """
    every = slice(0, len(queries))
    if isinstance(given, TypeConstraints) and len(queries):
        for part, relation in runs_of(queries.others.cpu()):
            ids = moved(given.candidates(relation, queries.side), source.home)
            yield part, queries.part(part, ids)
    elif isinstance(given, ListedCandidates) and len(queries):
        first, last = int(queries.rows[0]), int(queries.rows[-1]) + 1
        queries.lists = given.lists(first, last, source.num_rows, source.home)
        if source.has_lists:
            yield every, queries
            return
        for row in range(len(queries)):
            yield (one := slice(row, row + 1)), queries.part(one, queries.lists.row(row))
    else:
        yield every, queries


def roles_of(hrt: Tensor, side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """Return anchors, others and targets of triples ``[3, B]``."""
    heads, relations, tails = hrt
    if side == "relation":
        return heads, tails, relations
    return (heads, relations, tails) if side == "tail" else (tails, relations, heads)


def known_answers(
    known: KnownTriples | None,
    asked: tuple[Tensor, Tensor],
    side: Side,
    device: torch.device,
    **options: Any,
) -> Known:
    """Return known answers on a device, as CSR; options are those of the argument ``exclude``."""
    if known is None:
        zeros = torch.zeros(len(asked[0]) + 1, dtype=torch.int64, device=device)
        return Known(zeros, zeros[:0])
    found = known.exclude(*asked, side, **options)
    return Known(*(moved(part, device) for part in found))


def mean_answers(known: KnownTriples | None, asked: tuple[Tensor, Tensor], side: Side) -> int:
    """Return the mean number of known answers of queries."""
    if known is None or not len(asked[0]):
        return 0
    anchors, relations = (ids.contiguous().to(known.device) for ids in asked)
    return int(known.counts(anchors, relations, side).double().mean())


def rows_of(known: Known, rows: slice) -> Known:
    """Return the known answers of some queries."""
    indptr = known.indptr[rows.start : rows.stop + 1]
    return Known(indptr - indptr[0], known.indices[int(indptr[0]) : int(indptr[-1])])


def within(known: Known, first: int, last: int) -> Known:
    """Return the known answers among rows ``first .. last - 1``, counted from ``first``."""
    found = among_rows(known, first, last)
    return Known(found.indptr, found.indices - first)


def among_rows(known: Known | Lists, first: int, last: int) -> Known:
    """Return the ids of each query among rows ``first .. last - 1``, as CSR."""
    inside = (known.indices >= first) & (known.indices < last)
    before = torch.nn.functional.pad(inside.cumsum(0), (1, 0))
    return Known(before[known.indptr], known.indices[inside])


def among(known: Known, ids: Tensor) -> Known:
    """Return the known answers among ascending ``ids``, as places in ``ids``."""
    inside = torch.isin(known.indices, ids)
    before = torch.nn.functional.pad(inside.cumsum(0), (1, 0))
    return Known(before[known.indptr], torch.searchsorted(ids, known.indices[inside]))


def between(ids: Tensor, start: int, stop: int) -> tuple[int, int]:
    """Return the first place and the end of ascending ids within ``start .. stop - 1``."""
    ends = torch.tensor([start, stop], dtype=torch.int64, device=ids.device)
    first, last = torch.searchsorted(ids, ends).tolist()
    return first, last


def moved(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device; the host does not wait for the copy."""
    if device.type in _PINNING and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
