"""Memory of a call beside its operands and results, counted without a GPU."""

import pytest
import torch

import kgfast
from kgfast.kernels.labels import Bce, CrossEntropy, LossNeed
from kgfast.kernels.operands import Known, Operands
from kgfast.kernels.scores import get_score
from kgfast.ops import losses, scores
from kgfast.ops.rank import _rank_counts
from kgfast.ops.run import loss_total, operands_of
from kgfast.ops.topk import _topk
from support.triton_code import compiled
from support.waits import LiveMemory, ids, meta

pytest.importorskip("triton")
pytestmark = [pytest.mark.usefixtures("launches"), compiled]

MOST = 64 << 20
BACKEND = "triton"


def operands(score: str, shape: tuple[int, int, int], dtype=torch.float32, **options) -> Operands:
    (batch, rows, dim), facts = shape, get_score(score)
    of_query, of_row = facts.query_planes(has_factor=False), facts.planes
    queries, table = meta(batch, dim * of_query), meta(rows, dim * of_row, dtype=dtype)
    return operands_of(queries, table, score, meta(rows), **options)


def size(*results: torch.Tensor | None) -> int:
    return sum(it.untyped_storage().nbytes() for it in results if it is not None)


@pytest.fixture(params=[0, 141 << 30], ids=["64 MiB", "a 256th"])
def most(request, monkeypatch) -> int:
    """Most bytes of scratch, on a GPU of some memory: 141 GiB, or less than 16."""
    from kgfast.kernels.triton.host import launch

    monkeypatch.setattr(launch, "memory_of", lambda device: request.param)
    return max(MOST, request.param // 256)


SHAPES = [(16, 1_000_000, 64), (512, 40_943, 200), (512, 40_943, 512), (4000, 20_000, 100)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [*SHAPES, (1000, 2000, 200)])
@pytest.mark.parametrize(
    ("score", "precision"),
    [("dot", "bf16"), *((it, "float32") for it in ("dot", "l1", "rotate", "rscf_rotate"))],
)
def test_losses(score, precision, shape, dtype, most) -> None:
    batch, rows, _ = shape
    need, labels = LossNeed(True, True, True), Bce(ids(batch + 1), ids(3 * batch), 1.0, 0.0)
    given = operands(score, shape, dtype, precision=precision)
    with LiveMemory() as memory:
        total, _, made = loss_total(given, labels, 2.0, BACKEND, need)
    taken = memory.peak - size(total, *made)
    assert taken <= most
    of_slope = 2 if precision == "bf16" else 4
    assert taken >= min(29 << 20, (of_slope - 1) * batch * rows)  # is counted
    with LiveMemory() as memory:
        _, lse = losses._rows.body(given, None, CrossEntropy(ids(batch), 0.1), BACKEND)
    assert memory.peak <= most
    with LiveMemory() as memory:
        made_of = meta(batch), lse, given, None, CrossEntropy(ids(batch), 0.1), BACKEND, need
        made = losses._rows_backward.body(*made_of)
    assert memory.peak - size(*made) <= most


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", SHAPES[1:])
@pytest.mark.parametrize("score", ["dot", "l2", "rotate", "rscf_rotate"])
def test_all_pairs_and_their_backward(score, shape, dtype, most) -> None:
    batch, rows, _ = shape
    given, rest = operands(score, shape, dtype), (None, False, None, BACKEND)
    with kgfast.unchecked(), LiveMemory() as memory:
        made = scores._scores.body(given, *rest)
    assert memory.peak - size(made) <= most
    grad, need = meta(batch, rows), [True, True, False, False]
    with LiveMemory() as memory:
        made = scores._backward.body(grad, given, *rest, need)
    assert memory.peak - size(*made) <= most


@pytest.mark.parametrize("score", ["dot", "rotate"])
@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_and_the_best(score, shape, most) -> None:
    batch, _, _ = shape
    given, known = operands(score, shape), Known(ids(batch + 1), ids(0))
    with LiveMemory(value=1) as memory:
        _rank_counts.body(given, ids(batch), known)
    assert 0 < memory.peak <= most
    is_packed = batch > 16 and score == "rotate"
    if most > MOST and is_packed:  # all rows at once
        assert memory.peak >= 8 * len(given.table) * given.num_features
    with LiveMemory(value=1) as memory:
        _topk.body(given, 10, known, False)
    assert 0 < memory.peak <= most
