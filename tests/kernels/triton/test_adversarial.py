"""Rows weighted by their own softmax, and their gradient, on Triton against float64.

As in test_rank.py, the class runs in a subprocess with ``TRITON_INTERPRET=1`` without a GPU.
"""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgfast import losses, ops
from support.interpreted import run_interpreted

pytest.importorskip("triton")
import aot
from support.interpreter import shuffled_programs
from support.sampled import assert_close
from support.triton_code import on_each_arch
from support.triton_ranks import CAN_RUN, DEVICE, INTERPRETED, few, on_gpu


@pytest.mark.skipif(INTERPRETED, reason="is the outer process")
def test_in_the_interpreter() -> None:
    run_interpreted(__file__, "TestAdversarial")


def scores_of(rows: int, columns: int, scale: float) -> torch.Tensor:
    rng = torch.Generator().manual_seed(rows + columns)
    return (scale * torch.randn(rows, columns, generator=rng)).to(DEVICE)


def made(scores, alpha, weights):
    """Rows and gradient by the kernels."""
    leaf = scores.detach().requires_grad_()
    with ops.use_backend("triton"):
        rows = ops.adversarial_rows(leaf, alpha)
        (gradient,) = torch.autograd.grad(rows, leaf, weights)
    return rows.detach(), gradient


def by_formula(scores, alpha, weights, dtype):
    """The same by torch's operators."""
    scores = scores.detach().to(dtype).requires_grad_()
    weight = (scores * alpha).softmax(1).detach()
    rows = (weight * torch.nn.functional.softplus(scores)).sum(1)
    return rows.detach(), torch.autograd.grad(rows, scores, weights.to(dtype))[0]


@on_gpu
class TestAdversarial:
    __test__ = CAN_RUN

    @given(
        rows=st.integers(1, 5),
        columns=st.sampled_from([1, 3, 128, 1024, 1100]),
        scale=st.sampled_from([0.0, 1.0, 30.0, 1e4, 1e34]),
        alpha=st.sampled_from([0.0, 0.5, 1.0, 7.0]),
    )
    @few
    def test_rows_and_gradient(self, rows, columns, scale, alpha) -> None:
        scores, weights = scores_of(rows, columns, scale), torch.rand(rows).to(DEVICE)
        exact = by_formula(scores, alpha, weights, torch.float64)
        dense = by_formula(scores, alpha, weights, torch.float32)
        for found, wanted, dense32 in zip(made(scores, alpha, weights), exact, dense, strict=True):
            assert found.dtype == torch.float32
            assert_close(found.cpu(), wanted.cpu(), dense32.cpu())

    @pytest.mark.parametrize("shift", [-30.0, -5.0, 5.0])
    def test_small_terms_are_as_precise_as_large_ones(self, shift) -> None:
        scores, weights = scores_of(3, 130, 0.5) + shift, torch.ones(3, device=DEVICE)
        exact = by_formula(scores, 0.5, weights, torch.float64)
        for found, wanted in zip(made(scores, 0.5, weights), exact, strict=True):
            assert bool(((found.double() - wanted).abs() <= 1e-5 * wanted.abs()).all())

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf])
    def test_a_bad_score_breaks_its_row_alone(self, bad) -> None:
        scores = scores_of(4, 150, 1.0)
        scores[2, 148] = bad
        rows, _ = made(scores, 0.5, torch.ones(4, device=DEVICE))
        assert rows.isnan().tolist() == [False, False, True, False]

    def test_a_masked_score_takes_no_part(self) -> None:
        scores = scores_of(2, 9, 1.0)
        scores[:, 4] = -torch.inf
        weights = torch.ones(2, device=DEVICE)
        rows, gradient = made(scores, 0.5, weights)
        others = [i for i in range(9) if i != 4]
        alone, of_others = made(scores[:, others], 0.5, weights)
        torch.testing.assert_close(rows, alone)
        torch.testing.assert_close(gradient[:, others], of_others)
        assert not gradient[:, 4].any()

    def test_bits_depend_on_nothing_else(self) -> None:
        """Not on strides, nor on the order of programs."""
        scores, weights = scores_of(7, 1030, 3.0), torch.rand(7).to(DEVICE)
        wide = torch.zeros(7, 1031, device=DEVICE)
        wide[:, 1:] = scores
        alone = made(scores, 0.5, weights)
        with shuffled_programs(0):
            again = made(wide[:, 1:], 0.5, weights)
        for found in (again, made(scores.t().contiguous().t(), 0.5, weights)):
            assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))

    def test_nssa_is_the_same_by_the_kernel_and_by_torch(self) -> None:
        scores = scores_of(6, 4, 1.0).view(2, 3, 4).requires_grad_()
        positive, found = torch.randn(2, 3).to(DEVICE), []
        for backend in ("triton", "reference"):
            with ops.use_backend(backend):
                loss = losses.NSSAFormula(alpha=0.7).of_scores(positive, scores, reduction="none")
                (gradient,) = torch.autograd.grad(loss.sum(), scores)
            found.append((loss.detach(), gradient))
        torch.testing.assert_close(*found)


@pytest.mark.skipif(INTERPRETED, reason="interpreted kernels cannot be compiled")
@pytest.mark.parametrize(("arch", "columns"), on_each_arch(3000, slow=[70]))
def test_one_launch_each_that_does_not_spill(arch, columns) -> None:
    from kgfast.kernels.triton.adversarial import ADVERSARIAL

    scores = torch.empty(50, columns + 1)[:, 1:]
    with aot.recorded(arch) as launches:
        rows, peaks, masses = ADVERSARIAL.rows(scores, 0.5)
        ADVERSARIAL.backward(rows, scores, peaks, masses, 0.5)
    assert [launch.name for launch in launches] == ["adversarial_rows", "adversarial_slopes"]
    for launch in launches:
        code = aot.compile_for(launch, arch)
        assert code.stack == 0
        assert code.registers <= 96


def test_the_logarithm_is_a_polynomial_that_is_as_exact_as_float32() -> None:
    """To 3e-7 of itself, from the smallest denormal to 1; NaN stays."""
    from kgfast.kernels.triton.device.adversarial import log1p_of

    e = torch.cat((torch.linspace(0, 1, 100_001), torch.logspace(-45, 0, 10_001))).clamp(max=1)
    exact = e.double().log1p()
    near = log1p_of.fn(e).double()
    assert bool(((near - exact).abs() <= 3e-7 * exact + 2e-45).all())
    assert bool(log1p_of.fn(torch.tensor(torch.nan)).isnan())


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="cannot be compiled")
def test_amd_code() -> None:
    from kgfast.kernels.triton.adversarial import ADVERSARIAL

    with aot.recorded(0) as launches:
        made = ADVERSARIAL.rows(torch.empty(50, 3000), 0.5)
        ADVERSARIAL.backward(made[0], torch.empty(50, 3000), *made[1:], 0.5)
    for launch in launches:
        assert aot.compile_for(launch, "gfx942").stack == 0
