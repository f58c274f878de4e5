"""Queries of training from one kernel: the models' own formula, forward and backward."""

import pytest
import torch

from kgfast import ComplEx, RotatE, ops
from kgfast.kernels.triton.host import launch
from support.engines import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="runs in test_interpreted.py's processes")
N, R = 11, 4


@pytest.fixture
def launched(monkeypatch):
    """Record the kernels that are launched, by name."""
    names, real = [], launch.launch

    def note(kernel, *args, **options):
        names.append(kernel.__name__)
        real(kernel, *args, **options)

    monkeypatch.setattr(launch, "launch", note)
    return names


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def models(dim):
    entity, whole = random(N, 2 * dim), random(R, 2 * dim)
    half = random(R, dim) / dim  # the unit of raw phases grows with dim
    for layout in ("halves", "interleaved"):
        yield ComplEx(entity, whole, layout=layout)
        for form in ("raw", "phase", "complex"):
            relation = whole if form == "complex" else half
            yield RotatE(entity, relation, gamma=3.0, relation_format=form, layout=layout)


def made(model, side, dims=None, **chosen):
    """Return the queries, and the gradients of both tables for random ones of the queries."""
    model.requires_grad_().zero_grad()
    anchors, relations = torch.tensor([3, 9, 3, 0, 7]), torch.tensor([1, 1, 3, 0, 2])
    with ops.use_backend(**chosen):
        queries = model.queries(anchors, relations, side, dims=dims)
        queries.backward(random(*queries.shape))
    return queries.detach(), model.entity.grad, model.relation.grad


@pytest.mark.parametrize("side", ["head", "tail"])
@pytest.mark.parametrize("dim", [1, 6, 700])
def test_queries_and_gradients_are_those_of_the_formula(dim, side, launched):
    for count, model in enumerate(models(dim), start=1):
        expected = made(model, side, name="reference")
        for found, right in zip(made(model, side, name="triton"), expected, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
        assert launched == ["compose", "compose_backward"] * count


def test_crops_of_halves_are_zeros(launched):
    model = ComplEx(random(N, 12), random(R, 12))
    expected = made(model, "tail", 2, name="reference")
    for found, right in zip(made(model, "tail", 2, name="triton"), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
    assert launched == ["compose", "compose_backward"]


def test_queries_of_a_ranking_keep_their_bits(launched):
    ids = torch.arange(R)
    for model in models(6):
        with torch.no_grad(), ops.use_backend("triton"):
            found = model.requires_grad_().queries(ids, ids, "tail")
        assert torch.equal(found, model.requires_grad_(False).queries(ids, ids, "tail"))
    assert launched == []
