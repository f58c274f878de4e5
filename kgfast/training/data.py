"""Batches and negatives of a step, drawn from its number alone, on the CPU.

Generators are seeded with the seed of the run and the number of the step, so samplers have no
state, and a resumed run draws the batches of an uninterrupted run. No Python loop runs over
triples.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast.graph import KnownTriples
from kgfast.models.base import SIDES, Side
from kgfast.rng import Stream, mix

_STREAM_OF = {"head": Stream.HEAD_BATCHES, "tail": Stream.TAIL_BATCHES}
_ROUNDS = 8  # rounds of replacing known answers; negatives that are still known are masked
_AHEAD = 2  # batches that are made ahead of the current step
_PINNING = ("cuda",)  # devices that copy from pinned memory while the host goes on
_ALIGNED = 64  # bytes; a kernel is compiled anew for pointers with smaller alignment


@dataclass(frozen=True)
class Batch:
    """Queries of a batch, all on one side.

    Attributes
    ----------
    number : int
        Number of the batch in the run, from 0.
    side : {"head", "tail"}
        The predicted side.
    anchors, relations : Tensor
        int64 ``[B]``.
    targets : Tensor, optional
        int64 ``[B]``; None for KvsAll, with several targets per query.
    weights : Tensor, optional
        Weights in the loss, float32 ``[B]``.
    negatives, mask : Tensor, optional
        Result of :meth:`Negatives.draw`.
    indptr, answers : Tensor, optional
        All targets of each query, such as :meth:`kgfast.KnownTriples.exclude` returns.
    """

    number: int
    side: Side
    anchors: Tensor
    relations: Tensor
    targets: Tensor | None
    weights: Tensor | None
    negatives: Tensor | None = None
    mask: Tensor | None = None
    indptr: Tensor | None = None
    answers: Tensor | None = None

    @property
    def columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Anchors, relations and targets, int64 ``[B]`` each."""
        assert self.targets is not None
        return self.anchors, self.relations, self.targets

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Tensors of the batch by attribute name."""
        return {name: it for name, it in vars(self).items() if isinstance(it, Tensor)}

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        moved: dict[str, Any] = {name: it.to(device) for name, it in self.tensors.items()}
        return replace(self, **moved)

    @property
    def heads(self) -> Tensor:
        """Heads of the triples, int64 ``[B]``."""
        heads = self.anchors if self.side == "tail" else self.targets
        assert heads is not None
        return heads

    @property
    def tails(self) -> Tensor:
        """Tails of the triples, int64 ``[B]``."""
        tails = self.targets if self.side == "tail" else self.anchors
        assert tails is not None
        return tails

    @property
    def triples(self) -> Tensor:
        """Triples, int64 ``[B, 3]``."""
        return torch.stack([self.heads, self.relations, self.tails], 1)


def with_inverses(hrt: Tensor, num_relations: int) -> Tensor:
    """Append the inverse ``(t, r + num_relations, h)`` of each triple.

    >>> with_inverses(torch.tensor([[4, 1, 7]]), num_relations=2).tolist()
    [[4, 1, 7], [7, 3, 4]]
    """
    shift = torch.tensor([0, num_relations, 0], dtype=hrt.dtype, device=hrt.device)
    return torch.cat([hrt, hrt.flip(1) + shift])


def asked_of(hrt: Tensor, num_relations: int, has_inverses: bool) -> tuple[Tensor, Sequence[Side]]:
    """Return the triples and sides that steps query: both sides, or tails with inverses.

    Parameters
    ----------
    hrt : Tensor
        Training triples, int64 ``[T, 3]``.
    num_relations : int
        Number of relations without inverses.
    has_inverses : bool
        True if the model has inverse relations (:attr:`kgfast.Model.has_inverses`). Queries of both
        sides then share batches and batch statistics.

    Returns
    -------
    hrt : Tensor
        int64 ``[T, 3]``, or ``[2T, 3]`` with inverses.
    sides : sequence of side
    """
    return (with_inverses(hrt, num_relations), ("tail",)) if has_inverses else (hrt, SIDES)


class Batches:
    """Batches of each side, in a new random order in each epoch of a side.

    An epoch has every batch of either side once, ``per_epoch`` in all, spread evenly: tail and head
    alternate, unless one side has more batches (KvsAll). The last batch may be smaller.
    """

    def __init__(
        self,
        rows: Mapping[Side, Tensor],  # [T, 3] anchor, relation, target, or [P, 2] without targets
        batch_size: int,
        seed: int,
        weights: Tensor | None = None,  # [T], for the rows of either side
    ) -> None:
        if not all(len(part) for part in rows.values()):
            raise ValueError("there are no training triples")
        self._rows, self._weights = rows, weights
        self._batch_size, self._seed = batch_size, seed
        self._counts = {side: -(-len(it) // batch_size) for side, it in rows.items()}
        self.per_epoch = sum(self._counts.values())
        self._generator = torch.Generator("cpu")
        self._orders: dict[Side, tuple[int, Tensor]] = {}

    @classmethod
    def of_triples(
        cls,
        hrt: Tensor,
        batch_size: int,
        seed: int,
        weights: Tensor | None = None,
        sides: Sequence[Side] = SIDES,
    ) -> "Batches":
        """Make batches of every triple on each side."""
        rows: dict[Side, Tensor] = {"tail": hrt, "head": hrt.flip(1)}
        return cls({side: rows[side] for side in sides}, batch_size, seed, weights)

    @classmethod
    def of_queries(
        cls, hrt: Tensor, batch_size: int, seed: int, sides: Sequence[Side] = SIDES
    ) -> "Batches":
        """Make batches of every distinct (h, r) for tail, and every distinct (r, t) for head."""
        pairs: dict[Side, list[int]] = {"tail": [0, 1], "head": [2, 1]}
        rows = {side: hrt[:, pairs[side]].unique(dim=0) for side in sides}
        return cls(rows, batch_size, seed)

    def epoch(self, number: int) -> int:
        return number // self.per_epoch

    def batch(self, number: int) -> Batch:
        """Return a batch of the run by number, from 0."""
        side, ids = self.rows_of(number)
        columns = self._rows[side].index_select(0, ids).t().contiguous()
        return Batch(
            number,
            side,
            columns[0],
            columns[1],
            columns[2] if len(columns) > 2 else None,
            None if self._weights is None else self._weights.index_select(0, ids),
        )

    def rows_of(self, number: int) -> tuple[Side, Tensor]:
        """Return the side of a batch, and the places of the rows among all, int64 ``[B]``."""
        epoch, side, index = self._place(number)
        start = index * self._batch_size
        return side, self._order(side, epoch)[start : start + self._batch_size]

    def _place(self, number: int) -> tuple[int, Side, int]:
        total, num_heads = self.per_epoch, self._counts.get("head", 0)
        epoch, within = divmod(number, total)
        heads = within * num_heads // total
        if (within + 1) * num_heads // total > heads:
            return epoch, "head", heads
        return epoch, "tail", within - heads

    def _order(self, side: Side, epoch: int) -> Tensor:
        held = self._orders.get(side)
        if held is None or held[0] != epoch:
            self._generator.manual_seed(mix(self._seed, epoch, _STREAM_OF[side]))
            rows = self._rows[side]
            order = torch.randperm(
                len(rows), generator=self._generator, dtype=torch.int64, device="cpu"
            )
            held = self._orders[side] = epoch, order
        return held[1]


class Negatives:
    """Entities drawn uniformly, with replacement.

    Parameters
    ----------
    num_entities, size, seed : int
        ``size`` entities are drawn for each query, or for the pool that a batch shares.
    shared : bool
        Draw one pool ``[K]`` for a batch, or a row ``[B, K]`` for each query.
    known : KnownTriples, optional
        Training triples, whose answers are no negatives. Such answers are drawn again in rows, at
        most eight times. Remaining answers, and all answers in a pool, are masked.
    """

    def __init__(
        self,
        num_entities: int,
        size: int,
        seed: int,
        *,
        shared: bool,
        known: KnownTriples | None = None,
    ) -> None:
        self._num_entities, self._size, self._seed = num_entities, size, seed
        self.shared = shared
        self._known = known
        self._generator = torch.Generator("cpu")

    def draw(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Draw the negatives of a batch.

        Returns
        -------
        ids : Tensor
            int64 ``[K]`` for a shared pool, else ``[B, K]``.
        mask : Tensor or None
            bool ``[B, K]``, False where the entity is a true answer; None if all are True.
        """
        self._generator.manual_seed(mix(self._seed, batch.number, Stream.NEGATIVES))
        if self.shared:
            pool = self._uniform(self._size)
            return pool, self._pool_mask(pool, batch)
        ids = self._uniform(len(batch.anchors), self._size)
        return self._replaced(ids, batch)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.randint(
            self._num_entities,
            shape,
            generator=self._generator,
            dtype=torch.int64,
            device="cpu",
        )

    def _pool_mask(self, pool: Tensor, batch: Batch) -> Tensor | None:
        """Return False where an entity of the pool is an answer of a query."""
        if self._known is None:
            return None
        indptr, answers = self._known.exclude(batch.anchors, batch.relations, batch.side)
        distinct, place = pool.unique(return_inverse=True)
        at = torch.searchsorted(distinct, answers).clamp_(max=len(distinct) - 1)
        hit = distinct.index_select(0, at) == answers
        rows = torch.repeat_interleave(indptr.diff())
        mask = torch.ones(len(batch.anchors), len(distinct), dtype=torch.bool, device=pool.device)
        mask[rows[hit], at[hit]] = False
        return mask.index_select(1, place)

    def _replaced(self, ids: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Draw known answers again; return the rows and a mask, False where still known."""
        if self._known is None:
            return ids, None
        indptr, answers = self._known.exclude(batch.anchors, batch.relations, batch.side)
        rows = torch.repeat_interleave(indptr.diff())
        keys = rows * self._num_entities + answers  # ascending
        starts = (
            torch.arange(len(ids), dtype=torch.int64, device=ids.device)[:, None]
            * self._num_entities
        )
        known = _is_in(keys, starts + ids)
        for _ in range(_ROUNDS):
            again = known.nonzero(as_tuple=True)
            if not len(again[0]):
                return ids, None
            fresh = self._uniform(len(again[0]))
            ids[again] = fresh
            known[again] = _is_in(keys, starts[again[0], 0] + fresh)
        return ids, ~known if bool(known.any()) else None


def _is_in(ascending: Tensor, values: Tensor) -> Tensor:
    """Return whether each value occurs among ascending keys."""
    if not len(ascending):
        return torch.zeros_like(values, dtype=torch.bool)
    at = torch.searchsorted(ascending, values).clamp_(max=len(ascending) - 1)
    return ascending[at] == values


class BatchesAhead:
    """Batches that a thread makes on the host, a few ahead of the steps that use them.

    A step then never waits for a batch to be drawn or copied. A batch follows from its number, so
    the thread does not change the batches of steps. ``make`` makes a batch on the CPU.
    """

    def __init__(self, make: Callable[[int], Batch], device: torch.device) -> None:
        self._make, self._device = make, device
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[int, Future[tuple[Batch, Tensor]]] = {}

    def take(self, number: int) -> Batch:
        """Return a batch, and begin the next ones; raise any error of the thread for this batch."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="kgfast-batches")
        numbers = range(number, number + 1 + _AHEAD)
        begun, submit = self._begun, self._pool.submit
        self._begun = {it: begun.get(it) or submit(self._packed, it) for it in numbers}
        batch, packed = self._begun[number].result()
        there = packed.to(self._device, non_blocking=True)
        return replace(batch, **_views(batch, there))

    def close(self) -> None:
        """End the thread; a later :meth:`take` starts another."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool, self._begun = None, {}

    def _packed(self, number: int) -> tuple[Batch, Tensor]:
        batch = self._make(number)
        packed = torch.empty(sum(_sizes(batch)), dtype=torch.uint8, device="cpu")
        if self._device.type in _PINNING:
            packed = packed.pin_memory()
        for name, view in _views(batch, packed).items():
            view.copy_(batch.tensors[name])
        return batch, packed


def _sizes(batch: Batch) -> list[int]:
    return [-(-it.nbytes // _ALIGNED) * _ALIGNED for it in batch.tensors.values()]


def _views(batch: Batch, packed: Tensor) -> dict[str, Any]:
    rooms = zip(batch.tensors.items(), packed.split(_sizes(batch)), strict=True)
    return {name: room[: it.nbytes].view(it.dtype).view(it.shape) for (name, it), room in rooms}
