"""Launches and waits of sweeps and losses, counted without a GPU.

Counted are every kernel of this backend, and every operator of torch that computes on the device (a
sort as one, though it is several kernels). See docs/reference/losses.md.
"""

import pytest
import torch

import kgfast
from kgfast.kernels.checks import Checks
from kgfast.kernels.labels import Bce, CrossEntropy, LossNeed
from kgfast.kernels.operands import Known, Operands
from kgfast.kernels.sampled import NegativeLoss, Sampled
from kgfast.kernels.scores import get_score
from kgfast.kernels.triton import backend
from kgfast.ops import losses, negatives
from kgfast.ops.dispatch import get_backend
from kgfast.ops.run import loss_total, operands_of
from support.triton_code import compiled
from support.waits import PretendDevice, ids, meta

pytest.importorskip("triton")
pytestmark = compiled

B, N, DIM, POSITIVES = 512, 40_943, 200, 5
BACKEND = "triton"
PRECISION = "float32"


def rank(operands: Operands, known: Known) -> None:
    backend.rank_counts(operands, ids(operands.num_queries), known, Checks(deferred=True))


def best(operands: Operands, known: Known) -> None:
    backend.topk(operands, 10, known, Checks(deferred=True))


def above(operands: Operands, known: Known) -> None:
    """Run up to the results, whose number the host waits for."""
    lowest, checks = meta(operands.num_queries, dtype=torch.float64), Checks(deferred=True)
    with pytest.raises(AssertionError, match="nonzero waits"):
        backend.above(operands, lowest, known, checks, 1)


# Kernels, and operators of torch, of a call with known answers, on a GPU of 16 GiB or less, and
# kernels on one of 141 GiB: they may fall, not grow. Checks of the arguments have 20 operators
# beside these.
SWEEPS = {
    ("rotate", 1): {rank: (5, 8, 5), best: (10, 12, 10), above: (3, 22, 3)},
    ("rotate", 128): {rank: (15, 9, 7), best: (20, 13, 12), above: (13, 22, 5)},
    ("rotate", 1024): {rank: (15, 9, 7), best: (25, 13, 12), above: (13, 22, 5)},
    ("rotate", 6268): {rank: (32, 9, 11), best: (184, 37, 84), above: (30, 22, 9)},
    ("dot", 1): {rank: (6, 8, 6), best: (9, 12, 9), above: (4, 22, 4)},
    ("dot", 128): {rank: (12, 8, 8), best: (14, 12, 10), above: (9, 22, 5)},
    ("dot", 1024): {rank: (12, 8, 8), best: (19, 12, 10), above: (9, 22, 5)},
}


@pytest.mark.parametrize(
    ("score", "batch", "call"), [(*it, call) for it, most in SWEEPS.items() for call in most]
)
def test_a_sweep_has_no_more_kernels_and_operators_than_it_had(
    launches, score, batch, call, monkeypatch
) -> None:
    from kgfast.kernels.triton.host import launch

    width, seen = 512 * get_score(score).planes, []
    for memory in (0, 141 << 30):
        monkeypatch.setattr(launch, "memory_of", lambda device, it=memory: it)
        launches.clear()
        with PretendDevice(0) as device:
            operands = operands_of(meta(batch, width), meta(N, width), score)
            call(operands, Known(ids(batch + 1), ids(3 * batch)))
        assert device.waits == {"device to host": 1}
        seen += [launches.total(), device.operators.total()]
    kernels, operators, of_large = SWEEPS[score, batch][call]
    assert seen[0] <= kernels, seen
    assert max(seen[1], seen[3]) <= operators, device.operators
    assert seen[2] <= of_large, launches


def given(score: str, *, has_bias: bool = False, precision: str = PRECISION) -> Operands:
    planes = get_score(score).planes
    bias = meta(N) if has_bias else None
    rows = meta(B, DIM * planes), meta(N, DIM * planes)
    return operands_of(*rows, score, bias, precision=precision)


def labels() -> Bce:
    return Bce(ids(B + 1), ids(B * POSITIVES), 0.9, 1e-5)


def total_of(score: str, *, has_bias: bool = False, precision=PRECISION) -> PretendDevice:
    """Compute a value and its gradients, as a step of training does, and its backward."""
    need = LossNeed(True, True, has_bias)
    with PretendDevice(0) as device:
        operands = given(score, has_bias=has_bias, precision=precision)
        total, _, gradients = loss_total(operands, labels(), 7.0, BACKEND, need)
        gradients = [it for it in gradients if it is not None]
        get_backend(BACKEND).losses.scale(gradients, total)
    assert total.shape == ()
    assert [len(it) for it in gradients] == [B, N, N][: 2 + has_bias]
    return device


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_product_and_its_gradients(launches, precision) -> None:
    """Two chunks: four launches each, three beside them, eleven in all.

    Rounding is an operator a chunk, and one of the queries.
    """
    device = total_of("dot", precision=precision)
    once = {"make_keys": 1, "finish": 1, "scale": 1}
    assert launches == {**once, "tile_losses": 2, "multiply_slopes": 4, "add_parts": 2}
    assert device.operators == {"sort": 1} | ({"copy_": 3} if precision == "bf16" else {})
    assert device.waits == {"device to host": 1}


@pytest.mark.parametrize("score", ["dot", "rotate"])
def test_losses_wait_for_nothing_where_values_are_not_looked_at(launches, score) -> None:
    """And launch nothing more for it: their kernels make keys that are safe."""
    total_of(score)
    checked = launches.copy()
    launches.clear()
    with kgfast.unchecked(), PretendDevice(0) as forward:
        losses._rows.body(given(score), None, CrossEntropy(ids(B), 0.1), BACKEND)
    assert not forward.waits
    launches.clear()
    with kgfast.unchecked():
        device = total_of(score)
    assert not device.waits
    assert launches == checked


@pytest.mark.parametrize("score", ["l1", "l2", "rotate"])
def test_a_distance_and_its_gradients(launches, score) -> None:
    """Two chunks: four launches each, four beside them, twelve in all; queries are packed once."""
    device = total_of(score)
    chunks = launches["tile_losses"]
    assert chunks == 2
    packs = 1 + chunks
    assert launches == {
        **{"make_keys": 1, "finish": 1, "scale": 1},
        **{"pack": packs, "tile_losses": chunks, "pull": chunks, "add_parts": chunks},
    }
    assert device.operators == {"sort": 1}
    assert device.waits == {"device to host": 1}


def test_the_gradient_of_a_bias_is_one_launch_a_chunk(launches) -> None:
    without, operators = launches.copy(), total_of("dot").operators
    without.update(launches)
    launches.clear()
    device = total_of("dot", has_bias=True)
    assert launches == without
    assert device.operators - operators == {"sum": 2}


@pytest.mark.parametrize("score", ["dot", "rotate"])
def test_a_backward_waits_for_nothing(launches, score) -> None:
    with PretendDevice(0) as device:
        rows, _ = losses._rows.body(given(score), labels(), None, BACKEND)
        targets = ids(B)
        _, lse = losses._rows.body(given(score), None, CrossEntropy(targets, 0.1), BACKEND)
    assert device.waits == {"device to host": 2}  # one of each
    assert launches["finish"] == 2
    need = [True, True, False]
    grad = rows[:1].expand(B)  # a sum's gradient: read in place
    with PretendDevice(0) as device:
        losses._rows_backward.body(grad, lse, given(score), labels(), None, BACKEND, need)
        made_of = grad, lse, given(score), None, CrossEntropy(targets, 0.1), BACKEND, need
        losses._rows_backward.body(*made_of)
    assert not device.waits
    assert launches["finish"] == 2


K = 1024


def negatives_of(score: str, formula: str, *, is_pool: bool) -> tuple[PretendDevice, int]:
    """Check a value and its gradients; return also the number of the value's launches."""
    planes, width = get_score(score).planes, K if is_pool else 1 + K
    queries, table = meta(B, DIM * planes), meta(K if is_pool else N, DIM * planes)
    sampled = Sampled(meta(B))
    if not is_pool:
        sampled = Sampled(None, ids(B), ids(B, K))
    loss, need = NegativeLoss(formula, 0.5, None, "mean"), [True, True, False, False, False]
    with PretendDevice(0) as device:
        operands = operands_of(queries, table, score, meta(len(table)))
        made = negatives._negative_loss.body(operands, sampled, loss, BACKEND)
        forward = device.operators.total()
        assert device.waits == {"device to host": 1}
        assert made.raw.shape == (B, width)
        saved = operands, sampled._replace(targets=None, negatives=None), loss
        negatives._negative_backward.body(meta(), made, *saved, BACKEND, need)
    return device, forward


@pytest.mark.parametrize("formula", ["nssa", "margin", "logistic"])
@pytest.mark.parametrize("score", ["l1", "l2", "rotate", "dot"])
def test_a_pool_is_scored_once_and_read_once(launches, score, formula) -> None:
    """Four launches and three backward, two and four of products; torch only makes zeros."""
    device, forward = negatives_of(score, formula, is_pool=True)
    made = {"negative_rows": 1, "negative_slopes": 1}
    if score == "dot":
        made |= {"score_tiles": 1, "multiply_slopes": 2, "add_parts": 1}
    else:
        made |= {"pack": 2, "score_tiles": 1, "pull": 1, "add_parts": 1}
    assert launches == made
    assert forward == 1  # zeros: how many programs have finished
    assert set(device.operators) <= {"new_zeros", "sum", "copy_"}  # for gradients
    assert device.waits == {"device to host": 1}


@pytest.mark.parametrize("score", ["l2", "rotate", "dot"])
def test_lists_are_gathered_once_a_pass(launches, score) -> None:
    """Two launches forward; backward the slopes, and a pull and a sum of each side's lists.

    Torch sorts the lists. The host waits once, for the checks.
    """
    device, forward = negatives_of(score, "nssa", is_pool=False)
    once = {"gather_scores": 1, "negative_rows": 1, "negative_slopes": 1}
    assert launches == {**once, "backward_lists": 2, "add_parts": 2}
    assert forward == 1  # zeros: how many programs have finished
    assert device.waits == {"device to host": 1}
