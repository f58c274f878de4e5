"""Rank counts by torch, torch.compile, KeOps, and PyKEEN's evaluator.

All count the same ranks, in float32, as a user would write them: they may differ from kgfast's
where two scores are closer than float32 tells.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

import kgfast
from lib.measure import Stopwatch
from lib.peers import (
    TRIED_ROWS,
    Missing,
    building,
    fastest,
    import_keops,
    quiet,
    rotate_scores,
    silence_pykeen,
)

Counts = tuple[Tensor, Tensor | None]  # greater [B], equal [B] or None: not counted
Block = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
EAGER_CHUNKS = {"cpu": (2, 4, 8, 16, 32, 64, 256), "cuda": (256, 1024, 4096, 16384)}
PYKEEN_BATCHES = {"cpu": (1, 8, 32), "cuda": (8, 32)}  # queries; 32 is PyKEEN's default
PYKEEN_SLICES = (None, 256, 1024, 8192)  # rows of a slice
PRODUCT_BATCHES = {"cpu": (16, 32, 64, 128, 256), "cuda": (128, 512)}  # queries
COMPILED_CHUNKS = (64, 256, 1024, 8192, 1 << 62)  # the last: the whole table
FEW_TRIPLES = 8  # triples, at least, that PyKEEN ranks to choose its options
TRIED_TRIPLES = 256  # triples that products of matrices rank to choose their options


@dataclass(frozen=True)
class Work:
    """Rank counts of B queries among all rows of a table."""

    queries: Tensor  # [B, F]
    table: Tensor  # [N, F]
    targets: Tensor  # [B]

    @property
    def device(self) -> str:
        """Return ``cpu`` or ``cuda``."""
        return self.table.device.type

    def first_rows(self, count: int) -> "Work":
        """Return the work among the first rows."""
        return Work(self.queries, self.table[:count], self.targets.clamp(max=count - 1))


def count_block(
    queries: Tensor, rows: Tensor, fresh: Tensor, ids: Tensor, targets: Tensor, own: Tensor
) -> tuple[Tensor, Tensor]:
    """Count over a chunk of rows those that are fresh and not the target."""
    scores = rotate_scores(queries[:, None], rows[None])  # [B, C]
    counted = (ids != targets[:, None]) & fresh
    greater = ((scores > own[:, None]) & counted).sum(1)
    return greater, ((scores == own[:, None]) & counted).sum(1)


class Chunked:
    """`count_block` over chunks of one size; rows that the last one shares are not fresh."""

    def __init__(self, work: Work, block: Callable[..., Any], chunk: int) -> None:
        self._work, self._block = work, block
        entities = len(work.table)
        self.chunk = min(chunk, entities)
        self._own = rotate_scores(work.queries, work.table[work.targets])
        self._windows = []
        for start in range(0, entities, self.chunk):
            first = min(start, entities - self.chunk)
            ids = torch.arange(first, first + self.chunk, device=work.device)
            self._windows.append((first, ids >= start, ids))

    def __call__(self) -> Counts:
        """Count over all windows."""
        work = self._work
        greater, equal = torch.zeros_like(work.targets), torch.zeros_like(work.targets)
        for first, fresh, ids in self._windows:
            rows = work.table[first : first + self.chunk]
            above, same = self._block(work.queries, rows, fresh, ids, work.targets, self._own)
            greater += above
            equal += same
        return greater, equal


def eager(work: Work) -> Chunked:
    """Count by plain torch, with the fastest chunk size."""
    part = work.first_rows(min(TRIED_ROWS[work.device], len(work.table)))
    tried = [Chunked(part, count_block, size) for size in EAGER_CHUNKS[work.device]]
    return Chunked(work, count_block, fastest(tried, work.device).chunk)


def compiled(work: Work) -> Chunked:
    """Count by torch.compile, with the fastest chunk size."""
    torch._dynamo.reset()  # or it stops compiling after eight shapes
    block = torch.compile(count_block, dynamic=False)
    sizes = sorted({min(size, len(work.table)) for size in COMPILED_CHUNKS})
    with building():
        return fastest([Chunked(work, block, size) for size in sizes], work.device)


def compare(scores: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Count scores above the target's and equal to it, ``[B]`` each; the target is a candidate."""
    return (scores > own).sum(1), (scores == own).sum(1) - 1


class Products:
    """Counts by products of matrices, which stay in memory for the comparison of a batch.

    ``batches(size)`` yields queries ``[B, F]``, targets ``[B, 1]``, and rows and columns of scores
    that do not count, or None. With a ``shift [N]`` a score is twice the product and the shift.
    """

    def __init__(
        self,
        table: Tensor,
        batches: Callable[[int], Iterable[Any]],
        options: tuple[int, Block],
        shift: Tensor | None = None,
    ) -> None:
        (self.batch, self._block), self._batches = options, batches
        self._columns, self._shift = table.T, shift
        self._scores = table.new_empty(self.batch, len(table))

    @torch.no_grad()
    def __call__(self) -> Counts:
        """Count all batches."""
        found = []
        for queries, targets, known in self._batches(self.batch):
            scores = self._scores[: len(queries)]
            if self._shift is None:
                torch.mm(queries, self._columns, out=scores)
            else:
                torch.addmm(self._shift, queries, self._columns, alpha=2, out=scores)
            own = scores.gather(1, targets)
            if known is not None:
                scores[known] = -torch.inf
            found.append(self._block(scores, own))
        greater, equal = (torch.cat(them) for them in zip(*found, strict=True))
        return greater, equal


def fastest_options(
    device: str, make: Callable[[tuple[int, Block]], Products]
) -> tuple[int, Block]:
    """Return the queries of a batch, and the comparison: eager, or compiled where that works."""
    torch._dynamo.reset()  # or it stops compiling after eight shapes
    blocks: list[Block] = [compare]
    compiled_one = torch.compile(compare, dynamic=False)
    with suppress(Missing), building():
        compiled_one(torch.ones(2, 3, device=device), torch.ones(2, 1, device=device))
        blocks.append(compiled_one)
    options = [(batch, block) for batch in PRODUCT_BATCHES[device] for block in blocks]
    works = [make(it) for it in options]
    return options[works.index(fastest(works, device))]


def matmul_compare(work: Work) -> Products:
    """Count scores of `dot` by products of matrices."""

    def batches(size: int) -> Iterator[tuple[Tensor, Tensor, None]]:
        parts = zip(work.queries.split(size), work.targets.split(size), strict=True)
        return ((queries, targets[:, None], None) for queries, targets in parts)

    make = partial(Products, work.table, batches)
    return make(fastest_options(work.device, make))


def products_of_l2(model: Any, test: Tensor, known: kgfast.KnownTriples) -> Products:
    """Count whole test sets, filtered, heads before tails, by the L2 norm.

    ``2 q c - |c|^2`` orders candidates as the distance does. Norms and the places of known answers
    are at hand before the first call.
    """
    table = model.candidates("tail").table.detach()
    asked: dict[tuple[int, int], list[Any]] = {}

    def batches(count: int, size: int) -> Iterator[Any]:
        if (count, size) not in asked:
            asked[count, size] = list(_asked(test[:count], known, size, table.device))
        for side, anchors, relations, targets, excluded in asked[count, size]:
            yield model.queries(anchors, relations, side), targets, excluded

    shift = -table.square().sum(1)
    few = partial(Products, table, partial(batches, TRIED_TRIPLES), shift=shift)
    options = fastest_options(table.device.type, few)
    return Products(table, partial(batches, len(test)), options, shift)


def _asked(
    test: Tensor, known: kgfast.KnownTriples, size: int, device: torch.device
) -> Iterator[Any]:
    """Yield side, anchors, relations, targets and the places of other known answers of batches."""
    for side, (anchor, answer) in {"head": (2, 0), "tail": (0, 2)}.items():
        for part in test.split(size):
            anchors, relations, answers = part[:, anchor], part[:, 1], part[:, answer]
            starts, ids = known.exclude(anchors, relations, side)
            rows = torch.repeat_interleave(torch.arange(len(part)), starts.diff())
            others = ids != answers[rows]
            asked = (anchors, relations, answers[:, None], rows[others], ids[others])
            anchors, relations, targets, *excluded = (it.to(device) for it in asked)
            yield side, anchors, relations, targets, tuple(excluded)


def keops(work: Work) -> Callable[[], Counts]:
    """Count greater scores by a symbolic matrix; equal ones would cost every distance again."""
    LazyTensor = import_keops()
    dim = work.table.shape[1] // 2
    own = -rotate_scores(work.queries, work.table[work.targets])
    ids = torch.arange(len(work.table), device=work.device)
    q_re, q_im = (LazyTensor(half.contiguous()[:, None]) for half in work.queries.split(dim, 1))
    c_re, c_im = (LazyTensor(half.contiguous()[None]) for half in work.table.split(dim, 1))
    threshold, target = (
        LazyTensor(own[:, None, None]),
        LazyTensor(work.targets.float()[:, None, None]),
    )
    candidate = LazyTensor(ids.float()[None, :, None])

    def run() -> Counts:
        distance = ((q_re - c_re).square() + (q_im - c_im).square()).sqrt().sum(-1)
        is_less = 1 - (distance - threshold).step()  # step(0) is 1
        is_other = (candidate - target).square().sign()
        return (is_less * is_other).sum(1).flatten().long(), None

    with building():
        run()
    return run


def evaluated(model: Any, test: Tensor, known: list[Tensor], options: Mapping[str, Any]) -> Any:
    """Evaluate by PyKEEN's own evaluator; return the evaluator, which holds the ranks."""
    from pykeen.evaluation import RankBasedEvaluator

    evaluator = RankBasedEvaluator(filtered=True, clear_on_finalize=False)
    with quiet():
        evaluator.evaluate(model, test, additional_filter_triples=known, use_tqdm=False, **options)
    return evaluator


def fastest_evaluation(model: Any, test: Tensor, known: list[Tensor]) -> dict[str, int | None]:
    """Return the options of PyKEEN's evaluator that rank a few triples fastest."""
    batches = PYKEEN_BATCHES[model.device.type]
    tried = [
        {"batch_size": batch, "slice_size": rows}
        for batch in batches
        for rows in PYKEEN_SLICES
        if rows is None or rows < model.num_entities
    ]
    evaluated(model, test[:1], known, tried[0])  # warms up
    seconds = []
    for options in tried:
        few = test[: max(FEW_TRIPLES, options["batch_size"] or 0)]
        taken = Stopwatch("cpu").seconds(partial(evaluated, model, few, known, options))
        seconds.append(taken / len(few))
    return tried[seconds.index(min(seconds))]


class PyKEEN:
    """PyKEEN's RankBasedEvaluator on its RotatE, which is the L2 norm of the whole vector."""

    def __init__(self, graph: Any, entity: Tensor, phase: Tensor, device: str) -> None:
        try:
            from pykeen.models import RotatE
            from pykeen.triples import CoreTriplesFactory
        except ImportError:
            raise Missing("not installed") from None
        silence_pykeen()
        factory = CoreTriplesFactory(
            graph.train.hrt, num_entities=graph.num_entities, num_relations=graph.num_relations
        )
        model: Any = RotatE(triples_factory=factory, embedding_dim=phase.shape[1], random_seed=0)
        rotation = torch.polar(torch.ones_like(phase), phase)
        self.entity = torch.view_as_real(torch.complex(*entity.chunk(2, 1))).flatten(1)
        self.relation = torch.view_as_real(rotation).flatten(1)  # [R, 2d], interleaved
        with torch.no_grad():
            weights = (
                model.entity_representations[0]._embeddings.weight,
                model.relation_representations[0]._embeddings.weight,
            )
            weights[0].copy_(self.entity)
            weights[1].copy_(self.relation)
        self.model = model.to(device)
        self.known = [graph.train.hrt, graph.valid.hrt]
        self.test = graph.test.hrt

    def evaluate(self, count: int) -> Any:
        """Evaluate the first triples; returns the evaluator, which holds their ranks."""
        return evaluated(self.model, self.test[:count], self.known, self.options)

    @cached_property
    def options(self) -> dict[str, int | None]:
        """Return the fastest options."""
        return fastest_evaluation(self.model, self.test, self.known)

    def by_kgfast(self) -> kgfast.RotatE:
        """Return kgfast's model of the same function: interleaved rows, Euclidean norm."""
        model = kgfast.RotatE(
            self.entity,
            self.relation,
            relation_format="complex",
            norm="l2",
            layout="interleaved",
        )
        return model.to(self.model.device)

    @staticmethod
    def ranks(evaluator: Any, rank_type: str) -> Tensor:
        """Return an evaluator's ranks ``[T, 2]``: head, tail."""
        sides = [evaluator.ranks[side, rank_type] for side in ("head", "tail")]
        columns = [torch.cat([torch.as_tensor(part) for part in parts]) for parts in sides]
        return torch.stack(columns, 1).long()
