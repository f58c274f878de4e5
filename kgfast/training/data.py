"""Batches, negatives and losses of a step; data are drawn from its number alone, on the CPU.

Generators are seeded with the seed of the run and the number of the step, so samplers have no
state, and a resumed run draws the batches of an uninterrupted run. No Python loop runs over
triples.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from kgfast import losses
from kgfast.graph import KnownTriples
from kgfast.graph.ids import places_among
from kgfast.models import MED
from kgfast.models.base import SIDES, Model, Side
from kgfast.models.wrapper import unwrapped
from kgfast.rng import Stream, mix
from kgfast.training.build import loss_of
from kgfast.training.config import Config

_STREAM_OF = {"head": Stream.HEAD_BATCHES, "tail": Stream.TAIL_BATCHES}
_ROUNDS = 8  # rounds of replacing known answers; negatives that are still known are masked
_AHEAD = 2  # batches that are made ahead of the current step
_ALIGNED = 64  # bytes; a kernel is compiled anew for pointers with smaller alignment


@dataclass(frozen=True)
class Batch:
    """Queries of a batch, all on one side, and the data of their losses."""

    number: int  # number of the batch in the run, from 0
    side: Side  # the predicted side
    anchors: Tensor  # int64 [B]
    relations: Tensor  # int64 [B]
    targets: Tensor | None  # int64 [B]; None for KvsAll, with several targets per query
    weights: Tensor | None = None  # float32 [B]
    negatives: Tensor | None = None  # int64 [K], a pool, or [B, K]
    mask: Tensor | None = None  # bool [B, K], False where a negative takes no part
    indptr: Tensor | None = None  # all targets of each query, as KnownTriples.exclude returns them
    answers: Tensor | None = None
    dims: tuple[int, ...] | None = None  # widths of the sub-models of MED that the batch trains

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Tensors of the batch by attribute name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    @property
    def kind(self) -> Hashable:
        """Key that is equal for batches whose steps launch the same kernels."""
        return self.side, self.dims, tuple((name, x.shape) for name, x in self.tensors.items())

    @property
    def queries(self) -> tuple[Tensor, ...]:
        """Anchors and relations, and the targets if each query has one."""
        queries = self.anchors, self.relations
        return queries if self.targets is None else (*queries, self.targets)


def with_inverses(hrt: Tensor, num_relations: int) -> Tensor:
    """Append the inverse ``(t, r + num_relations, h)`` of each triple."""
    shift = torch.tensor([0, num_relations, 0], dtype=hrt.dtype, device=hrt.device)
    return torch.cat([hrt, hrt.flip(1) + shift])


class Batches:
    """Batches of each side, in a new random order in each epoch of a side.

    An epoch has every batch of either side once, ``per_epoch`` in all, spread evenly: tail and head
    alternate, unless one side has more batches. The last batch may be smaller. With ``distinct``,
    batches have the distinct queries, (h, r) and (t, r), without targets.
    """

    def __init__(
        self,
        hrt: Tensor,
        batch_size: int,
        seed: int,
        weights: Tensor | None = None,
        sides: Sequence[Side] = SIDES,
        *,
        distinct: bool = False,
    ) -> None:
        if not len(hrt):
            raise ValueError("there are no training triples")
        by_side = {"tail": hrt, "head": hrt.flip(1)}
        self._rows = {side: by_side[side] for side in sides}
        if distinct:
            self._rows = {side: rows[:, :2].unique(dim=0) for side, rows in self._rows.items()}
        self._batch_size, self._weights = batch_size, weights
        counts = {side: -(-len(rows) // batch_size) for side, rows in self._rows.items()}
        self._num_heads, self.per_epoch = counts.get("head", 0), sum(counts.values())
        self._order = lru_cache(len(sides))(partial(_order, seed))  # one of each side

    def batch(self, number: int) -> Batch:
        """Return a batch of the run by number, from 0."""
        side, ids = self.rows_of(number)
        anchors, relations, *targets = self._rows[side].index_select(0, ids).t().contiguous()
        weights = None if self._weights is None else self._weights.index_select(0, ids)
        return Batch(number, side, anchors, relations, targets[0] if targets else None, weights)

    def rows_of(self, number: int) -> tuple[Side, Tensor]:
        """Return the side of a batch, and the places of the rows among all, int64 ``[B]``."""
        epoch, within = divmod(number, self.per_epoch)
        index = within * self._num_heads // self.per_epoch  # head batches before this one
        is_head = (within + 1) * self._num_heads // self.per_epoch > index
        side: Side = "head" if is_head else "tail"
        start = (index if is_head else within - index) * self._batch_size
        order = self._order(side, epoch, len(self._rows[side]))
        return side, order[start : start + self._batch_size]


def _order(seed: int, side: Side, epoch: int, count: int) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(mix(seed, epoch, _STREAM_OF[side]))
    return torch.randperm(count, generator=generator, dtype=torch.int64, device="cpu")


@dataclass(eq=False)
class Negatives:
    """Entities drawn uniformly, with replacement.

    Answers of ``known`` triples are no negatives. Such answers are drawn again in rows, at most
    eight times. Remaining answers, and all answers in a pool, are masked.
    """

    num_entities: int
    size: int  # entities for each query, or in the pool that a batch shares
    seed: int
    shared: bool  # draw one pool [K] for a batch, or a row [B, K] for each query
    known: KnownTriples | None = None

    def draw(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Draw the ids of a batch's negatives; the mask is None if all of them take part."""
        generator = torch.Generator("cpu")
        generator.manual_seed(mix(self.seed, batch.number, Stream.NEGATIVES))

        def drawn(*shape: int) -> Tensor:
            return torch.randint(
                self.num_entities, shape, generator=generator, dtype=torch.int64, device="cpu"
            )

        count = len(batch.anchors)
        ids = drawn(self.size) if self.shared else drawn(count, self.size)
        if self.known is None:
            return ids, None
        indptr, answers = self.known.exclude(batch.anchors, batch.relations, batch.side)
        rows = torch.repeat_interleave(indptr.diff())
        if self.shared:
            return ids, _mask_of(ids, rows, answers, count)
        keys = rows * self.num_entities + answers  # ascending
        numbers = torch.arange(count, dtype=torch.int64, device="cpu")
        starts = numbers[:, None] * self.num_entities
        known = places_among(starts + ids, keys)[1]
        for _ in range(_ROUNDS):
            again = known.nonzero(as_tuple=True)
            if not len(again[0]):
                return ids, None
            fresh = drawn(len(again[0]))
            ids[again] = fresh
            known[again] = places_among(starts[again[0], 0] + fresh, keys)[1]
        return ids, ~known if bool(known.any()) else None


def _mask_of(pool: Tensor, rows: Tensor, answers: Tensor, count: int) -> Tensor:
    """Return False where an entity of a pool is an answer of one of ``count`` queries."""
    distinct, place = pool.unique(return_inverse=True)
    at, hit = places_among(answers, distinct)
    mask = torch.ones(count, len(distinct), dtype=torch.bool, device="cpu")
    mask[rows[hit], at[hit]] = False
    return mask.index_select(1, place)


class Objective(Batches):
    """Batches of a run, and the losses of a batch by public functions, in the mode of the config.

    ``negative`` compares positives with sampled negatives; ``1vsall`` the target of each triple
    with all entities; ``kvsall`` all targets of each distinct query with all entities. For a model
    with inverse relations (:attr:`kgfast.Model.has_inverses`) steps query the tails of triples and
    of their inverses, in common batches; for others, heads and tails. ``hrt`` are the training
    triples, int64 ``[T, 3]`` on the CPU; as an attribute ``[2T, 3]`` with inverses.
    """

    def __init__(self, config: Config, hrt: Tensor, model: Model) -> None:
        self._config, data, mode = config, config.data, config.train.mode
        loss = loss_of(config.loss, sparse=True)
        is_med, num_entities = isinstance(model, MED), model.num_entities
        self._loss: Callable[..., Tensor] = losses.MEDLoss(sparse=True) if is_med else loss
        self._draw_dims = model.draw if isinstance(model, MED) else None
        self.hrt = with_inverses(hrt, model.num_relations) if model.has_inverses else hrt
        distinct = mode == "kvsall"
        self._known = KnownTriples(self.hrt) if distinct or data.filter_negatives else None
        has_weights = data.subsampling and loss.takes_weights
        weights = losses.subsampling_weights(self.hrt) if has_weights else None
        sides: Sequence[Side] = ["tail"] if model.has_inverses else SIDES
        super().__init__(self.hrt, data.train_bs, config.seed, weights, sides, distinct=distinct)
        self._target_weights: Tensor | None = None
        if data.target_weights:
            self._target_weights = losses.frequency_weights(self.hrt, num_entities)
        self.negatives: Negatives | None = None
        if mode == "negative":
            options = data.neg_size, config.seed, data.negatives == "shared", self._known
            self.negatives = Negatives(num_entities, *options)

    def batch(self, number: int) -> Batch:
        """Draw a batch of the run with all data of the losses; the number determines the batch."""
        batch, more = super().batch(number), dict[str, Any]()
        if self._draw_dims is not None:
            more["dims"] = tuple(self._draw_dims(mix(self._config.seed, number, Stream.SUBMODELS)))
        if self.negatives is not None:
            more["negatives"], more["mask"] = self.negatives.draw(batch)
        elif batch.targets is None and self._known is not None:
            queries = batch.anchors, batch.relations, batch.side
            more["indptr"], more["answers"] = self._known.exclude(*queries)
        elif self._target_weights is not None:
            more["weights"] = self._target_weights[batch.targets]
        return replace(batch, **more)

    def __call__(self, model: Model, batch: Batch) -> Iterator[Tensor]:
        """Yield the losses of a batch, each computed when needed; their sum is minimised."""
        positives = None if batch.indptr is None else (batch.indptr, batch.answers)
        data = [x for x in (batch.queries, batch.negatives, positives) if x is not None]
        options = {"mask": batch.mask, "weights": batch.weights, "dims": batch.dims}
        options = {name: value for name, value in options.items() if value is not None}
        yield self._loss(model, *data, side=batch.side, **options)
        weight, penalty = self._config.loss.relation_weight, self._config.regularizer
        if weight:
            relations = model.relation_ids(batch.relations, batch.side)
            anchors, _, targets = batch.queries
            ends = (anchors, targets) if batch.side == "tail" else (targets, anchors)
            logits = losses.relation_logits(model, *ends, sparse=True)
            yield weight * cross_entropy(logits, relations)
        if penalty.name != "none":
            of_rows = getattr(losses.regularizers, penalty.name)
            yield penalty.weight * of_rows(model, batch.queries, side=batch.side, sparse=True)
        if penalty.time_weight:
            inner: Any = unwrapped(model)
            yield penalty.time_weight * inner.smoothness()


class BatchesAhead:
    """Batches that a thread makes on the host, a few ahead of the steps that use them.

    A step then never waits for a batch to be drawn or copied. A batch follows from its number, so
    the thread does not change the batches of steps. ``make`` makes a batch on the CPU. If
    ``by_kind``, batches of one kind share memory on the device, and a result is good until the next
    one of its kind: the first such batch with the numbers of this one.
    """

    def __init__(
        self, make: Callable[[int], Batch], device: torch.device, *, by_kind: bool = False
    ) -> None:
        self._make, self._device, self._by_kind = make, device, by_kind
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[int, Future[tuple[Batch, Tensor]]] = {}
        self._placed: dict[Hashable, tuple[Batch, Tensor]] = {}

    def take(self, number: int) -> Batch:
        """Return a batch, and begin the next ones; raise any error of the thread for this batch."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="kgfast-batches")
        begun, submit = self._begun, self._pool.submit
        numbers = range(number, number + 1 + _AHEAD)
        self._begun = {ahead: begun.get(ahead) or submit(self._packed, ahead) for ahead in numbers}
        batch, packed = self._begun[number].result()
        if not self._by_kind:
            return replace(batch, **_views(batch, packed.to(self._device, non_blocking=True)))
        kind = batch.kind
        if kind not in self._placed:
            there = torch.empty_like(packed, device=self._device)
            self._placed[kind] = replace(batch, **_views(batch, there)), there
        placed, there = self._placed[kind]
        there.copy_(packed, non_blocking=True)
        return placed

    def close(self) -> None:
        """End the thread; a later :meth:`take` starts another."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._pool, self._begun = None, {}

    def _packed(self, number: int) -> tuple[Batch, Tensor]:
        batch = self._make(number)
        packed = torch.empty(sum(_sizes(batch)), dtype=torch.uint8, device="cpu")
        if self._device.type == "cuda":  # from pinned memory the host goes on during the copy
            packed = packed.pin_memory()
        for name, view in _views(batch, packed).items():
            view.copy_(batch.tensors[name])
        return batch, packed


def _sizes(batch: Batch) -> list[int]:
    return [-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in batch.tensors.values()]


def _views(batch: Batch, packed: Tensor) -> dict[str, Any]:
    rooms = zip(batch.tensors.items(), packed.split(_sizes(batch)), strict=True)
    return {name: room[: t.nbytes].view(t.dtype).view(t.shape) for (name, t), room in rooms}
