"""Rank counts by torch, torch.compile, and PyKEEN's evaluator.

All count the same ranks, in float32, as a user would write them: they may differ from kgfast's
where two scores are closer than float32 tells.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch import Tensor

import kgfast
from lib.measure import Stopwatch
from lib.peers import TRIED_ROWS, Missing, building, fastest, quiet, rotate_scores, silence_pykeen

Counts = tuple[Tensor, Tensor]  # greater [B], equal [B]
Block = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
EAGER_CHUNKS = {"cpu": (2, 4, 8, 16, 32, 64, 256), "cuda": (256, 1024, 4096, 16384)}
PYKEEN_BATCHES = {"cpu": (8, 32, 64), "cuda": (8, 32)}  # queries; 32 is PyKEEN's default
PYKEEN_SLICES = {"cpu": (64, 256, 1024, 1 << 62), "cuda": (1024, 8192, 1 << 62)}  # rows
MOST_PAIRS = 1 << 20  # queries of a batch times rows of a slice: the room of RotatE's differences
PRODUCT_BATCHES = {"cpu": (32, 64, 128, 256), "cuda": (128, 512)}  # queries
PRODUCT_CHUNKS = {"cpu": (256, 512, 1024, 2048, 4096, 16384, 1 << 62), "cuda": (8192, 1 << 62)}
COMPILED_CHUNKS = (64, 256, 1024, 8192, 1 << 62)  # the last: the whole table
TRIED_TRIPLES = 256  # triples that products of matrices rank to choose their options


@dataclass(frozen=True)
class Work:
    """Rank counts of B queries among all rows of a table."""

    queries: Tensor  # [B, F]
    table: Tensor  # [N, F]
    targets: Tensor  # [B]

    @classmethod
    def normal(cls, entities: int, dim: int, batch: int, device: str = "cpu") -> "Work":
        """Draw queries and a table of normal numbers, and targets."""
        generator = torch.Generator().manual_seed(0)
        rows, queries = (torch.randn(n, dim, generator=generator) for n in (entities, batch))
        targets = torch.randint(entities, (batch,), generator=generator)
        return cls(queries.to(device), rows.to(device), targets.to(device))

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
    """Count scores ``[C, B]`` above the targets' ``[1, B]`` and equal to them."""
    return (scores > own).sum(0), (scores == own).sum(0)


@dataclass(frozen=True)
class ProductOptions:
    """Options of `Products`."""

    batch: int  # queries
    chunk: int  # rows of the table
    block: Block = compare


class Products:
    """Counts by products of matrices, whose scores of a chunk stay near to the cache.

    ``batches(options)`` yields queries ``[B, F]``, targets ``[B]``, and for each chunk the rows and
    columns of scores that do not count. With a ``shift [N]`` a score is twice the product and the
    shift.
    """

    def __init__(
        self,
        table: Tensor,
        batches: Callable[[ProductOptions], Iterable[Any]],
        options: ProductOptions,
        shift: Tensor | None = None,
    ) -> None:
        self.options, self._batches = options, batches
        self._table, self._shift = table, shift
        self._scores = table.new_empty(min(options.chunk, len(table)) * options.batch)

    @torch.no_grad()
    def __call__(self) -> Counts:
        """Count all batches."""
        table, shift, found = self._table, self._shift, []
        for queries, targets, hidden in self._batches(self.options):
            own = (queries * table[targets]).sum(1)
            own = own if shift is None else 2 * own + shift[targets]
            greater, equal = torch.zeros_like(targets), torch.zeros_like(targets)
            starts = range(0, len(table), self.options.chunk)
            for start, places in zip(starts, hidden, strict=True):
                rows = table[start : start + self.options.chunk]
                scores = self._scores[: len(rows) * len(queries)].view(len(rows), len(queries))
                if shift is None:
                    torch.mm(rows, queries.T, out=scores)
                else:
                    shifts = shift[start : start + len(rows), None]
                    torch.addmm(shifts, rows, queries.T, alpha=2, out=scores)
                scores[places] = -torch.inf
                above, same = self.options.block(scores, own[None])
                greater += above
                equal += same
            found.append((greater, equal))
        greater, equal = (torch.cat(them) for them in zip(*found, strict=True))
        return greater, equal


def places_of_chunks(
    ids: Tensor, queries: Tensor, chunk: int, entities: int
) -> list[tuple[Tensor, Tensor]]:
    """Split places of scores, by entity and query, by the chunks of entities that hold them."""
    ids, order = ids.sort()
    starts = torch.arange(0, entities, chunk, device=ids.device)
    ends = torch.searchsorted(ids, starts)[1:].tolist()
    parts = zip(starts, ids.tensor_split(ends), queries[order].tensor_split(ends), strict=True)
    return [(them - start, whose) for start, them, whose in parts]


def fastest_options(
    device: str, queries: int, make: Callable[[ProductOptions], Products]
) -> ProductOptions:
    """Return the fastest options; the comparison is eager, or compiled where that works."""
    torch._dynamo.reset()  # or it stops compiling after eight shapes
    blocks: list[Block] = [compare]
    compiled_one = torch.compile(compare, dynamic=True)
    with suppress(Missing), building():
        compiled_one(torch.ones(3, 2, device=device), torch.ones(1, 2, device=device))
        blocks.append(compiled_one)
    batches = sorted({min(it, queries) for it in PRODUCT_BATCHES[device]})
    options = [
        ProductOptions(batch, chunk, block)
        for batch in batches
        for chunk in PRODUCT_CHUNKS[device]
        for block in blocks
    ]
    works = [make(it) for it in options]
    return options[works.index(fastest(works, device))]


def matmul_compare(work: Work) -> Products:
    """Count scores of `dot` by products of matrices."""
    targets, entities = work.targets, len(work.table)

    @cache
    def batches(options: ProductOptions) -> list[Any]:
        size, chunk = options.batch, options.chunk
        parts = zip(work.queries.split(size), targets.split(size), strict=True)
        return [(q, t, places_of_chunks(t, _numbers(t), chunk, entities)) for q, t in parts]

    make = partial(Products, work.table, batches)
    return make(fastest_options(work.device, len(targets), make))


def _numbers(ids: Tensor) -> Tensor:
    return torch.arange(len(ids), device=ids.device)


def products_of_l2(model: Any, test: Tensor, known: kgfast.KnownTriples) -> Products:
    """Count whole test sets, filtered, heads before tails, by the L2 norm.

    ``2 q c - |c|^2`` orders candidates as the distance does. Norms and the places of known answers
    are at hand before the first call.
    """
    table = model.candidates("tail").table.detach()

    @cache
    def asked(count: int, size: int, chunk: int) -> list[Any]:
        return list(_asked(test[:count], known, size, chunk, table))

    def batches(count: int, options: ProductOptions) -> Iterator[Any]:
        for side, anchors, relations, targets, hidden in asked(count, options.batch, options.chunk):
            yield model.queries(anchors, relations, side), targets, hidden

    shift = -table.square().sum(1)
    few = partial(Products, table, partial(batches, TRIED_TRIPLES), shift=shift)
    options = fastest_options(table.device.type, TRIED_TRIPLES, few)
    return Products(table, partial(batches, len(test)), options, shift)


def _asked(
    test: Tensor, known: kgfast.KnownTriples, size: int, chunk: int, table: Tensor
) -> Iterator[Any]:
    """Yield side, anchors, relations, targets and the places of all known answers of batches."""
    for side, (anchor, answer) in {"head": (2, 0), "tail": (0, 2)}.items():
        for part in test.split(size):
            anchors, relations, targets = part[:, anchor], part[:, 1], part[:, answer]
            starts, ids = known.exclude(anchors, relations, side)
            rows = torch.repeat_interleave(_numbers(part), starts.diff())
            ids, rows = torch.cat([ids, targets]), torch.cat([rows, _numbers(part)])
            given = (it.to(table.device) for it in (anchors, relations, targets, ids, rows))
            anchors, relations, targets, ids, rows = given
            hidden = places_of_chunks(ids, rows, chunk, len(table))
            yield side, anchors, relations, targets, hidden


def evaluated(model: Any, test: Tensor, known: list[Tensor], options: Mapping[str, Any]) -> Any:
    """Evaluate by PyKEEN's own evaluator; return the evaluator, which holds the ranks."""
    from pykeen.evaluation import RankBasedEvaluator

    evaluator = RankBasedEvaluator(filtered=True, clear_on_finalize=False)
    with quiet():
        evaluator.evaluate(model, test, additional_filter_triples=known, use_tqdm=False, **options)
    return evaluator


def fastest_evaluation(model: Any, test: Tensor, known: list[Tensor]) -> dict[str, int | None]:
    """Return the options of PyKEEN's evaluator that rank a few triples fastest."""
    device, entities = model.device.type, model.num_entities
    sizes = sorted({min(rows, entities) for rows in PYKEEN_SLICES[device]})
    tried = [
        {"batch_size": batch, "slice_size": rows if rows < entities else None}
        for batch in PYKEEN_BATCHES[device]
        for rows in sizes
        if batch * rows <= MOST_PAIRS
    ]
    evaluated(model, test[:1], known, tried[0])  # warms up
    seconds = []
    for options in tried:
        few = test[: options["batch_size"]]
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
        self.test = graph.test.hrt
        self.known = [graph.train.hrt, graph.valid.hrt, self.test]

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
            self.entity, self.relation, relation_format="complex", norm="l2", layout="interleaved"
        )
        return model.to(self.model.device)

    @staticmethod
    def ranks(evaluator: Any, rank_type: str) -> Tensor:
        """Return an evaluator's ranks ``[T, 2]``: head, tail."""
        sides = [evaluator.ranks[side, rank_type] for side in ("head", "tail")]
        columns = [torch.cat([torch.as_tensor(part) for part in parts]) for parts in sides]
        return torch.stack(columns, 1).long()
