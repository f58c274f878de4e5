"""The CPU backend with tiers that a test names, held against what it computes without."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from kgfast.kernels.cpu.panels import pack
from kgfast.kernels.cpu.tiers import serving as serving
from kgfast.kernels.operands import Panels, Prepared
from kgfast.kernels.scores import get_score

INT8, BYTES = (1 << bit for bit in range(len(tiers.TIERS)))
Results = Sequence[Tensor]
FORCED = 256  # csrc/host/job.h: serve whatever it costs


def found() -> tuple[str, ...]:
    """Return the tiers that this machine and build have."""
    return tiers.available(cpu.isa()) if cpu.is_available() else ()


def lacks(*names: str) -> str:
    """Say that this machine or build has none of some tiers; nothing where it has one."""
    return "" if set(names) & set(found()) else f"this machine or build has no {' or '.join(names)}"


def in_a_line() -> str:
    """Say by which tiers tests have run here."""
    own = f", beside {cpu.isa()}" if cpu.is_available() else ""
    return f"kgfast: tiers here: {', '.join(found()) or 'none'}{own}"


def packed(table: Tensor, score: str, bias: Tensor | None = None) -> Prepared:
    """Pack candidates, all of which can be."""
    prepared = Prepared(table, get_score(score), bias)
    panels = pack(prepared)
    assert isinstance(panels, Panels), panels
    return replace(prepared, panels=panels)


def pairs_of(call: Callable[[], Results]) -> tuple[list[int], Results]:
    """Return the pairs that int8 swept and left open, and canonical scores; and the result."""
    with tiers.counted_pairs() as pairs:
        result = call()
    named = dict(zip(tiers.PAIRS, pairs.tolist(), strict=True))
    return [named[name] for name in ("swept", "left", "canonical")], result


def assert_same(call: Callable[[], Results], *masks: int) -> list[int]:
    """Compare a call by tiers with one without; return its pairs under the last mask."""
    with serving(0):
        pairs, expected = pairs_of(call)
    assert not any(pairs[:2])
    for mask in masks:
        with serving(mask):
            pairs, found = pairs_of(call)
        for a, b in zip(expected, found, strict=True):
            assert torch.equal(a, b), mask
    return pairs
