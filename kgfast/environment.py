"""Report of the environment that runs kgfast or made a result: versions, threads, devices."""

import dataclasses
import os
import platform
import shlex
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import kgfast
from kgfast.kernels import cpu, triton
from kgfast.kernels.cpu import tiers
from kgfast.ops import dispatch

_SETTINGS = (
    "KGFAST_BACKEND",
    "KGFAST_CPU_ISA",
    "KGFAST_TIERS",
    "OMP_WAIT_POLICY",
    "OMP_NUM_THREADS",
)


@dataclass(frozen=True, repr=False)
class Info:
    """Findings of :func:`info`; shown as a table.

    Attributes
    ----------
    version, python, torch : str
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
    devices : tuple of str
        ``cpu`` and each GPU, with the name of each device.
    settings : dict of str to str
        Environment variables that change a field above.
    remarks : tuple of str
        Missing parts, and the way to install each.
    """

    version: str
    python: str
    torch: str
    triton: str | None
    backend: str
    isa: str | None
    isas: tuple[str, ...]
    tiers: tuple[str, ...]
    threads: int
    cores: int
    devices: tuple[str, ...]
    settings: dict[str, str]
    remarks: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return all fields as plain values, such as for JSON."""
        return dataclasses.asdict(self)

    def __repr__(self) -> str:
        also = [name for name in self.isas if name != self.isa]
        rows = [
            ("kgfast", self.version),
            ("backend", self.backend + (f", {self.isa}" if self.isa else "")),
            *([("", f"(also {', '.join(also)})")] if also else []),
            *([("tiers", ", ".join(self.tiers) or "none")] if self.isa else []),
            ("threads", f"{self.threads} on {counted_cores(self.cores)}"),
            ("torch", self.torch),
            ("triton", self.triton or "not installed"),
            ("python", self.python),
            *zip(("devices", *[""] * len(self.devices)), self.devices, strict=False),
            *((name, value) for name, value in self.settings.items()),
        ]
        width = max(len(name) for name, _ in rows) + 2
        lines = [f"{name:<{width}}{value}" for name, value in rows]
        return "\n".join([*lines, *self.remarks])


def info() -> Info:
    """Report what kgfast runs on here, and which parts are missing.

    Returns
    -------
    Info
        A data object that prints as a table.

    Examples
    --------
    >>> info().backend in ("cpu", "reference")
    True
    """
    remarks = []
    isa: str | None = None
    used: tuple[str, ...] = ()
    try:
        backend, missing = dispatch.find_backend(torch.device("cpu"))
        remarks += [] if missing is None else [missing]
        if cpu.is_available():
            isa = cpu.isa()
            used = tuple(name for name in tiers.wanted() if name in tiers.available(isa))
    except ValueError as error:  # an environment variable is wrong
        backend, isa = "none", None
        remarks.append(str(error))
    if torch.cuda.is_available() and not triton.is_available():
        remarks.append(dispatch.what_is_missing("triton"))
    return Info(
        version=kgfast.__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        triton=_version("triton"),
        backend=backend,
        isa=isa,
        isas=tuple(cpu.available_isas()),
        tiers=used,
        threads=torch.get_num_threads(),
        cores=cores(),
        devices=tuple(_devices()),
        settings={name: os.environ[name] for name in _SETTINGS if name in os.environ},
        remarks=tuple(remarks),
    )


def provenance(device: torch.device) -> dict[str, Any]:
    """Return the ``machine``, ``threads``, ``versions`` and ``command`` that a result names."""
    is_gpu = device.type == "cuda"
    isa = [cpu.isa()] if cpu.is_available() else []
    of_cpu = ", ".join([processor(), *isa, counted_cores(cores())])
    versions = {name: _version(name) for name in ("kgfast", "torch", "numpy", "triton")}
    program = Path(sys.argv[0])  # the file name alone; ``python -m kgfast`` is kgfast
    name = program.parent.name if program.name == "__main__.py" else program.name
    return {
        "machine": torch.cuda.get_device_name(device) if is_gpu else of_cpu,
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version()}
        | {name: found for name, found in versions.items() if found is not None},
        "command": shlex.join([name, *sys.argv[1:]]),
    }


def _devices() -> list[str]:
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    names = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in gpus]
    return [f"cpu {processor()}", *names]


def cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def counted_cores(count: int) -> str:
    """Return ``1 core`` or ``2 cores``."""
    return f"{count} core" if count == 1 else f"{count} cores"


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
