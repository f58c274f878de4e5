"""The CPU backend with tiers that a test names, held against what it computes without."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers

INT8, BYTES = (1 << bit for bit in range(len(tiers.TIERS)))
Results = Sequence[Tensor]
FORCED = 256  # csrc/host/tiers.h: serve whatever it costs


def needs() -> dict[str, str]:
    """Map tiers to the instructions that they are made of."""
    found: dict[str, list[str]] = {}
    for engine in _engines():
        found.setdefault(engine.tier, []).append(engine.needs)
    return {name: " or ".join(needed) for name, needed in found.items()}


def lacks(*names: str) -> str:
    """Say that this machine or build has none of some tiers; nothing where it has one."""
    if any(name in _found() for name in names):
        return ""
    instructions = needs()
    needed = " or ".join(f"{name} ({instructions.get(name, 'unbuilt')})" for name in names)
    return f"this machine or build has no {needed}"


def needs_tier(name: str) -> pytest.MarkDecorator:
    """Skip where this machine or build lacks a tier."""
    return pytest.mark.skipif(bool(lacks(name)), reason=lacks(name) or "it is here")


def in_a_line() -> str:
    """Say which tiers tests have run here, and which only another machine or build can run."""
    if not cpu.is_available():
        return "kgfast: tiers here: none: the extension is not built"
    chosen = os.environ.get("KGFAST_CPU_ISA", "")
    rows: dict[bool, list[str]] = {True: [], False: []}
    for engine in _engines():
        runs = engine.has and engine.is_built and chosen in ("", engine.isa)
        rows[runs].append(f"{engine.tier} ({engine.needs})")
    here, absent = (", ".join(rows[runs]) for runs in (True, False))
    return f"kgfast: tiers here: {here or 'none'}" + (f"; not run here: {absent}" if absent else "")


def _found() -> set[str]:
    """Return the tiers that this machine and build have."""
    own = cpu.isa() if cpu.is_available() else ""
    return {it.tier for it in _engines() if it.has and it.is_built and it.isa == own}


def _engines() -> list[tiers.TierEngine]:
    """List the kernels of tiers; none where the extension is not built."""
    return tiers.engines() if cpu.is_available() else []


@contextmanager
def serving(mask: int) -> Iterator[None]:
    """Let only the tiers of a mask serve."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers, "mask", lambda: mask)
        yield


def pairs_of(call: Callable[[], Results]) -> tuple[list[int], Results]:
    """Return the pairs that the int8 tier swept, left to float32 and to canonical scores.

    The second value is the result of the call.
    """
    with tiers.counted_pairs() as pairs:
        result = call()
    return pairs[tiers.PAIRS.index("swept") :].tolist(), result


def assert_same(call: Callable[[], Results], *masks: int) -> list[int]:
    """Compare a call by tiers with one without; return its pairs under the last mask."""
    with serving(0):
        pairs, expected = pairs_of(call)
    assert not any(pairs)
    for mask in masks:
        with serving(mask):
            pairs, found = pairs_of(call)
        for a, b in zip(expected, found, strict=True):
            assert torch.equal(a, b), mask
    return pairs
