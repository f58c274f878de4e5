"""Grids of calls that are larger than any GPU's memory, recorded without one."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

import kgfast
from kgfast.kernels.labels import Bce, CrossEntropy, LossNeed
from kgfast.kernels.operands import Known
from kgfast.kernels.sampled import NegativeLoss, Sampled
from kgfast.kernels.scores import get_score
from kgfast.ops import losses, negatives, scores
from kgfast.ops.dispatch import get_backend
from kgfast.ops.rank import _rank_counts
from kgfast.ops.run import loss_total, operands_of
from kgfast.ops.topk import _topk
from support.triton_code import compiled
from support.waits import PretendDevice, ids, meta

pytest.importorskip("triton")

pytestmark = compiled

BACKEND = "triton"
MOST = (1 << 31) - 1, 65_535, 65_535  # programs along each axis of a grid
MANY, WIDTH = 1_100_000, 5  # tiles of 16 are more than programs of a second axis


@pytest.fixture
def grids(launches, monkeypatch) -> dict[str, tuple[int, ...]]:
    """Most programs of each kernel along each axis."""
    from kgfast.kernels.triton.host import launch

    seen: dict[str, tuple[int, ...]] = {}

    def note(kernel, grid, args, **options) -> None:
        before = seen.get(kernel.__name__, (0, 0, 0))
        seen[kernel.__name__] = tuple(map(max, (*grid, 1, 1)[:3], before))

    monkeypatch.setattr(launch, "launch", note)
    return seen


def calls_of(score: str, batch: int, rows: int, dim: int) -> Iterator[tuple[Callable, Callable]]:
    """Yield every call over pairs of queries and rows, with its context."""
    planes = get_score(score).planes
    queries, table = meta(batch, dim * planes), meta(rows, dim * planes)
    operands, known = operands_of(queries, table, score, meta(rows)), Known(ids(batch + 1), ids(9))
    rest, need = (False, None, BACKEND), [True, True, False, False]
    yield nullcontext, lambda: _rank_counts.body(operands, ids(batch), known)
    if batch < MANY:  # else passes of some queries
        yield nullcontext, lambda: _topk.body(operands, 5, known, False)
    for index, width in ((None, rows), (ids(batch, WIDTH), WIDTH)):
        yield kgfast.unchecked, lambda i=index: scores._scores.body(operands, i, *rest)
        grad = meta(batch, width)
        yield (
            kgfast.unchecked,
            lambda i=index, g=grad: scores._backward.body(g, operands, i, *rest, need),
        )
    need = LossNeed(True, True, True)
    bce, softmax = Bce(ids(batch + 1), ids(batch), 0.9, 1e-5), CrossEntropy(ids(batch), 0.1)
    yield kgfast.unchecked, lambda: loss_total(operands, bce, 7.0, BACKEND, need)
    yield kgfast.unchecked, lambda: losses._rows.body(operands, None, softmax, BACKEND)
    for sampled in (Sampled(meta(batch)), Sampled(None, ids(batch), ids(batch, WIDTH))):
        loss, wants = NegativeLoss("nssa", 0.5, None, "mean"), [True, True, True, False, False]

        def both(sampled: Sampled = sampled, loss: NegativeLoss = loss, wants=wants) -> None:
            made = negatives._negative_loss.body(operands, sampled, loss, BACKEND)
            saved = operands, sampled._replace(targets=None, negatives=None), loss
            negatives._negative_backward.body(meta(), made, *saved, BACKEND, wants)

        yield kgfast.unchecked, both
    backend = get_backend(BACKEND)
    yield kgfast.unchecked, lambda: backend.row_sums(ids(batch), ids(batch), queries)


@pytest.mark.parametrize("score", ["dot", "l1"])
@pytest.mark.parametrize(("batch", "rows"), [(MANY, 3), (1, 9 * MANY), (100, 9 * MANY)])
def test_only_the_first_axis_grows_with_queries_and_rows(grids, score, batch, rows) -> None:
    """Rows have one feature, so the scratch holds more of them than a grid has programs."""
    for checks, call in calls_of(score, batch, rows, 1):
        with checks(), PretendDevice(1):
            call()
    wrong = {name: grid for name, grid in grids.items() if any(map(int.__gt__, grid, MOST))}
    assert wrong == {}
    # Else nothing here is large enough for a cut, or for more programs than another axis has.
    assert any(65_535 in grid[1:] or (grid[0] > 65_535 and batch > 1) for grid in grids.values())


@pytest.mark.parametrize(("memory", "programs"), [(0, 512), (141 << 30, 1024)])
def test_a_pull_fills_a_gpu_of_much_memory(grids, memory, programs, monkeypatch) -> None:
    """A pool of 1,024 for 512 queries, on 132 multiprocessors of eight such warps each."""
    from kgfast.kernels.triton.host import launch

    monkeypatch.setattr(launch, "memory_of", lambda device: memory)
    operands = operands_of(meta(512, 1024), meta(1024, 1024), "rotate")
    with PretendDevice():
        need = [True, True, False, False]
        scores._backward.body(meta(512, 1024), operands, None, False, None, BACKEND, need)
    assert math.prod(grids["pull"]) == programs
