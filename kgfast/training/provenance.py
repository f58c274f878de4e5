"""Where and with what a run was made, for its result."""

import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from kgfast.environment import cores, counted_cores, processor

_PACKAGES = ("kgfast", "torch", "numpy", "triton")


def provenance(device: torch.device) -> dict[str, Any]:
    """``machine``, ``threads``, ``versions`` and ``command``."""
    return {
        "machine": _machine(device),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version()} | _versions(),
        "command": _command(),
    }


def _machine(device: torch.device) -> str:
    """``<processor>, 2 cores``, or the GPU's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{processor()}, {counted_cores(cores())}"


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def _command() -> str:
    """The command line, the program by its name alone; ``python -m kgfast`` is kgfast."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    return shlex.join([name, *sys.argv[1:]])
