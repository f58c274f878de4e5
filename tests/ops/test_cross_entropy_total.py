"""Totals of cross entropy, whose gradients are made with them: those of their rows."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import cpu, losses
from kgfast.kernels.cpu import backend
from support import oracles
from support.sampled import threads

ROWS, BATCH, DIM = 90, 23, 12
SMOOTHING = pytest.mark.parametrize("smoothing", [0.0, 0.1])


def operands(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    shapes = (BATCH, DIM), (ROWS, DIM), (ROWS,)
    made = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    return [it.requires_grad_() for it in made]


TARGETS = torch.arange(BATCH) * 7 % ROWS


def total_of(tensors, smoothing=0.1, divisor=BATCH):
    return ops.cross_entropy_total(*tensors, TARGETS, smoothing, "dot", divisor)


def rows_of(tensors, smoothing=0.1):
    return ops.cross_entropy(*tensors, TARGETS, smoothing, "dot")


def gradients(loss, tensors, **options):
    return torch.autograd.grad(loss, tensors, **options)


def all_equal(found, expected):
    return all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.fixture
def blocks(monkeypatch):
    """Nine queries at once, the last block of five."""
    monkeypatch.setattr(losses, "_LEAST_QUERIES", 2)
    monkeypatch.setattr(backend, "_LOSS_KEPT", 9 * ROWS)


@SMOOTHING
@pytest.mark.parametrize("divisor", [1, BATCH, 7.0])
def test_a_total_has_the_bits_of_its_rows(smoothing, divisor):
    tensors = operands()
    expected = rows_of(tensors, smoothing).sum() / divisor
    assert torch.equal(total_of(tensors, smoothing, divisor), expected)
    check(smoothing, divisor)


@SMOOTHING
@pytest.mark.usefixtures("blocks")
def test_blocks_of_queries_add_up(smoothing):
    check(smoothing, BATCH)


def check(smoothing, divisor):
    tensors, exact = operands(), [it.detach().double().requires_grad_() for it in operands()]
    found = total_of(tensors, smoothing, divisor)
    scores = exact[0] @ exact[1].T + exact[2]
    right = torch.nn.functional.cross_entropy(
        scores, TARGETS, reduction="none", label_smoothing=smoothing
    )
    right = right.sum() / divisor
    oracles.assert_accurate(found.detach(), right.detach())
    made = gradients(found, tensors), gradients(right, exact)
    for pair in zip(*made, strict=True):
        oracles.assert_accurate(*pair)


@pytest.mark.usefixtures("blocks")
def test_threads_change_no_bit():
    tensors, found = operands(), []
    for count in (1, 3):
        with threads(count):
            total = total_of(tensors)
            found.append([total, *gradients(total, tensors)])
    assert all_equal(*found)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_of_the_total_scales_its_own(dtype):
    tensors = operands(dtype)
    twice, once = (gradients(it * total_of(tensors), tensors) for it in (2, 1))
    assert all_equal(twice, [2 * it for it in once])
    for pair in zip(once, gradients(rows_of(tensors).mean(), tensors), strict=True):
        torch.testing.assert_close(*pair)


def test_a_graph_that_is_retained_gives_them_again():
    tensors = operands()
    loss = total_of(tensors)
    first = gradients(loss, tensors, retain_graph=True)
    assert all_equal(first, gradients(loss, tensors))


def test_some_of_them_are_enough():
    tensors = operands()
    whole = gradients(total_of(tensors), tensors)
    for place in range(3):
        given = [it.detach().requires_grad_(at == place) for at, it in enumerate(tensors)]
        (found,) = gradients(total_of(given), [given[place]])
        assert torch.equal(found, whole[place])


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
@pytest.mark.usefixtures("blocks")
def test_scores_are_made_once(monkeypatch):
    made, scores = [], backend.scores

    def recording(operands, *given, **options):
        made.append(operands.num_queries)
        return scores(operands, *given, **options)

    monkeypatch.setattr(backend, "scores", recording)
    tensors = operands()
    gradients(total_of(tensors), tensors)
    assert made == [8, 8, 7]
    monkeypatch.setattr(losses, "_LEAST_QUERIES", 10)  # than which nine are fewer
    gradients(total_of(tensors), tensors)
    assert made[3:] == [BATCH, BATCH]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_have_the_bits_of_rows(dtype):
    tensors = operands(dtype)
    expected = gradients(rows_of(tensors).sum() / BATCH, tensors)
    assert all_equal(gradients(total_of(tensors), tensors), expected)


def test_half_precision_is_scaled_before_it_is_rounded():
    tensors = operands()
    tensors[1] = tensors[1].detach().half().requires_grad_()
    found = gradients(2.0**26 * total_of(tensors, divisor=2.0**30), tensors)
    assert bool(found[1].any())


@pytest.mark.usefixtures("backend")
def test_there_is_no_second_derivative():
    tensors = operands()
    (first,) = torch.autograd.grad(total_of(tensors), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="cross_entropy_total can be differentiated once"):
        first.sum().backward()


def test_opcheck(backend):
    for need in ([True, True, True], [False, True, False]):
        leaves = [it if has else it.detach() for it, has in zip(operands(), need, strict=True)]
        args = (*leaves, TARGETS, 0.1, "dot", "float32", 23.0, backend, need)
        torch.library.opcheck(torch.ops.kgfast.cross_entropy_total, args)


def test_a_divisor_is_positive():
    for value in (0, -1):
        with pytest.raises(ValueError, match=r"^divisor must be "):
            total_of(operands(), divisor=value)
