"""Rows weighted by their own softmax, for every instruction set of this machine."""

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kgfast import losses, ops
from kgfast.kernels import cpu
from support.sampled import assert_close, threads

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
some = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def by_formula(scores, alpha, weights, dtype):
    """Rows and gradient by torch's operators."""
    scores = scores.to(dtype).requires_grad_()
    rows = (scores * alpha).softmax(1).detach().mul(torch.nn.functional.softplus(scores)).sum(1)
    rows.backward(weights.to(dtype))
    return rows.detach(), scores.grad


def random_scores(rows, columns, scale, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, columns, generator=generator)


@given(
    rows=st.integers(1, 20),
    columns=st.sampled_from([1, 3, 16, 47, 1024, 1100]),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
    alpha=st.sampled_from([0.0, 0.5, 1.0, 7.0]),
)
@example(rows=9, columns=1024, scale=3.0, alpha=0.5)
@some
def test_rows_and_gradient(isa, rows, columns, scale, alpha):
    scores, weights = random_scores(rows, columns, scale), torch.rand(rows)
    leaf = scores.clone().requires_grad_()
    got = ops.adversarial_rows(leaf, alpha)
    got.backward(weights)
    exact = by_formula(scores, alpha, weights, torch.float64)
    dense = by_formula(scores, alpha, weights, torch.float32)
    for found, wanted, dense32 in zip((got.detach(), leaf.grad), exact, dense, strict=True):
        assert found.dtype == torch.float32
        assert_close(found, wanted, dense32)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_score_breaks_its_row_alone(isa, bad):
    scores = random_scores(4, 50, 1.0)
    scores[2, 48] = bad
    assert ops.adversarial_rows(scores, 0.5).isnan().tolist() == [False, False, True, False]


def test_bits_depend_on_nothing_else(isa):
    scores = random_scores(37, 300, 3.0)

    def results(scores):
        leaf = scores.detach().requires_grad_()
        rows = ops.adversarial_rows(leaf, 0.5)
        rows.sum().backward()
        return rows.detach(), leaf.grad

    alone = results(scores)
    wide = torch.zeros(37, 301)
    wide[:, 1:] = scores
    with threads(3):
        for given in (scores, wide[:, 1:], scores.t().contiguous().t()):
            assert all(torch.equal(a, b) for a, b in zip(results(given), alone, strict=True))


def test_opcheck():
    scores = random_scores(3, 5, 1.0).requires_grad_()
    torch.library.opcheck(torch.ops.kgfast.adversarial_rows, (scores, 0.5))
    grad, peaks, masses = torch.rand(3, 3).unbind()
    torch.library.opcheck(
        torch.ops.kgfast.adversarial_backward, (grad, scores.detach(), peaks, masses, 0.5)
    )


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 4)], ids=["crops", "rows"])
def test_nssa_is_the_same_by_the_kernel_and_by_torch(shape):
    scores, positive = torch.randn(shape, requires_grad=True), torch.randn(shape[:-1])
    found = []
    for backend in ("cpu", "reference"):
        with ops.use_backend(backend):
            loss = losses.NSSAFormula(alpha=0.7).of_scores(positive, scores, reduction="none")
            (gradient,) = torch.autograd.grad(loss.sum(), scores)
        found.append((loss.detach(), gradient))
    assert found[0][0].shape == shape[:-1]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    "scores",
    [torch.zeros(2, 2).double(), torch.zeros(3, 0), torch.zeros(3)],
    ids=["dtype", "empty", "axes"],
)
def test_other_scores_are_refused(scores):
    with pytest.raises(ValueError, match=r"scores must be \[R, K\] float32, not empty, where"):
        ops.adversarial_rows(scores, 1.0)


@pytest.mark.parametrize("alpha", [-1.0, float("nan"), float("inf")])
def test_an_alpha_that_makes_no_softmax_is_refused(alpha):
    """Weights are taken relative to the highest score: with a negative alpha they overflow."""
    with pytest.raises(ValueError, match="alpha must be finite and at least 0; got"):
        ops.adversarial_rows(torch.zeros(2, 2), alpha)
