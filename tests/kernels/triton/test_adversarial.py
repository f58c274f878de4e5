"""The code of the kernels of rows weighted by their softmax, compiled ahead of time."""

import os

import pytest
import torch

from support.engines import INTERPRETED
from support.triton_code import on_each_arch

pytest.importorskip("triton")
from support import aot


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
