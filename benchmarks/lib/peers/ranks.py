"""Rank counts by torch, torch.compile, KeOps, and PyKEEN's evaluator.

All count the same ranks, in float32, as a user would write them: they may differ from kgfast's
where two scores are closer than float32 tells.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

import kgfast
from lib.measure import Stopwatch
from lib.peers import TRIED_ROWS, Missing, building, fastest, quiet, rotate_scores, silence_pykeen

Counts = tuple[Tensor, Tensor | None]  # greater [B], equal [B] or None: not counted
EAGER_CHUNKS = {"cpu": (8, 16, 32, 64, 256), "cuda": (256, 1024, 4096, 16384)}
PYKEEN_BATCHES = {"cpu": (1, 8), "cuda": (8, 32)}  # queries
PYKEEN_SLICES = (None, 1024, 8192)  # rows of a slice
PRODUCT_BATCHES = {"cpu": (32, 128, 512), "cuda": (128, 512)}  # queries
COMPILED_CHUNKS = (1024, 8192, 1 << 62)  # the last: the whole table


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


def matmul_compare(work: Work) -> Callable[[], Counts]:
    """Count scores of `dot` in memory: a matrix product, then two comparisons."""
    targets = work.targets[:, None]

    def run() -> Counts:
        scores = work.queries @ work.table.T
        own = scores.gather(1, targets)
        return (scores > own).sum(1), (scores == own).sum(1) - 1

    return run


def keops(work: Work) -> Callable[[], Counts]:
    """Count greater scores by a symbolic matrix; equal ones would cost every distance again."""
    with building():
        from pykeops.torch import LazyTensor
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


class Products:
    """Filtered ranks of whole test sets by the L2 norm, as products of matrices.

    ``2 q c - |c|^2`` orders candidates as the distance does. Norms and the places of known answers
    are at hand before the first call.
    """

    def __init__(self, model: Any, test: Tensor, known: kgfast.KnownTriples, batch: int) -> None:
        self.batch, self._model, self._parts = batch, model, []
        self._table = model.candidates("tail").table.detach()
        self._norms = -self._table.square().sum(1)
        for side, (anchor, answer) in {"head": (2, 0), "tail": (0, 2)}.items():
            for part in test.split(batch):
                anchors, relations, answers = part[:, anchor], part[:, 1], part[:, answer]
                starts, ids = known.exclude(anchors, relations, side)
                rows = torch.repeat_interleave(torch.arange(len(part)), starts.diff())
                others = ids != answers[rows]
                asked = (anchors, relations, answers[:, None], rows[others], ids[others])
                self._parts.append((side, [it.to(self._table.device) for it in asked]))

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """Return optimistic ranks ``[T, 2]``: head, tail."""
        ranks: dict[str, list[Tensor]] = {"head": [], "tail": []}
        for side, (anchors, relations, answers, rows, ids) in self._parts:
            queries = self._model.queries(anchors, relations, side)
            scores = torch.addmm(self._norms, queries, self._table.T, alpha=2)
            own = scores.gather(1, answers)
            scores[rows, ids] = -torch.inf
            ranks[side].append((scores > own).sum(1) + 1)
        return torch.stack([torch.cat(them) for them in ranks.values()], 1)


def products(model: Any, test: Tensor, known: kgfast.KnownTriples) -> Products:
    """Rank by products of matrices, with the fastest number of queries in a batch."""
    device = model.entity.device.type
    few = test[: max(PRODUCT_BATCHES[device])]
    tried = [Products(model, few, known, batch) for batch in PRODUCT_BATCHES[device]]
    return Products(model, test, known, fastest(tried, device).batch)


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
    few = test[: max(batches)]
    tried = [
        {"batch_size": batch, "slice_size": rows}
        for batch in batches
        for rows in PYKEEN_SLICES
        if rows is None or rows < model.num_entities
    ]
    evaluated(model, few, known, tried[0])  # warms up
    seconds = [
        Stopwatch("cpu").seconds(partial(evaluated, model, few, known, options))
        for options in tried
    ]
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
