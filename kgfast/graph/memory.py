"""How much memory a call over files may take."""

import os
import re
from pathlib import Path
from typing import Any

from kgfast.text import shown

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SHARE = 4  # of what is free, by default


def memory_limit(value: Any) -> int:
    """Bytes, of a number of them or a text like ``"4GiB"``; None: a quarter of what is free.

    Raises
    ------
    TypeError, ValueError
        For anything else.
    """
    if value is None:
        return max(1 << 26, free_memory() // _SHARE)
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", value.lower())
        if found is None or (found[3] and not found[2]):
            raise ValueError(f'max_memory must be like "4GiB" or "500 MB"; got {shown(value)}')
        unit = (_BINARY if found[3] else _UNITS)[found[2]]
        value = int(float(found[1]) * unit)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_memory must be a number of bytes or a text; got {shown(value)}")
    if value < 1:
        raise ValueError(f"max_memory must be at least 1 byte; got {value}")
    return value


def free_memory() -> int:
    """Bytes that this machine can give without swapping; 1 GiB where it does not say."""
    try:
        facts = Path("/proc/meminfo").read_text()
        found = re.search(r"MemAvailable:\s+(\d+) kB", facts)
        if found is not None:
            return int(found[1]) << 10
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 1 << 30
