"""Passes of losses over blocks of scores on the CPU, on every instruction set, and their memory."""

import pytest
import torch

from kgfast.kernels import cpu
from kgfast.kernels.cpu.passes import PASSES
from kgfast.kernels.passes import TORCH_PASSES
from support import flat
from support.memory import PeakMemory
from support.sampled import threads

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")


SCORES_OF_EVERY_SIZE = torch.cat(
    [
        torch.linspace(-110, 110, 4_001),
        torch.randn(4_000, generator=torch.Generator().manual_seed(0)) * 3,
        torch.tensor([0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 1e30, -1e30]),
    ]
)


def ulps(got, exact):
    """Return the largest error in units of the last place; denormals may be anything as small."""
    denormal = exact.abs() < 2.0**-125
    assert bool((got[denormal].abs() < 2.0**-125).all())
    got, exact = got[~denormal].double(), exact[~denormal]
    return ((got - exact).abs() / (exact.abs().log2().floor().exp2() * 2.0**-23)).max().item()


def test_functions_are_accurate(isa):
    """One score a row, so that a sum is one number."""
    x = SCORES_OF_EVERY_SIZE[:, None]
    exact, ones = SCORES_OF_EVERY_SIZE.double(), torch.ones(len(x))
    softplus = exact.clamp(min=0) + torch.log1p((-exact.abs()).exp())
    sigmoid = x.clone()
    assert ulps(PASSES.bce(sigmoid, 0.0, ones)[0], softplus) <= 3
    assert ulps(sigmoid[:, 0], exact.sigmoid()) <= 3
    exponential, zeros = x.clamp(max=0).clone(), torch.zeros(len(x))
    PASSES.softmax_slopes(exponential, zeros, ones, zeros)
    assert ulps(exponential[:, 0], exact.clamp(max=0).exp()) <= 3


@pytest.mark.parametrize("columns", [1, 7, 16, 1000, 5000])
def test_passes_are_those_of_torch_in_float64(isa, columns):
    float32 = torch.randn(5, columns, generator=torch.Generator().manual_seed(2)) * 4
    near, scale, share = float32.logsumexp(1), torch.rand(5), torch.rand(5)
    both = []
    for passes, dtype in ((PASSES, torch.float32), (TORCH_PASSES, torch.float64)):
        x = float32.to(dtype)
        slopes, softmax = x.clone(), x.clone()
        sums = passes.bce(slopes, 0.25, scale.to(dtype))
        passes.softmax_slopes(softmax, near.to(dtype), scale.to(dtype), share.to(dtype))
        peak = torch.full((5,), -1.0, dtype=torch.float64)
        mass, linear = torch.full((2, 5), 0.5, dtype=torch.float64)
        passes.softmax_sums(x.clone(), (peak, mass, linear))
        whole, of_whole = x.clone(), torch.zeros(3, 5, dtype=torch.float64)
        of_whole[0] = -torch.inf
        passes.softmax_both(whole, of_whole.unbind(), scale.to(dtype), share.to(dtype))
        both.append((*sums, slopes.double(), softmax.double(), peak, mass, linear))
        both[-1] += (whole.double(), *of_whole)
    for ours, exact in zip(*both, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-6 * columns)


def test_nan_and_infinity_propagate(isa):
    x = torch.randn(3, 40)
    x[0, 33], x[1, 5] = float("nan"), float("inf")
    sums, linear = PASSES.bce(x.clone(), 0.0, torch.ones(3))
    assert linear.isfinite().tolist() == [False, False, True]
    assert sums[0].isnan()
    assert sums[1].isinf()
    assert sums[2].isfinite()
    zeros = torch.zeros(3, dtype=torch.float64)
    peak, mass = zeros - torch.inf, zeros.clone()
    PASSES.softmax_sums(x.clone(), (peak, mass, zeros.clone()))
    assert (peak + mass.log()).isfinite().tolist() == [False, False, True]


def test_peak_memory_beyond_the_operands_and_gradients():
    table, queries, weights = torch.randn(60_000, 4), torch.randn(512, 4), torch.rand(512)

    def run(table, score):
        given = queries, table, None, torch.arange(512), 0.1, score
        _, logsumexp, _ = flat.cpu.cross_entropy(*given)
        return flat.cpu.cross_entropy_backward(weights, logsumexp, *given, (True, True, False))

    for score in ("dot", "l2", "rotate"):
        with threads(2):
            run(table[:600], score)
            with PeakMemory("cpu") as peak:
                held = run(table, score)
        del held
        assert peak.bytes - table.nbytes <= 64 << 20  # all scores would take 120 MiB
