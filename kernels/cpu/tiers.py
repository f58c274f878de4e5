"""Cheaper sweeps that decide pairs within proven bounds, before the float32 sweep.

``KGFAST_TIERS`` selects the tiers that a ranking may use: ``all`` (the default), ``none``, or names
separated by commas. Ranks are equal integers for any value.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from . import extension

TIERS = ("int8", "bytes")
"""Names of tiers; bit ``i`` of a mask is ``TIERS[i]``, as in csrc/host/tiers.h."""

PAIRS = ("total", "canonical", "swept", "left", "left_to_canonical")
"""Counts of pairs of rankings, as in csrc/host/tiers.h: all pairs, and their canonical scores. Then
the pairs that the int8 tier swept, that it left to float32, and that float32 left of these.
"""

_ALL = (1 << len(TIERS)) - 1
_PAIRS: ContextVar[Tensor | None] = ContextVar("kgfast_pairs", default=None)


def wanted() -> tuple[str, ...]:
    """Return the tiers that ``KGFAST_TIERS`` allows, on any machine."""
    return _named(mask())


def mask() -> int:
    """Return :func:`wanted` as a mask; the extension leaves out tiers that the machine lacks.

    A ValueError says that ``KGFAST_TIERS`` names an unknown tier.
    """
    return _mask_of(os.environ.get("KGFAST_TIERS", "").strip())


@cache
def _mask_of(value: str) -> int:
    if value in ("", "all"):
        return _ALL
    if value == "none":
        return 0
    names = [name.strip() for name in value.split(",")]
    if not set(names) <= set(TIERS):
        raise ValueError(
            f"KGFAST_TIERS must be none, all, or some of {', '.join(TIERS)} with commas between "
            f"them; got {value!r}"
        )
    return sum(1 << TIERS.index(name) for name in set(names))


def available(isa: str) -> tuple[str, ...]:
    """Return the tiers that this machine and build have beside an instruction set."""
    return _named(extension.find_tiers(isa))


@contextmanager
def counted_pairs() -> Iterator[Tensor]:
    """Count the pairs of all rankings within, by this thread: int64 ``[len(PAIRS)]``."""
    pairs = no_pairs()
    token = _PAIRS.set(pairs)
    try:
        yield pairs
    finally:
        _PAIRS.reset(token)
        note_pairs(pairs)


def no_pairs() -> Tensor:
    """Return zeros in the shape of :func:`counted_pairs`."""
    return torch.zeros(len(PAIRS), dtype=torch.int64, device="cpu")


def note_pairs(pairs: Tensor) -> None:
    """Add the counts of a ranking to the counts of :func:`counted_pairs` around it."""
    sums = _PAIRS.get()
    if sums is not None:
        sums += pairs


def _named(bits: int) -> tuple[str, ...]:
    return tuple(name for bit, name in enumerate(TIERS) if bits >> bit & 1)
