"""Architectures that Triton's kernels are compiled for, and the choice of a launch in tests."""

import itertools
import os
from collections.abc import Sequence
from importlib import metadata, util
from typing import Any

import pytest

_ARCHS = 80, 86, 89, 90, 100, 120
ARCHS = [pytest.param(arch, marks=() if arch == 90 else pytest.mark.slow) for arch in _ARCHS]
BATCHES = (1, 16, 100, 1000)  # two that are swept in place; one for each tile
OF_3_9 = (
    "Triton 3.9 spills 8 bytes where registers are limited, needs more issue slots, and copies "
    "AMD's loop three times"
)
compiled = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="needs kernels that are not interpreted"
)
not_read = pytest.mark.skipif(
    util.find_spec("triton") is not None and metadata.version("triton").startswith("3.9."),
    reason=OF_3_9,
)


def on_each_arch(*cases: Any, slow: Sequence[Any] = ()) -> list[Any]:
    """Each architecture with each case; compiling for others than sm_90 is long and rare.

    ``slow``: cases that ``make test-all`` alone compiles, whatever the architecture.
    """
    return [
        pytest.param(arch, case, marks=() if arch == 90 and case in cases else pytest.mark.slow)
        for arch, case in itertools.product(_ARCHS, [*cases, *slow])
    ]


def only(launches: Sequence[Any], name: str) -> Any:
    return next(launch for launch in launches if launch.name == name)
