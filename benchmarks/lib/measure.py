"""Peak memory, times in turns, and processes of their own.

Memory is the peak beyond the inputs. Times are medians of rounds in which all contenders take
turns, because a machine drifts.
"""

import ctypes
import gc
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

SLOW_SECONDS, SLOW_ROUNDS = 3.0, 3  # a slower unit of work takes fewer turns
_L2_FLUSH_BYTES = 256 << 20


class PeakMemory:
    """Peak memory of a ``with`` block, beyond the memory held when the block began."""

    bytes: int  # after the block
    method: str  # on CUDA the allocator's peak; else VmHWM, or samples of RSS

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
        self._sampler = None if _reset_high_water_mark() else Sampled(resident_bytes, 0.001)
        self.method = "VmHWM" if self._sampler is None else "sampled RSS"
        self._before = resident_bytes()
        if self._sampler is not None:
            self._sampler.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
            self.bytes = torch.cuda.max_memory_allocated() - self._before
            return
        if self._sampler is not None:
            self._sampler.__exit__()
        peak = _status_bytes("VmHWM") if self._sampler is None else self._sampler.bytes
        self.bytes = peak - self._before


def return_free_memory() -> None:
    """Give freed memory back to the system, so that using it again counts."""
    with suppress(OSError, AttributeError, TypeError):  # a system without glibc
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
    """Return the resident bytes of the process."""
    if Path("/proc/self/status").exists():
        return _status_bytes("VmRSS")
    import psutil  # type: ignore[import-untyped]

    return int(psutil.Process().memory_info().rss)


def anonymous_bytes() -> int:
    """Return the bytes that the process holds, without mapped files."""
    try:
        return _status_bytes("RssAnon")
    except OSError:
        return resident_bytes()


class Sampled:
    """The highest value within a ``with`` block that a polling thread saw."""

    bytes: int

    def __init__(
        self, value: Callable[[], int] = anonymous_bytes, every_seconds: float = 0.005
    ) -> None:
        self._value, self._every = value, every_seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Sampled":
        self.bytes = self._value()
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.wait(self._every):
            self.bytes = max(self.bytes, self._value())

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.bytes = max(self.bytes, self._value())


class ChildDied(RuntimeError):
    """A child process ended without a result, as when the system kills it for its memory."""


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process; raise its error as a RuntimeError."""
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


def in_child_or_note(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Call a function in a fresh process; where it fails, return why as a row's note."""
    try:
        return dict(in_child(function, *arguments))
    except (ChildDied, RuntimeError) as error:
        return {"note": str(error).splitlines()[0][:80]}


def waiting(work: str) -> AbstractContextManager[Any]:
    """Return a context that names on a terminal the work that is measured."""
    from rich.console import Console

    return Console(stderr=True).status(f"measuring {work}", refresh_per_second=4)


def _child_context() -> Any:
    """Return a context whose processes are forked from one that has only loaded torch."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "kgfast.ops", "kgfast.models"])
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
        """Return the times of work that is ``factor`` times as large."""
        return Timing(self.median * factor, self.min * factor, self.max * factor, self.rounds)

    def as_dict(self) -> dict[str, float]:
        """Return the times for a results file."""
        return asdict(self)


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return a call's result, with its seconds by the clock and of the process's threads."""
    start, cores = time.perf_counter(), time.process_time()
    found = work()
    return found, {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cores,
    }


def take_turns(
    contenders: Mapping[str, Callable[[], Any]],
    rounds: int,
    seconds_of: Callable[[Callable[[], Any]], float],
    few: Mapping[str, int] | None = None,
) -> dict[str, list[float]]:
    """Let contenders take turns, ``few`` ones fewer turns; return seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        for name, work in contenders.items():
            if turn < (few or {}).get(name, rounds):
                seconds[name].append(seconds_of(work))
    return seconds


def thread_seconds(work: Callable[[], Any]) -> float:
    """Return the CPU seconds that a call takes this thread."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


class Stopwatch:
    """Times calls: by a clock on the CPU; by events with a cold L2 cache on CUDA."""

    def __init__(self, device: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.device, self.clock = device, clock
        if device == "cuda":
            self._cache = torch.empty(_L2_FLUSH_BYTES, dtype=torch.int8, device=device)

    def seconds(self, work: Callable[[], Any]) -> float:
        """Return the seconds of one call."""
        if self.device == "cpu":
            start = self.clock()
            work()
            return self.clock() - start
        self._cache.zero_()
        start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start_event.record()
        work()
        end_event.record()
        torch.cuda.synchronize()
        return float(start_event.elapsed_time(end_event)) / 1e3

    def timed(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """Return the result of one call, and its seconds."""
        results: list[Any] = []
        seconds = self.seconds(lambda: results.append(work()))
        return results[0], seconds

    def interleave(
        self,
        contenders: Mapping[str, Callable[[], Any]],
        rounds: int,
        few: Mapping[str, int] | None = None,
    ) -> dict[str, Timing]:
        """Let contenders that have been warmed up take turns, as `take_turns` does."""
        found = take_turns(contenders, rounds, self.seconds, few)
        return {name: Timing.of(values) for name, values in found.items()}

    def race(
        self, contenders: Mapping[str, Callable[[], Any]], rounds: int
    ) -> tuple[dict[str, Any], dict[str, Timing]]:
        """Return each contender's answer and turns; slow contenders take fewer."""
        answers, few = {}, {}
        for name, work in contenders.items():
            answers[name] = work()
            if self.seconds(work) > SLOW_SECONDS:
                few[name] = min(SLOW_ROUNDS, rounds)
        return answers, self.interleave(contenders, rounds, few)
