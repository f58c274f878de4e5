"""Gradients of cross entropy that are made with its rows: those that are made after them."""

import math

import pytest
import torch

from kgfast import ops
from kgfast.kernels import chunked_losses, cpu
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


def loss_of(tensors, smoothing=0.1, divisor=BATCH):
    return ops.cross_entropy(*tensors, TARGETS, smoothing, "dot", divisor)


def gradients(loss, tensors, **options):
    return torch.autograd.grad(loss, tensors, **options)


def all_equal(found, expected):
    return all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.fixture
def blocks(monkeypatch):
    """Nine queries at once, the last block of five."""
    monkeypatch.setattr(chunked_losses, "_LEAST_QUERIES", 2)
    monkeypatch.setattr(backend, "_LOSS_KEPT", 9 * ROWS)


@SMOOTHING
@pytest.mark.parametrize("divisor", [1, BATCH, 7.0])
def test_rows_have_the_bits_of_those_alone(smoothing, divisor):
    tensors = operands()
    assert torch.equal(*(loss_of(tensors, smoothing, it) for it in (divisor, None)))
    check(smoothing, divisor)


@SMOOTHING
@pytest.mark.usefixtures("blocks")
def test_blocks_of_queries_add_up(smoothing):
    check(smoothing, BATCH)


def check(smoothing, divisor):
    tensors, exact = operands(), [it.detach().double().requires_grad_() for it in operands()]
    found = loss_of(tensors, smoothing, divisor)
    scores = exact[0] @ exact[1].T + exact[2]
    right = torch.nn.functional.cross_entropy(
        scores, TARGETS, reduction="none", label_smoothing=smoothing
    )
    oracles.assert_accurate(found.detach(), right.detach())
    totals = found.sum() / divisor, right.sum() / divisor
    made = (gradients(*it) for it in zip(totals, (tensors, exact), strict=True))
    for pair in zip(*made, strict=True):
        oracles.assert_accurate(*pair)


@pytest.mark.usefixtures("blocks")
def test_threads_change_no_bit():
    tensors, found = operands(), []
    for count in (1, 3):
        with threads(count):
            rows = loss_of(tensors)
            found.append([rows, *gradients(rows.sum() / BATCH, tensors)])
    assert all_equal(*found)


def test_other_gradients_are_made_of_other_scores():
    tensors, weights = operands(), torch.linspace(0, 2, BATCH)
    found = gradients(loss_of(tensors) @ weights, tensors)
    assert all_equal(found, gradients(loss_of(tensors, divisor=None) @ weights, tensors))
    twice = gradients(2 * loss_of(tensors).sum() / BATCH, tensors)
    once = gradients(loss_of(tensors).sum() / BATCH, tensors)
    assert all_equal(twice, [2 * it for it in once])


def test_a_graph_that_is_retained_gives_them_again():
    tensors = operands()
    loss = loss_of(tensors).sum() / BATCH
    first = gradients(loss, tensors, retain_graph=True)
    for pair in zip(first, gradients(loss, tensors), strict=True):
        torch.testing.assert_close(*pair)


def test_some_of_them_are_enough():
    tensors = operands()
    whole = gradients(loss_of(tensors).sum() / BATCH, tensors)
    for place in range(3):
        given = [it.detach().requires_grad_(at == place) for at, it in enumerate(tensors)]
        (found,) = gradients(loss_of(given).sum() / BATCH, [given[place]])
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
    gradients(loss_of(tensors).sum() / BATCH, tensors)
    assert made == [8, 8, 7]
    monkeypatch.setattr(chunked_losses, "_LEAST_QUERIES", 10)  # than which nine are fewer
    gradients(loss_of(tensors).sum() / BATCH, tensors)
    assert made[3:] == [BATCH, BATCH]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_served_as_ever(dtype):
    tensors = operands(dtype)
    found, expected = (
        gradients(loss_of(tensors, divisor=it).sum() / BATCH, tensors) for it in (BATCH, None)
    )
    assert all_equal(found, expected)


def test_a_divisor_is_a_positive_number():
    for value in ("x", [1.0]):
        with pytest.raises(TypeError, match=r"^divisor must be a number; got"):
            loss_of(operands(), divisor=value)
    for value in (0, -1, math.nan):
        with pytest.raises(ValueError, match=r"^divisor must be "):
            loss_of(operands(), divisor=value)
