"""Cheaper sweeps, which decide what their proven bounds let them before the float32 sweep does.

``KGFAST_TIERS`` says which of them a ranking may use: ``all`` (the default), ``none``, or names
with commas between them. Ranks are the same integers whatever it says.
"""

import os

from . import extension

__all__ = ["TIERS", "available", "lacking", "mask", "wanted"]

TIERS = ("fp16", "bf16", "int8", "linear")
"""Their names; bit ``i`` of a mask is ``TIERS[i]``, as in csrc/host/tiers.h."""

_ALL = (1 << len(TIERS)) - 1


def wanted() -> tuple[str, ...]:
    """Return the tiers that ``KGFAST_TIERS`` allows, whatever this machine has."""
    return _named(mask())


def mask() -> int:
    """Return :func:`wanted` as a mask; the extension leaves out what the machine lacks.

    A ValueError says that ``KGFAST_TIERS`` names a tier that does not exist.
    """
    value = os.environ.get("KGFAST_TIERS", "").strip()
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


def lacking(isa: str) -> tuple[str, ...]:
    """Return the tiers that ``KGFAST_TIERS`` names and this machine or build lacks."""
    named = os.environ.get("KGFAST_TIERS", "").strip() not in ("", "all")
    return tuple(name for name in wanted() if named and name not in available(isa))


def _named(bits: int) -> tuple[str, ...]:
    return tuple(name for bit, name in enumerate(TIERS) if bits >> bit & 1)
