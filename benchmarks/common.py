"""What every benchmark shares: facts of the machine, peak memory, child processes, interleaving.

A row of a results file stands on its own: it says the command, the machine and its threads, the
versions and the date. Memory is the peak beyond the inputs. Times are medians of rounds in which
all contenders take turns, because a machine drifts.
"""

import ctypes
import gc
import json
import math
import multiprocessing
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

QUICK_SIZES = (500, 6, 1200, 60, 60)  # of the synthetic graph of a smoke test
RESULTS = Path(__file__).parent / "results"
_L2_FLUSH_BYTES = 256 << 20
_PACKAGES = ("torch", "numpy", "triton", "pykeen", "pykeops")


def console() -> Console:
    """A console that is wide enough for the tables where the output is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 116, highlight=False)


def facts(device: str) -> dict[str, Any]:
    """Command, machine, versions and date, for every row."""
    return {
        "command": command(),
        "machine": machine(device),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def command() -> str:
    """The command line; of absolute paths only the last part, which is all that others can use."""
    words = [Path(word).name if os.path.isabs(word) else word for word in sys.argv[1:]]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def machine(device: str) -> dict[str, Any]:
    """What the timings depend on."""
    found = {
        "device": device,
        "name": _cpu_name(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "isa": _isa(),
        "memory_bytes": _meminfo("MemTotal"),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if device == "cuda":
        found["name"] = torch.cuda.get_device_name()
        found["device_memory_bytes"] = torch.cuda.get_device_properties(0).total_memory
    return found


def machine_tag(device: str) -> str:
    """``cpu``, or the GPU's name as it can stand in a file name (``h100``)."""
    if device == "cpu":
        return "cpu"
    words = torch.cuda.get_device_name().lower().replace("-", " ").split()
    models = [word for word in words if any(letter.isdigit() for letter in word)]
    return models[0] if models else "gpu"


def machine_line(found: Mapping[str, Any]) -> str:
    """One line about the machine and versions of `facts`."""
    about, packages = found["machine"], found["versions"]
    where = f"{about['name']}, {about['cores']} cores, {about['threads']} threads"
    if about["isa"]:
        where += f", {about['isa']}"
    names = ", ".join(f"{name} {packages[name]}" for name in ("kgfast", "python", "torch"))
    return f"{where}; {names}"


def versions() -> dict[str, str | None]:
    """Versions of kgfast, Python and the packages that are compared; None: not installed."""
    import kgfast

    found: dict[str, str | None] = {
        "kgfast": kgfast.__version__,
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _isa() -> str | None:
    from kgfast.kernels import cpu

    return cpu.isa() if cpu.is_available() else None


def available_memory() -> int:
    """Bytes that this process may still take: of the system, or of its control group."""
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


class PeakMemory:
    """Measures the peak of a ``with`` block beyond what was held when it began.

    On the CPU: the high-water mark of the resident set, reset at the beginning, or samples of the
    resident set where the system cannot do that. On CUDA: the allocator's own peak.

    Attributes
    ----------
    bytes : int
        After the block.
    method : str
        How it was measured.
    """

    bytes: int
    method: str

    def __init__(self, device: str) -> None:
        self.device = device

    def __enter__(self) -> "PeakMemory":
        gc.collect()
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
            self.method = "torch.cuda.max_memory_allocated"
            return self
        return_free_memory()
        self._sampler = None if _reset_high_water_mark() else _Sampler()
        self.method = "VmHWM" if self._sampler is None else "sampled RSS"
        self._before = resident_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
            self.bytes = torch.cuda.max_memory_allocated() - self._before
            return
        peak = _status_bytes("VmHWM") if self._sampler is None else self._sampler.stop()
        self.bytes = peak - self._before


def return_free_memory() -> None:
    """Give freed memory back to the system, so that using it again counts."""
    with suppress(OSError, AttributeError, TypeError):  # of a system without glibc
        ctypes.CDLL(None).malloc_trim(0)


def _reset_high_water_mark() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise OSError(f"/proc/self/status has no {field}")


def resident_bytes() -> int:
    """What the process holds in memory; its highest so far where the system tells no more."""
    if Path("/proc/self/status").exists():
        return _status_bytes("VmRSS")
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError:  # the highest so far: what follows is at least the growth
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return int(psutil.Process().memory_info().rss)


class _Sampler:
    """The highest resident set seen by a thread that looks every millisecond."""

    def __init__(self) -> None:
        self._peak = resident_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.001):
            self._peak = max(self._peak, resident_bytes())

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return max(self._peak, resident_bytes())


class ChildDied(RuntimeError):
    """A child process ended without a result, as when the system kills it for its memory."""


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process with as many threads as this one.

    Raises
    ------
    ChildDied
        If the process ends without a result.
    Exception
        What the function raised, as a RuntimeError.
    """
    context = _child_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_child, args=(sender, torch.get_num_threads(), function, arguments), daemon=True
    )
    process.start()
    sender.close()
    try:
        succeeded, result = receiver.recv()
    except EOFError:
        process.join()
        raise ChildDied(f"the process ended with exit code {process.exitcode}") from None
    finally:
        receiver.close()
    process.join()
    if not succeeded:
        raise RuntimeError(result)
    return result


def _child_context() -> Any:
    """Processes of their own; where the system can, forked from one that has only loaded torch."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "kgfast"])
    return context


def _child(sender: Any, threads: int, function: Callable[..., Any], arguments: Any) -> None:
    torch.set_num_threads(threads)
    try:
        message = (True, function(*arguments))
    except Exception as error:
        message = (False, f"{type(error).__name__}: {error}")
    sender.send(message)
    sender.close()


@dataclass(frozen=True)
class Timing:
    """Seconds of the rounds of one contender."""

    median: float
    min: float
    max: float
    rounds: int

    @classmethod
    def of(cls, seconds: list[float]) -> "Timing":
        """Summarise rounds."""
        return cls(statistics.median(seconds), min(seconds), max(seconds), len(seconds))

    def scaled(self, factor: float) -> "Timing":
        """The same rounds of work that is ``factor`` times as large."""
        return Timing(self.median * factor, self.min * factor, self.max * factor, self.rounds)

    def as_dict(self) -> dict[str, float]:
        """For a results file."""
        return asdict(self)


class Stopwatch:
    """Times calls: wall clock on the CPU; events with a cold L2 cache on CUDA."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            self._cache = torch.empty(_L2_FLUSH_BYTES, dtype=torch.int8, device=device)

    def seconds(self, work: Callable[[], Any]) -> float:
        """Seconds of one call."""
        if self.device == "cpu":
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        self._cache.zero_()
        start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start_event.record()
        work()
        end_event.record()
        torch.cuda.synchronize()
        return float(start_event.elapsed_time(end_event)) / 1e3

    def interleave(
        self,
        contenders: Mapping[str, Callable[[], Any]],
        rounds: int,
        few: Mapping[str, int] | None = None,
    ) -> dict[str, Timing]:
        """Let all contenders take turns after they have been warmed up.

        ``rounds`` turns each; less for those that ``few`` names.
        """
        few = few or {}
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in range(rounds):
            for name, work in contenders.items():
                if turn < few.get(name, rounds):
                    seconds[name].append(self.seconds(work))
        return {name: Timing.of(values) for name, values in seconds.items()}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a results file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def finite(value: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return value if math.isfinite(value) else None


def human_bytes(count: float) -> str:
    """Decimal units, three digits: ``21.5 GB``."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * size:
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def human_seconds(seconds: float) -> str:
    """Seconds below two minutes, then minutes: ``4.1 s``, ``29 min``."""
    if seconds < 0.0995:
        return f"{_three_digits(seconds * 1e3)} ms"
    if seconds < 120:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{_two_digits(seconds)} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _two_digits(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
