"""Queries of one side with shared candidates, and the division of a call into such queries."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.candidates import CheckedIds, ListedIds
from kgfast.graph import TypeConstraints
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.operands import Known, Lists
from kgfast.models.base import Side

CPU = torch.device("cpu")
_FIRST = torch.zeros(1, dtype=torch.int64, device=CPU)
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
        Function of these queries and a place: the query there in words, for errors.
    targets : Tensor or None
        int64 ``[B]``: the candidates that are ranked.
    ids : Tensor or None
        int64, ascending: the only candidates.
    vectors : Tensor or None
        ``[B, F]``, once made; None for functions.
    target_scores : Tensor or None
        Canonical, float64 ``[C, B]``. None where the sweep scores targets.
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

    def __len__(self) -> int:
        return len(self.anchors)

    def part(self, rows: slice, ids: Tensor | None = None) -> "Queries":
        """Return some of the queries with their known answers; ``ids`` are new candidates."""
        few, known = self.where(rows), self.known
        few.ids = ids
        if known is not None:
            indptr = known.indptr[rows.start : rows.stop + 1]
            indices = known.indices[int(indptr[0]) : int(indptr[-1])]
            few.known = Known(indptr - indptr[0], indices)
        return few

    def batches(self, first: int, size: int) -> "list[Queries]":
        """Cut the queries into a batch of ``first`` queries and others of ``size``."""
        ends = [0, *range(first, len(self), size), len(self)]
        return [self.part(slice(*two)) for two in pairwise(ends)]

    def where(self, chosen: Tensor | slice) -> "Queries":
        """Return the queries of a mask on the host, with vectors and without known answers."""
        few = replace(self, known=None, lists=None, target_scores=None)
        for name in ("rows", "anchors", "others", "targets", "vectors"):
            values = getattr(self, name)
            if values is not None:
                here = chosen if isinstance(chosen, slice) else chosen.to(values.device)
                setattr(few, name, values[here])
        return few

    def check_finite(self) -> None:
        """Raise for the first query of the call that is not finite."""
        assert self.vectors is not None
        bad = (~self.vectors.isfinite().all(1)).nonzero()[:, 0].cpu()
        if len(bad):
            query, side, hint = self.words(self, int(bad[self.rows[bad].argmin()])), "", ""
            if self.targets is not None:
                side, hint = f"{self.side} ", ' (nan="worst" ranks it last)'
            raise NonFiniteError(
                f"{query}: the {side}query holds a NaN or an infinity, from the embeddings of the "
                f"entity or relation or from the filters on them{hint}"
            )


def shared(queries: Queries, candidate_ids: CheckedIds, source: Any) -> list[Queries]:
    """Cut queries into parts with shared candidates.

    Queries must be ordered by relation if each relation has candidates of its own.
    """
    if isinstance(candidate_ids, TypeConstraints) and len(queries):
        parts, last = [], 0
        relations, counts = queries.others.cpu().unique_consecutive(return_counts=True)
        for relation, count in zip(relations.tolist(), counts.tolist(), strict=True):
            first, last = last, last + count
            ids = moved(candidate_ids.candidates(relation, queries.side), source.home)
            parts.append(queries.part(slice(first, last), ids))
        return parts
    if isinstance(candidate_ids, ListedIds) and len(queries):
        first, last = int(queries.rows[0]), int(queries.rows[-1]) + 1
        lists = candidate_ids.lists(first, last, source.num_rows, source.home)
        if not source.has_lists:
            rows = range(len(queries))
            return [queries.part(slice(row, row + 1), lists.row(row)) for row in rows]
        queries.lists = lists
    return [queries]


def places(count: int) -> Tensor:
    """Return ``0 .. count - 1`` on the host, not to be written to."""
    return _FIRST if count == 1 else torch.arange(count, dtype=torch.int64, device=CPU)


def roles_of(hrt: Tensor, side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """Return anchors, others and targets of triples ``[B, 3]``."""
    heads, relations, tails = hrt.unbind(1)
    if side == "relation":
        return heads, tails, relations
    return (heads, relations, tails) if side == "tail" else (tails, relations, heads)


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
