"""The counts of one side of a ranking: its queries in batches, swept or scored in blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.batches import prepared_candidates
from kgfast.eval.blocks import BlockPool, Queries, rows_of
from kgfast.eval.candidate_ids import Given, ListedCandidates, pool_sizes, runs_of
from kgfast.eval.index import Index, panels_of
from kgfast.graph import KnownTriples, TypeConstraints
from kgfast.graph.named import Names
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.operands import Known, Lists, Operands
from kgfast.models.base import Side, candidates_at
from kgfast.models.blocks import BlockScorer
from kgfast.models.evaluated import evaluated_queries
from kgfast.models.relations import blocks_at
from kgfast.ops import run
from kgfast.ops.checks import check_queries

_PINNING = ("cuda",)  # devices that read pinned memory while the host goes on
KINDS = 6  # of counts
_GROUP = 1 << 17  # triples whose ids and counts lie on the device at a time: 8 MiB

Crops = dict[int | None, int | None]  # of the model -> of the operator


@dataclass(frozen=True)
class Plan:
    """The checked arguments of one call."""

    model: Any
    hrt: Tensor  # on the host
    known: KnownTriples | None
    sides: tuple[Side, ...]
    candidates: dict[Side, Given]
    batch_size: int
    nan_worst: bool
    names: Names
    index: Index | None = None


class SideCounts:
    """One side of the crops that share a sweep: what its batches share.

    The host waits once a batch, in the operator.
    """

    def __init__(self, plan: Plan, side: Side, crops: Crops) -> None:
        self.plan, self.side, self.num_crops = plan, side, len(crops)
        self.dims = [width for width in crops.values() if width is not None] or None
        # Queries and candidates of several crops are those of the whole model.
        self.dim = next(iter(crops)) if len(crops) == 1 else None
        self.given = plan.candidates[side]
        self.subset = self.given if isinstance(self.given, Tensor) else None
        relations = side == "relation"
        self.num_rows = plan.model.num_relations if relations else plan.model.num_entities
        self.pools = _block_pools(self, crops)
        if self.pools:
            self.device, self.sorted_ids = self.pools[0].scorer.device, self.pools[0].ids
            return
        candidates = candidates_at(plan.model, side, self.dim)
        self.device = candidates.table.device
        self.prepared = prepared_candidates(
            plan.model,
            candidates,
            self.subset,
            self.dims,
            allows_nan=plan.nan_worst,
            panels=panels_of(plan.index, plan.model, candidates, side, self.dim),
        )
        self.sorted_ids = self.prepared.sorted_ids

    def count(self, batches: list[Tensor], advance: Any) -> Tensor:
        """The counts of every triple, ``[6, C, G]`` on the host."""
        hrt = self.plan.hrt[torch.cat(batches)].T.contiguous()  # [3, G]
        sizes = [len(batch) for batch in batches]
        shape = (KINDS, self.num_crops, hrt.shape[1])
        counts = torch.empty(shape, dtype=torch.int64, device=self.device)
        columns = zip(
            batches,
            hrt.split(sizes, 1),
            _moved(hrt, self.device).split(sizes, 1),
            self._num_answers(hrt, sizes),
            counts.split(sizes, 2),
            strict=True,
        )
        for batch, on_host, here, num_answers, its_counts in columns:
            index = self._known_answers(on_host, here, num_answers)
            self._count_batch(batch, here, index, its_counts)
            advance(len(batch) * self.num_crops)
        return counts.cpu()

    def _count_batch(
        self, batch: Tensor, hrt: Tensor, index: tuple[Tensor, Tensor], counts: Tensor
    ) -> None:
        """Fill ``counts [6, C, B]``."""
        known = Known(*index)
        if isinstance(self.given, TypeConstraints):
            for part, relation in runs_of(hrt[1].cpu()):
                ids = _moved(self.given.candidates(relation, self.side), self.device)
                its_known = rows_of(known, part)
                self._count_part(batch[part], hrt[:, part], its_known, counts[:, :, part], ids)
        elif isinstance(self.given, ListedCandidates) and len(batch):
            first, last = int(batch[0]), int(batch[-1]) + 1
            lists = self.given.lists(first, last, self.num_rows, self.device)
            if not self.pools:
                self._count_part(batch, hrt, known, counts, lists=lists)
                return
            for row in range(len(batch)):  # a function is asked for one list at a time
                one, ids = slice(row, row + 1), lists.row(row)
                its_known = rows_of(known, one)
                self._count_part(batch[one], hrt[:, one], its_known, counts[:, :, one], ids)
        else:
            self._count_part(batch, hrt, known, counts)

    def _count_part(
        self,
        batch: Tensor,
        hrt: Tensor,
        known: Known,
        counts: Tensor,
        ids: Tensor | None = None,
        lists: Lists | None = None,
    ) -> None:
        """The same of queries that share their candidates, ascending ids if any, or have lists."""
        anchors, relations, targets = roles_of(hrt, self.side)
        ordered = self.sorted_ids if ids is None else ids
        counts[4], counts[5] = pool_sizes(known, targets, self.num_rows, ordered, lists)
        if self.pools:
            asked = Queries(anchors, relations)
            for crop, pool in enumerate(self.pools):
                own = pool if ids is None else replace(pool, ids=ids)
                counts[:4, crop] = torch.stack(own.counts(asked, targets, known))
            return
        prepared = self.prepared if ids is None else self.prepared.only(ids)
        queries = evaluated_queries(self.plan.model, anchors, relations, self.side, self.dim)
        check_queries(queries, prepared)
        checks = run.checks_for(self.device, allows_nan=self.plan.nan_worst)
        dims = None if self.dims is None else tuple(self.dims)
        try:
            result = run.rank_counts(
                Operands(queries, prepared, dims), targets, known, checks, lists
            )
        except NonFiniteError:
            check_finite_queries(queries, self.plan.hrt, batch, self.side)
            raise
        for row, values in zip(counts, result, strict=False):
            row.copy_(values.reshape(row.shape))

    def _num_answers(self, hrt: Tensor, sizes: Sequence[int]) -> list[int | None]:
        """The known answers of each batch; None where they are counted on the host anyway."""
        known = self.plan.known
        if known is None or known.device.type == "cpu":
            return [None] * len(sizes)
        anchors, relations, _ = roles_of(_moved(hrt, known.device), self.side)
        counts = known.counts(anchors, relations, self.side)
        return torch.stack([part.sum() for part in counts.split(sizes)]).cpu().tolist()

    def _known_answers(
        self, on_host: Tensor, here: Tensor, num_answers: int | None
    ) -> tuple[Tensor, Tensor]:
        """The known answers of a batch, CSR, from wherever the index is held."""
        known = self.plan.known
        if known is None:
            zeros = torch.zeros(here.shape[1] + 1, dtype=torch.int64, device=self.device)
            return zeros, zeros[:0]
        hrt = on_host if known.device.type == "cpu" else here
        anchors, relations, _ = roles_of(hrt, self.side)
        indptr, indices = known.exclude(anchors, relations, self.side, num_answers=num_answers)
        return _moved(indptr, self.device), _moved(indices, self.device)


def _block_pools(one_side: SideCounts, crops: Crops) -> list[BlockPool]:
    """The candidates of each crop, of a side that is scored in blocks; else none."""
    plan = one_side.plan
    scorers = [blocks_at(plan.model, one_side.side, dim) for dim in crops]
    return [
        BlockPool.of(scorer, one_side.side, one_side.subset, nan_worst=plan.nan_worst)
        for scorer in scorers
        if isinstance(scorer, BlockScorer)
    ]


def roles_of(hrt: Tensor, side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors, relations and targets of triples ``[3, B]``; of side relation, head, tail and it."""
    heads, relations, tails = hrt
    if side == "relation":
        return heads, tails, relations
    return (heads, relations, tails) if side == "tail" else (tails, relations, heads)


def _moved(values: Tensor, device: torch.device) -> Tensor:
    """Values on a device; the host does not wait for the copy."""
    if device.type in _PINNING and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def groups(plan: Plan, side: Side) -> Iterator[list[Tensor]]:
    """Rows of the triples in batches; equal queries stand together, as they share a sweep.

    Queries with candidates of their own stand as they are given: their lists may lie in a file.
    """
    given, size = plan.candidates[side], plan.batch_size
    if isinstance(given, ListedCandidates):
        size = min(size, given.batch_size())
        every = torch.arange(len(plan.hrt), dtype=torch.int64, device="cpu")
        yield from ([rows] for rows in every.split(size) if len(rows))
        return
    anchors, others, _ = roles_of(plan.hrt.T, side)
    order = (others * plan.model.num_entities + anchors).argsort(stable=True)
    batches = list(order.split(size)) if len(order) else []
    step = max(1, _GROUP // size)
    for first in range(0, len(batches), step):
        yield batches[first : first + step]


def check_finite_queries(queries: Tensor, hrt: Tensor, batch: Tensor, side: Side) -> None:
    """Name the triple whose query is not finite; tables are checked where they are read."""
    finite = queries.isfinite().all(1)
    if not bool(finite.all()):
        row = int(batch[~finite.to(batch.device)].min())
        raise ValueError(
            f"triples[{row}] = {tuple(hrt[row].tolist())}: its {side} query holds a NaN or "
            f"an infinity, from the embeddings of its entity or relation or from what filters them "
            f'(nan="worst" ranks it last)'
        )
