"""The sine and cosine that every device shares."""

import numpy as np
import pytest
import torch

from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.reference.trig import LARGEST_PHASE, cos_sin
from support.engines import bits


def ulps(values: torch.Tensor, exact: np.ndarray) -> float:
    """Return the largest error in units of the last place of the exact value."""
    spacing = np.spacing(np.abs(exact).astype(np.float64)).astype(np.longdouble)
    return float((np.abs(values.numpy().astype(np.longdouble) - exact) / spacing).max())


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs an 80-bit long double")
@pytest.mark.parametrize("scale", [1e-300, 1e-9, 0.1, 1.0, 3.2, 100.0, 1e4, LARGEST_PHASE])
def test_against_extended_precision(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    phases = scale * (2 * torch.rand(200_000, generator=generator, dtype=torch.float64) - 1)
    cosine, sine = cos_sin(phases)
    exact = phases.numpy().astype(np.longdouble)
    assert ulps(cosine, np.cos(exact)) < 3.0
    assert ulps(sine, np.sin(exact)) < 3.0


def test_quarter_turns() -> None:
    phases = torch.arange(-8, 9, dtype=torch.float64) * (torch.pi / 2)
    cosine, sine = cos_sin(phases)
    assert torch.allclose(cosine, phases.cos(), rtol=0, atol=1e-15)
    assert torch.allclose(sine, phases.sin(), rtol=0, atol=1e-15)
    assert cos_sin(torch.zeros(1, dtype=torch.float64)) == (torch.ones(1), torch.zeros(1))


@pytest.mark.parametrize("phase", [2 * LARGEST_PHASE, float("inf"), float("-inf"), float("nan")])
def test_what_is_out_of_range_is_no_number(phase: float) -> None:
    for part in cos_sin(torch.tensor([phase], dtype=torch.float64)):
        assert part.isnan().all()


def test_strides_and_threads_do_not_matter() -> None:
    phases = torch.randn(64, 130, dtype=torch.float64)
    whole = cos_sin(phases)
    for column in (0, 1, 77, 129):
        for part, full in zip(cos_sin(phases[:, column]), whole, strict=True):
            assert torch.equal(part, full[:, column])


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
def test_the_kernel_of_the_cpu_has_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = 10.0 ** torch.randint(-300, 7, (100_000,), generator=generator).double()
    drawn = sizes * (2 * torch.rand(100_000, generator=generator, dtype=torch.float64) - 1)
    quarters = torch.arange(-9, 10, dtype=torch.float64) * (torch.pi / 4)
    ends = [0.0, -0.0, 5e-324, -5e-324, LARGEST_PHASE, -2 * LARGEST_PHASE, float("nan"), 1e300]
    phases = torch.cat([drawn, quarters, torch.tensor(ends, dtype=torch.float64)])
    with torch.no_grad():
        found = ops.cos_sin(phases)
    for a, b in zip(found, cos_sin(phases), strict=True):
        assert torch.equal(bits(a), bits(b))
    single = torch.tensor([0.5, 1.0])
    with torch.no_grad():
        assert all(map(torch.equal, ops.cos_sin(single), cos_sin(single)))
