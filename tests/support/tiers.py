"""The CPU backend with tiers that a test names, held against what it computes without."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from kgfast.kernels import cpu
from kgfast.kernels.cpu import bf16, tiers

from . import flat
from .problems import Problem

FP16, BF16, INT8, LINEAR = (1 << bit for bit in range(len(tiers.TIERS)))
Results = Sequence[Tensor]
FORCED = 256  # csrc/host/tiers.h: serve whatever it costs
# The instructions that a tier is made of, as docs/tiers.md calls them; those of losses in bf16 too.
NEEDS = {
    "linear": "AVX512-VNNI",
    "fp16": "AVX512-FP16",
    "int8": "AMX",
    "bf16 losses": "AMX-BF16 or AVX512-BF16",
}


def lacks(*names: str) -> str:
    """Say that this machine or build has none of some tiers; nothing where it has one."""
    if any(name in _found() for name in names):
        return ""
    needed = " or ".join(f"{name} ({NEEDS[name]})" for name in names)
    return f"this machine or build has no {needed}"


def needs_tier(name: str) -> pytest.MarkDecorator:
    """Skip where this machine or build lacks a tier."""
    return pytest.mark.skipif(bool(lacks(name)), reason=lacks(name) or "it is here")


def in_a_line() -> str:
    """Say which tiers tests have run here, and which only another machine or build can run."""
    found = _found()
    here = ", ".join(name for name in NEEDS if name in found) or "none"
    absent = ", ".join(f"{name} ({needs})" for name, needs in NEEDS.items() if name not in found)
    return f"kgfast: tiers here: {here}" + (f"; not run here: {absent}" if absent else "")


def _found() -> tuple[str, ...]:
    """List the keys of ``NEEDS`` that this machine and build have."""
    if not cpu.is_available():
        return ()
    losses = ("bf16 losses",) if bf16.is_available() else ()
    return (*tiers.available(cpu.isa()), *losses)


@contextmanager
def serving(mask: int) -> Iterator[None]:
    """Let only the tiers of a mask serve."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers, "mask", lambda: mask)
        yield


def pairs_of(call: Callable[[], Results], counter: str = "tier_pairs") -> tuple[list[int], Results]:
    """Return what a call adds to the extension's counts of pairs, and its result."""
    count = getattr(cpu.extension, counter)
    before = count()
    result = call()
    return [b - a for a, b in zip(before, count(), strict=True)], result


def assert_same(call: Callable[[], Results], *masks: int, counter: str = "tier_pairs") -> list[int]:
    """Compare a call by tiers with one without; return its pairs under the last mask."""
    with serving(0):
        pairs, expected = pairs_of(call, counter)
    assert not any(pairs)
    for mask in masks:
        with serving(mask):
            pairs, found = pairs_of(call, counter)
        for a, b in zip(expected, found, strict=True):
            assert torch.equal(a, b), mask
    return pairs


def assert_same_counts(problem: Problem, *masks: int, counter: str = "tier_pairs") -> list[int]:
    return assert_same(
        lambda: flat.cpu.rank_counts(*problem.args, **problem.kwargs), *masks, counter=counter
    )
