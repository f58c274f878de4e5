"""What a user could try instead of kgfast: torch, torch.compile, KeOps, PyKEEN's evaluator.

All count the same ranks; a peer that cannot run here raises `Missing`. Counts are float32, as a
user would write them: they may differ from kgfast's where two scores are closer than float32
tells. Chunk sizes are tried beforehand, so that every peer runs at its best.
"""

import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch
from common import Stopwatch
from torch import Tensor

Counts = tuple[Tensor, Tensor | None]  # greater [B], equal [B] or None: not counted
EAGER_CHUNKS = (8, 16, 32, 64, 256)
COMPILED_CHUNKS = (1024, 8192, 1 << 62)  # the last: the whole table
_TRIED_ROWS = 4096  # of the table, when chunk sizes of eager code are tried


class Missing(Exception):
    """A peer cannot run here; the message says why."""


@dataclass(frozen=True)
class Work:
    """Rank counts of B queries among all rows of a table."""

    queries: Tensor  # [B, F]
    table: Tensor  # [N, F]
    targets: Tensor  # [B]

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.table.device.type

    def first_rows(self, count: int) -> "Work":
        """The same queries among the first rows."""
        return Work(self.queries, self.table[:count], self.targets.clamp(max=count - 1))


def rotate_scores(queries: Tensor, rows: Tensor) -> Tensor:
    """RotatE scores of broadcast rows ``re | im``."""
    dim = rows.shape[-1] // 2
    re = queries[..., :dim] - rows[..., :dim]
    im = queries[..., dim:] - rows[..., dim:]
    return -(re * re + im * im).sqrt().sum(-1)


def count_block(
    queries: Tensor, rows: Tensor, fresh: Tensor, ids: Tensor, targets: Tensor, own: Tensor
) -> tuple[Tensor, Tensor]:
    """Counts over a chunk of rows, those that are fresh and not the target."""
    scores = rotate_scores(queries[:, None], rows[None])  # [B, C]
    counted = (ids != targets[:, None]) & fresh
    greater = ((scores > own[:, None]) & counted).sum(1)
    return greater, ((scores == own[:, None]) & counted).sum(1)


class Chunked:
    """`count_block`, as it is or compiled, over chunks of equal size: one shape, one compilation.

    The last chunk overlaps the one before; rows that were counted are not fresh.
    """

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
    """Plain torch, with the fastest chunk size."""
    part = work.first_rows(min(_TRIED_ROWS, len(work.table)))
    chunk = _fastest([Chunked(part, count_block, size) for size in EAGER_CHUNKS], work.device)
    return Chunked(work, count_block, chunk)


def compiled(work: Work) -> Chunked:
    """torch.compile, which fuses the score into the sum, with the fastest chunk size."""
    torch._dynamo.reset()  # or it stops compiling after eight shapes
    block = torch.compile(count_block, dynamic=False)
    sizes = sorted({min(size, len(work.table)) for size in COMPILED_CHUNKS})
    try:
        tried = [Chunked(work, block, size) for size in sizes]
        chunk = _fastest(tried, work.device)
    except Exception as error:  # no C++ compiler, no Triton: whatever inductor lacks
        raise Missing(f"does not compile here: {_first_line(error)}") from None
    return next(it for it in tried if it.chunk == chunk)


def _fastest(tried: Sequence[Chunked], device: str) -> int:
    stopwatch = Stopwatch(device)
    seconds = stopwatch.interleave({str(i): it for i, it in enumerate(tried)}, rounds=4)
    return min(enumerate(tried), key=lambda it: seconds[str(it[0])].min)[1].chunk


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:100]


def matmul_compare(work: Work) -> Callable[[], Counts]:
    """Scores of `dot` by one matrix product, then two comparisons: ``[B, N]`` scores in memory."""
    targets = work.targets[:, None]

    def run() -> Counts:
        scores = work.queries @ work.table.T
        own = scores.gather(1, targets)
        return (scores > own).sum(1), (scores == own).sum(1) - 1

    return run


def keops(work: Work) -> Callable[[], Counts]:
    """A symbolic [B, N] matrix, reduced without storing it. Counts the greater ones only.

    (Counting the equal ones too would make KeOps evaluate every distance once more.)
    """
    try:
        with redirect_stdout(io.StringIO()):  # where it reports that there is no GPU
            from pykeops.torch import LazyTensor
    except ImportError:
        raise Missing("not installed") from None
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

    try:
        with redirect_stdout(io.StringIO()):  # where it reports what it compiles
            run()
    except Exception as error:
        raise Missing(f"does not compile here: {_first_line(error)}") from None
    return run


class PyKEEN:
    """PyKEEN's RankBasedEvaluator on its RotatE, which is the L2 norm of the whole vector."""

    def __init__(self, graph: Any, entity: Tensor, phase: Tensor, device: str) -> None:
        try:
            from pykeen.models import RotatE
            from pykeen.triples import CoreTriplesFactory
        except ImportError:
            raise Missing("not installed") from None
        for noisy in ("pykeen", "torch_max_mem"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
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

    def evaluate(self, count: int, batch_size: int) -> Any:
        """Evaluate the first triples; returns the evaluator, which holds their ranks."""
        from pykeen.evaluation import RankBasedEvaluator

        evaluator = RankBasedEvaluator(filtered=True, clear_on_finalize=False)
        with _quiet():
            evaluator.evaluate(
                self.model,
                self.test[:count],
                batch_size=batch_size,
                additional_filter_triples=self.known,
                use_tqdm=False,
            )
        return evaluator

    @staticmethod
    def ranks(evaluator: Any, rank_type: str) -> Tensor:
        """Ranks ``[T, 2]`` of an evaluator: head, tail."""
        sides = [evaluator.ranks[side, rank_type] for side in ("head", "tail")]
        columns = [torch.cat([torch.as_tensor(part) for part in parts]) for parts in sides]
        return torch.stack(columns, 1).long()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings that memory on a CPU cannot be searched for."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
