"""Kernels of a step of MED and RSCF, and the step as a whole: the formulas, in float64."""

import pytest
import torch

import kgfast
from kgfast import MED, RSCF, RotatE, TransE, losses, ops
from support.engines import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="runs in test_interpreted.py's processes")


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def compare(run, *tensors):
    """Compare a value and its gradients, scaled, on Triton and in float64 on the reference."""
    found = []
    for backend, dtype in (("triton", torch.float32), ("reference", torch.float64)):
        leaves = [it.to(dtype).clone().requires_grad_() for it in tensors]
        with ops.use_backend(backend):
            value = run(*leaves)
            slopes = random(*value.shape).to(dtype)
            made = torch.autograd.grad(value, leaves, slopes, allow_unused=True)
        found.append(
            [value.detach().double(), *(None if it is None else it.double() for it in made)]
        )
    for actual, expected in zip(*found, strict=True):
        assert (actual is None) == (expected is None)
        if actual is not None:
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    return found[0]


def crops_one_by_one(rows, matrix, widths, features):
    """Return filters by torch's own operators."""
    made = []
    for width in widths:
        inner, columns = (torch.arange(len(it)) % features < width for it in (matrix, matrix.T))
        product = (rows * inner) @ (matrix * columns)
        norm = torch.linalg.vector_norm(product, dim=1, keepdim=True).clamp_min(1e-12)
        made.append((product / norm + 1) * columns)
    return torch.stack(made)


@pytest.mark.parametrize("widths", [[8], [2, 5, 8], [3, 4]])
@pytest.mark.parametrize("planes", [(1, 1), (2, 1), (1, 2)])
def test_filters_and_their_gradients(planes, widths):
    def run(rows, matrix):
        if ops.serves_filters(rows, matrix):
            return ops.filters(rows, matrix, widths, 8)
        return crops_one_by_one(rows, matrix, widths, 8)

    with ops.use_backend("triton"):
        assert ops.serves_filters(torch.ones(1, requires_grad=True))
    compare(run, random(11, 8 * planes[0]), random(8 * planes[0], 8 * planes[1]))


def test_rows_without_a_norm():
    """Leave the norm out of slopes where it is held: the filter is linear there."""

    def run(rows, matrix):
        if ops.serves_filters(rows, matrix):
            return ops.filters(rows, matrix, [2], 2)
        return crops_one_by_one(rows, matrix, [2], 2)

    rows = torch.tensor([[0.0, 0.0], [1e-13, 0.0]])
    value, of_rows, _ = compare(run, rows, torch.eye(2))
    assert value[0, 0].tolist() == [1.0, 1.0]
    assert of_rows.abs().min() > 1e10


@pytest.mark.parametrize(
    ("shape", "sparse"), [((7,), True), ((6, 5), False)], ids=["pool", "lists"]
)
@pytest.mark.parametrize(
    ("make", "side", "dims"),
    [
        pytest.param(RotatE, "tail", None, marks=pytest.mark.slow),
        (RotatE, "head", [2, 4]),
        pytest.param(TransE, "tail", [4], marks=pytest.mark.slow),
    ],
)
def test_a_step_has_the_gradients_of_the_formula(make, side, dims, shape, sparse):
    """Ids repeat among negatives, anchors and targets, and some are nowhere."""
    model = MED(RSCF(make.init(30, 4, dim=8, seed=0), seed=1), dims=[2, 4, 8])
    draw = torch.Generator().manual_seed(0)
    triples = torch.stack([torch.randint(n, (6,), generator=draw) for n in (9, 4, 9)], 1)
    negatives = torch.randint(12, shape, generator=draw)
    found = []
    for backend, dtype in (("triton", torch.float32), ("reference", torch.float64)):
        model.to(dtype).zero_grad()
        with ops.use_backend(backend), kgfast.unchecked():
            loss = losses.med(model, triples, negatives, side=side, dims=dims, sparse=sparse)
            loss.backward()
        grads = {
            name: it.grad.to_dense().double()
            for name, it in model.named_parameters()
            if it.grad is not None
        }
        found.append({"loss": loss.detach().double(), **grads})
    assert len(found[0]) >= 7
    assert not found[0]["model.model.entity"][12:].any()
    torch.testing.assert_close(*found, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(("count", "room"), [(6, 7), (7, 8), (10, 7)])
def test_distinct_ids_are_found_without_a_wait(count, room):
    """Never exactly as many rows as there are ids."""
    ids = torch.tensor([[7, 2, 7], [9, 2, 5]]), torch.tensor([9])
    with ops.use_backend("triton"):
        distinct, places = losses.sampled.distinct_ids(*ids, of=count)
    assert distinct.tolist() == [2, 5, 7, 9, *[9] * (room - 4)]
    for part, place in zip(ids, places, strict=True):
        assert torch.equal(distinct[place], part)
        assert int(place.max()) < 4
