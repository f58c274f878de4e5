"""Rows weighted by their own softmax, and their gradient, on every engine against float64."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kgfast.kernels.cpu.passes import adversarial_slopes, adversarial_sums
from support.engines import ISAS, assert_same, engines, examples
from support.sampled import assert_close, threads

ENGINES = (*ISAS, "baseline")


def scores_of(rows, columns, scale):
    generator = torch.Generator().manual_seed(rows + columns)
    return scale * torch.randn(rows, columns, generator=generator)


def made(engine, scores, alpha, weights):
    """Rows and gradient by the kernels."""
    rows, *kept = adversarial_sums(scores, alpha)
    return rows, adversarial_slopes(weights, scores, *kept, alpha)


def by_formula(scores, alpha, weights, dtype):
    """Return the rows by torch's operators."""
    scores = scores.detach().to(dtype).requires_grad_()
    weight = (scores * alpha).softmax(1).detach()
    rows = (weight * torch.nn.functional.softplus(scores)).sum(1)
    return rows.detach(), torch.autograd.grad(rows, scores, weights.to(dtype))[0]


@engines(*ENGINES, quick=True)
@given(
    rows=st.integers(1, 20),
    columns=st.sampled_from([1, 3, 16, 47, 128, 1024, 1100]),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e4, 1e34]),
    alpha=st.sampled_from([0.0, 0.5, 1.0, 7.0]),
)
@example(rows=9, columns=1024, scale=3.0, alpha=0.5)
@examples(25)
def test_rows_and_gradient(engine, rows, columns, scale, alpha):
    scores, weights = scores_of(rows, columns, scale), torch.arange(1.0, rows + 1) / rows
    exact, dense = (by_formula(scores, alpha, weights, it) for it in (torch.float64, torch.float32))
    for found, wanted, dense32 in zip(
        made(engine, scores, alpha, weights), exact, dense, strict=True
    ):
        assert found.dtype == torch.float32
        assert_close(found, wanted, dense32)


@engines(*ENGINES, quick=True)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_score_breaks_its_row_alone(engine, bad):
    scores = scores_of(4, 150, 1.0)
    scores[2, 148] = bad
    rows, _ = made(engine, scores, 0.5, torch.ones(4))
    assert rows.isnan().tolist() == [False, False, True, False]


@engines(*ENGINES, quick=True)
def test_a_masked_score_takes_no_part(engine):
    scores, weights = scores_of(2, 9, 1.0), torch.ones(2)
    scores[:, 4] = -torch.inf
    rows, gradient = made(engine, scores, 0.5, weights)
    others = [i for i in range(9) if i != 4]
    alone, of_others = made(engine, scores[:, others], 0.5, weights)
    torch.testing.assert_close(rows, alone)
    torch.testing.assert_close(gradient[:, others], of_others)
    assert not gradient[:, 4].any()


@engines(*ENGINES, quick=True)
def test_bits_depend_on_nothing_else(engine):
    """Not on strides, nor threads."""
    scores, weights = scores_of(37, 1030, 3.0), torch.rand(37)
    wide = torch.zeros(37, 1031)
    wide[:, 1:] = scores
    alone = made(engine, scores, 0.5, weights)
    with threads(3):
        for given in (scores, wide[:, 1:], scores.t().contiguous().t()):
            assert_same(made(engine, given, 0.5, weights), alone)
