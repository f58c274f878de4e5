"""Choice of the backend that serves a tensor."""

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from kgfast.kernels import cpu
from kgfast.kernels.backend import Backend
from kgfast.kernels.checks import decided_once
from kgfast.kernels.cpu import threads

if TYPE_CHECKING:  # each module is checked against the protocol
    from kgfast.kernels.cpu import backend as of_cpu
    from kgfast.kernels.reference import backend as of_reference
    from kgfast.kernels.triton import backend as of_triton

    _checked: tuple[Backend, ...] = of_cpu, of_reference, of_triton

BACKENDS = ("reference", "cpu", "triton")
_BACKEND_OF = {"cpu": "cpu", "cuda": "triton"}  # ROCm calls itself cuda

# The range of benchmarks/results/cpu-reference-speed.json, rounded down.
TIMES_SLOWER = "71 to 187"
_WITHOUT = {
    "cpu": f"until then CPU tensors are ranked {TIMES_SLOWER} times slower (as measured)",
    "triton": "until then the slow reference serves GPUs",
}

_forced_backend: ContextVar[str | None] = ContextVar("kgfast_backend", default=None)
_others: dict[str, Backend] = {}  # backends in use, now or before, that are no modules


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Force a backend for everything inside a ``with`` block.

    Parameters
    ----------
    name : {"reference", "cpu", "triton"}
        ``triton`` on CPU tensors needs ``TRITON_INTERPRET=1``; a ValueError for another name.

    Examples
    --------
    >>> with use_backend("reference"):
    ...     backend_for(torch.device("cpu"))
    'reference'
    """
    token = _forced_backend.set(_checked_backend(name, "use_backend"))
    try:
        yield
    finally:
        _forced_backend.reset(token)


@contextmanager
def serving(backend: Backend) -> Iterator[None]:
    """Let a backend that is no module of kgfast serve all calls and their backwards inside."""
    _others[backend.name] = backend
    get_backend.cache_clear()
    token = _forced_backend.set(backend.name)
    try:
        yield
    finally:
        _forced_backend.reset(token)


def cores_for_kernels(device: torch.device) -> AbstractContextManager[None]:
    """Leave torch one thread inside a ``with`` block, so that kernels have the cores of a CPU.

    After a parallel operator, torch's threads spin on the cores that the next kernel needs. Use
    this block around steps with only small operators of torch, on a ``device`` that is a CPU.

    Examples
    --------
    >>> with cores_for_kernels(torch.device("cpu")):
    ...     torch.get_num_threads()
    1
    """
    return threads.alone() if device.type == "cpu" else nullcontext()


@decided_once  # a compiled graph keeps the backend of its compilation
def backend_for(device: torch.device) -> str:
    """Return the name of the backend that serves tensors of ``device``.

    :func:`use_backend` decides, else the environment variable ``KGFAST_BACKEND``. The default is
    ``cpu`` for CPU tensors and ``triton`` for CUDA and ROCm tensors. If that backend is not
    installed, ``reference`` serves, with one warning. A ValueError says that a forced backend does
    not exist or cannot serve the device.
    """
    name, missing = find_backend(device)
    if missing is not None and device.type not in _BACKEND_OF:
        raise ValueError(missing)
    if missing is not None:
        _warn_once(missing)
    return name


@decided_once
def waits_for(device: torch.device) -> bool:
    """Return whether the host waits when a device has to tell a number, such as a count."""
    return device.type != "cpu" or get_backend(find_backend(device)[0]).defers_checks


@decided_once
def offers(device: torch.device, kernel: str) -> bool:
    """Return whether the backend that serves a device has an optional kernel."""
    return getattr(get_backend(find_backend(device)[0]), kernel, None) is not None


def find_backend(device: torch.device) -> tuple[str, str | None]:
    """Return the backend of a device without a warning, and the reason if it is not the best."""
    forced = _forced_backend.get() or os.environ.get("KGFAST_BACKEND")
    if forced in _others:
        return forced, None
    interprets = forced == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    return _found(forced, device.type, interprets, cpu.extension is not None)


@cache
def _found(
    forced: str | None, device: str, interprets: bool, has_extension: bool
) -> tuple[str, str | None]:
    if not forced:
        name = _BACKEND_OF.get(device)
        if name is None:
            return "reference", f"no kernels for tensors on {device}: move the model to the CPU"
        is_there = _module(name).is_available()
        return (name, None) if is_there else ("reference", what_is_missing(name))
    name = _checked_backend(forced, "KGFAST_BACKEND")
    if name == "cpu" and device != "cpu":
        raise ValueError(f"backend 'cpu' cannot serve tensors on {device}")
    if name != "reference" and not _module(name).is_available():
        raise ValueError(f"backend {name!r} is not installed")
    if name == "triton" and device == "cpu" and not interprets:
        raise ValueError("backend 'triton' serves CPU tensors only with TRITON_INTERPRET=1")
    return name, None


def what_is_missing(name: str) -> str:
    """Say why a backend cannot serve, how to install it, and the cost of its absence, in a line."""
    return f"{_module(name).what_is_missing()}; {_WITHOUT[name]}"


def _checked_backend(name: str, source: str) -> str:
    if name not in BACKENDS:
        raise ValueError(f"{source} must be one of {', '.join(BACKENDS)}; got {name!r}")
    return name


@cache
def _module(name: str) -> Any:
    return import_module(f"kgfast.kernels.{name}")


@cache
def _warn_once(message: str) -> None:
    warnings.warn(f"kgfast: {message}", RuntimeWarning, stacklevel=4)


@cache
def get_backend(name: str) -> Backend:
    backend: Backend = _others.get(name) or _module(f"{name}.backend")
    return backend
