"""Facts of every row of a results file: command, machine, versions, date."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("torch", "numpy", "triton", "pykeen", "pykeops")


def facts(device: str, *packages: str) -> dict[str, Any]:
    """Return command, machine, versions and date, which every row has."""
    return {
        "command": command(),
        "machine": machine(device),
        "versions": versions(*packages),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache
def synthetic_graph() -> str:
    """Return a short fingerprint of `kgfast.datasets.synthetic()`, which names its generator."""
    import kgfast
    from kgfast.datasets.identity import fingerprint

    parts = "".join(fingerprint(kgfast.datasets.synthetic()).values())
    return hashlib.blake2b(parts.encode(), digest_size=4).hexdigest()


def load_average() -> dict[str, float]:
    """Return how many processes wanted a core in the last minute, this one included."""
    return {"load_average": round(os.getloadavg()[0], 2)} if hasattr(os, "getloadavg") else {}


def command() -> str:
    """Return the command line, with the last part of absolute paths only."""
    words = [Path(word).name if os.path.isabs(word) else word for word in sys.argv[1:]]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def machine(device: str) -> dict[str, Any]:
    """Return the facts of the machine that timings depend on."""
    from kgfast.environment import cores, processor
    from kgfast.kernels import cpu

    found = {
        "device": device,
        "name": processor(),
        "cpu": processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "isa": cpu.isa() if cpu.is_available() else None,
        "memory_bytes": _meminfo("MemTotal"),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device == "cuda":
        found["name"] = torch.cuda.get_device_name()
        found["device_memory_bytes"] = torch.cuda.get_device_properties(0).total_memory
        found["driver"] = _driver()
        found["cuda"] = torch.version.cuda
    return found


def _driver() -> str | None:
    """Return the version of NVIDIA's driver, where nvidia-smi is installed."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    command = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
    lines = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    ).stdout.split()
    return lines[0] if lines else None


def machine_tag(device: str) -> str:
    """Return ``cpu``, or the GPU's name as it stands in file names (``h100``)."""
    if device == "cpu":
        return "cpu"
    words = torch.cuda.get_device_name().lower().replace("-", " ").split()
    models = [word for word in words if any(letter.isdigit() for letter in word)]
    return models[0] if models else "gpu"


def machine_line(found: Mapping[str, Any]) -> str:
    """Write machine and versions of `facts` in one line."""
    about, packages = found["machine"], found["versions"]
    where = f"{about['name']}, {about['cores']} cores, {about['threads']} threads"
    if about["isa"]:
        where += f", {about['isa']}"
    names = ", ".join(f"{name} {packages[name]}" for name in ("kgfast", "python", "torch"))
    return f"{where}; {names}"


def versions(*packages: str) -> dict[str, str | None]:
    """Return versions of kgfast, Python and packages; None for one that is not installed."""
    import kgfast

    found: dict[str, str | None] = {
        "kgfast": kgfast.__version__,
        "python": platform.python_version(),
    }
    for name in (*_PACKAGES, *packages):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def available_memory() -> int:
    """Return the bytes that the system, or the control group, has left for this process."""
    available = _meminfo("MemAvailable") or 8 << 30
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        available = min(available, limit - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no such group, or its limit is "max"
        pass
    return available


def _meminfo(field: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return None
