"""Report of the environment that runs kgfast or made a result: versions, threads, devices."""

import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import kgfast
from kgfast.kernels import cpu, triton
from kgfast.kernels.cpu import tiers
from kgfast.ops import dispatch

_SETTINGS = "KGFAST_BACKEND", "KGFAST_CPU_ISA", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"


class Info(SimpleNamespace):
    """Findings of :func:`info`; shown as a table.

    Attributes
    ----------
    kgfast, python, torch : str
        Versions.
    triton : str or None
        The version of Triton; None without Triton.
    backend : str
        The backend of CPU tensors: ``cpu``, or ``reference`` where the extension is not built.
    isa : str or None
        The instruction set of the extension in use; None without the extension.
    isas : tuple of str
        Instruction sets of this machine and build, best first.
    tiers : tuple of str
        Cheaper sweeps that rankings use before float32 (docs/explanation/tiers.md).
    threads, cores : int
        Threads per kernel, and cores that this process may use.
    devices : list of str
        ``cpu`` and each GPU, with the name of each device.
    settings : dict of str to str
        Environment variables that change an attribute above.
    remarks : list of str
        Missing parts, and the way to install each.
    """

    def __repr__(self) -> str:
        rows = []
        for name, value in vars(self).items():
            if isinstance(value, dict):
                value = [f"{key}: {text}" for key, text in value.items()]
            elif isinstance(value, tuple) or value is None:
                value = ", ".join(value or ()) or "none"
            rows += [(name, text) for text in (value if isinstance(value, list) else [value])]
        return "\n".join(f"{name:<13}{value}" for name, value in rows)


def info() -> Info:
    """Report what kgfast runs on here, and which parts are missing.

    Examples
    --------
    >>> info().backend in ("cpu", "reference")
    True
    """
    report = Info(
        kgfast=kgfast.__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        triton=_version("triton"),
        backend="none",
        isa=None,
        isas=tuple(cpu.available_isas()),
        tiers=(),
        threads=torch.get_num_threads(),
        cores=cores(),
        devices=[f"cpu {processor()}"],
        settings={name: os.environ[name] for name in _SETTINGS if name in os.environ},
        remarks=[],
    )
    try:
        report.backend, missing = dispatch.find_backend(torch.device("cpu"))
        report.remarks += [] if missing is None else [missing]
        if cpu.is_available():
            report.isa = cpu.isa()
            report.tiers = tiers.available(report.isa)
    except ValueError as error:  # an environment variable is wrong
        report.backend = "none"
        report.remarks.append(str(error))
    for gpu in range(torch.cuda.device_count()):
        report.devices.append(f"cuda:{gpu} {torch.cuda.get_device_name(gpu)}")
    if torch.cuda.is_available() and not triton.is_available():
        report.remarks.append(dispatch.what_is_missing("triton"))
    return report


def provenance(device: torch.device) -> dict[str, Any]:
    """Return the ``machine``, ``threads``, ``versions`` and ``command`` that a result names."""
    is_gpu = device.type == "cuda"
    isa = [cpu.isa()] if cpu.is_available() else []
    of_cpu = ", ".join([processor(), *isa, f"{cores()} cores"])
    versions = {name: _version(name) for name in ("kgfast", "torch", "numpy", "triton")}
    program = Path(sys.argv[0])  # the file name alone; ``python -m kgfast`` is kgfast
    name = program.parent.name if program.name == "__main__.py" else program.name
    return {
        "machine": torch.cuda.get_device_name(device) if is_gpu else of_cpu,
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version()}
        | {name: version for name, version in versions.items() if version is not None},
        "command": shlex.join([name, *sys.argv[1:]]),
    }


def cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def processor() -> str:
    """Return the name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
