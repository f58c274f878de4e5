"""Start of kernels: the devices that they serve, and the only function that launches.

Tests replace :func:`launch` to see the launches without a GPU.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import torch

from ...ieee import ieee_arithmetic

# same value as when triton.jit decorated the kernels
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# options of every launch that names no others: Triton 3.10 fuses no product into a sum by default
DEFAULTS = {"enable_fp_fusion": True}
LEAST_SCRATCH = 64 << 20


def launch(kernel: Any, grid: tuple[int, ...], args: dict[str, Any], **options: Any) -> None:
    """Launch on the current device and stream; an empty grid launches nothing."""
    if all(grid):
        kernel[grid](**args, **{**DEFAULTS, **options})


def capped(registers: int | None, arch: int = 1) -> dict[str, int]:
    """Return the option that caps registers: ptxas alone sometimes spills a scalar to save some.

    There is none for AMD and for the interpreter, whose ``arch`` is 0.
    """
    return {"maxnreg": registers} if registers and arch else {}


def architecture(device: torch.device) -> int:
    """Return 80, 90, ... for NVIDIA, 0 for AMD and for the interpreter.

    Raises
    ------
    ValueError
        If the kernels do not serve this device.
    """
    if device.type == "cpu" and INTERPRETED:
        return 0
    if device.type != "cuda":
        raise ValueError(
            f"the triton backend serves CUDA and ROCm tensors (and CPU tensors where "
            f"TRITON_INTERPRET=1 was set before it was imported); got {device}"
        )
    if torch.version.hip is not None:
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        raise ValueError(
            f"the triton backend needs an NVIDIA GPU of compute capability 8.0 or later; "
            f"{torch.cuda.get_device_name(device)} has {major}.{minor}. Use "
            f'kgfast.use_backend("reference")'
        )
    return 10 * major + minor


@contextmanager
def serving(device: torch.device) -> Iterator[int]:
    """Launch on ``device``, not on the current device, within; yield :func:`architecture`."""
    arch = architecture(device)
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield arch
    else:
        with ieee_arithmetic() if INTERPRETED else nullcontext():
            yield arch


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Return the multiprocessors of a GPU; a few programs without a GPU."""
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def memory_of(device: torch.device) -> int:
    """Return the bytes of memory of a GPU; 0 without a GPU."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).total_memory)


def scratch_of(size: int, device: torch.device) -> int:
    """Return the bytes that stand on a device for ``size`` bytes of the least scratch.

    A call takes ``LEAST_SCRATCH`` beside its operands and results, or a 256th of the device's
    memory if that is more.
    """
    return size * max(LEAST_SCRATCH, memory_of(device) // 256) // LEAST_SCRATCH
