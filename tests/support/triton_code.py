"""Which architectures Triton's kernels are compiled for, and how tests pick a launch."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

ARCHS = (80, 90, 100)
BATCHES = (1, 100, 1000)  # one for each tile


def on_each_arch(*cases: Any) -> Iterator[Any]:
    """Each architecture with each case, a score or what begins with one.

    Long and rare is what does less of the same than rotate.
    """
    for arch, case in itertools.product(ARCHS, cases):
        score = case if isinstance(case, str) else case[0]
        is_rare = arch != 90 and not score.endswith("rotate")
        yield pytest.param(arch, case, marks=pytest.mark.slow if is_rare else ())


def only(launches: Sequence[Any], name: str) -> Any:
    """The first launch of a kernel."""
    return next(launch for launch in launches if launch.name == name)
