"""Files of any size: limits of memory and disk, hashes of values."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.text import shown

DIGEST = 20  # bytes of a hash
_SHARE = 4  # the default limit is a quarter of free memory


def memory_limit(value: Any) -> int:
    """Return bytes, from a number or a text like ``"4GiB"``; None: a quarter of free memory."""
    if value is None:
        return max(1 << 26, free_memory() // _SHARE)
    if isinstance(value, str):
        from pydantic import ByteSize, TypeAdapter  # takes a tenth of a second

        try:
            value = int(TypeAdapter(ByteSize).validate_python(value))
        except ValueError:
            raise ValueError(
                f'max_memory must be like "4GiB" or "500 MB"; got {shown(value)}'
            ) from None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_memory must be a number of bytes or a text; got {shown(value)}")
    if value < 1:
        raise ValueError(f"max_memory must be at least 1 byte; got {value}")
    return value


def free_memory() -> int:
    """Return the bytes that this machine can give without swapping; 1 GiB if unknown."""
    try:
        facts = Path("/proc/meminfo").read_text()
        line = re.search(r"MemAvailable:\s+(\d+) kB", facts)
        if line is not None:
            return int(line[1]) << 10
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return 1 << 30


def digest(*values: Any) -> str:
    """Return twelve digits of the hash of some values, for a line of text.

    A tensor counts by shape, dtype and bits, any other value by ``repr``.
    """
    hashed = hashlib.blake2b(digest_size=DIGEST)
    for value in values:
        if isinstance(value, Tensor):
            flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
            hashed.update(repr((tuple(flat.shape), flat.dtype)).encode())
            hashed.update(bytes_of(flat).data)
        else:
            hashed.update(repr(value).encode() + b"\0")
    return hashed.hexdigest()[:12]


def bytes_of(values: Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of a tensor, in the order of the elements."""
    flat = values.detach().cpu().contiguous()
    if not flat.numel():
        return np.empty(0, np.uint8)
    flat = flat.as_strided((flat.numel(),), (1,))  # a tensor of one number may have any stride
    return flat.view(torch.uint8).numpy()
