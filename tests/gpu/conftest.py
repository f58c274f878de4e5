"""Devices of the tests here: the host, where every test of a device runs, and a GPU."""

import pytest

from support.engines import NO_DEVICE, ON_GPU

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not ON_GPU, reason=NO_DEVICE)]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Name the device of a test's tensors; the test compares with the CPU in float64."""
    name: str = request.param
    return name


@pytest.fixture(params=[pytest.param("cuda", marks=needs_gpu)])
def cuda(request: pytest.FixtureRequest) -> str:
    """Yield a device with its own streams and memory, for what the host lacks."""
    return str(request.param)
