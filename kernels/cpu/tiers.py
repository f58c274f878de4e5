"""Cheaper sweeps that decide pairs within proven bounds, before the float32 sweep.

Ranks are equal integers with any tiers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from . import extension, isa

TIERS = ("int8", "bytes")
"""Names of tiers; bit ``i`` of a mask is ``TIERS[i]``, as in csrc/host/job.h."""

PAIRS = ("total", "canonical", "swept", "left")
"""Counts of pairs of rankings, as in csrc/host/job.h: all pairs, and their canonical scores. Then
the pairs that the int8 tier swept, and that it left open.
"""

MASK: ContextVar[int] = ContextVar("kgfast_tiers", default=(1 << len(TIERS)) - 1)
"""Mask of the tiers that may serve; the extension leaves out tiers that the machine lacks."""

_PAIRS: ContextVar[Tensor | None] = ContextVar("kgfast_pairs", default=None)


def available(isa: str) -> tuple[str, ...]:
    """Return the tiers that this machine and build have beside an instruction set."""
    bits = extension.find_tiers(isa)
    return tuple(name for bit, name in enumerate(TIERS) if bits >> bit & 1)


def serves(name: str) -> bool:
    """Return whether a tier serves on this machine now."""
    return bool(MASK.get() >> TIERS.index(name) & 1) and name in available(isa())


@contextmanager
def serving(mask: int) -> Iterator[None]:
    """Let only the tiers of a mask serve within, for tests and measurements."""
    token = MASK.set(mask)
    try:
        yield
    finally:
        MASK.reset(token)


@contextmanager
def counted_pairs() -> Iterator[Tensor]:
    """Count the pairs of all rankings within, by this thread: int64 ``[len(PAIRS)]``."""
    pairs = torch.zeros(len(PAIRS), dtype=torch.int64, device="cpu")
    token = _PAIRS.set(pairs)
    try:
        yield pairs
    finally:
        _PAIRS.reset(token)


def note_pairs(pairs: Tensor) -> None:
    """Add the counts of a ranking to the counts of :func:`counted_pairs` around it."""
    sums = _PAIRS.get()
    if sums is not None:
        sums += pairs
