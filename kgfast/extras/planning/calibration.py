"""Measurements of this machine: speed of kernels, cost of a call, speed of the disk."""

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgfast import __version__
from kgfast.environment import info
from kgfast.extras.planning.rates import Cost, Rates, bytes_of, memory_of_the_machine
from kgfast.extras.planning.work import BYTES, MODELS, PLANES
from kgfast.ops import rank_counts, topk
from kgfast.tables import Rows
from kgfast.tables import open as open_table

CONSUMERS = ("rank", "topk")
SCORES = tuple(dict.fromkeys(score for score, _ in MODELS.values()))
_BLOCK_BYTES = 32 << 20  # bytes of a block of a table in a file
_DIMS, _QUERIES = (64, 256), (32, 256)
_TOP = 10
_COLUMNS = 128  # columns of the float16 file
_FILE_BYTES = 1 << 29
Case = tuple[str, str, str]  # consumer, score, dtype
Clock = Callable[[], float]


def calibrate(
    folder: str | os.PathLike[str] | None = None,
    *,
    cases: Sequence[Case] | None = None,
    rounds: int = 3,
    block_bytes: int = _BLOCK_BYTES,
    file_bytes: int = _FILE_BYTES,
    clock: Clock = time.perf_counter,
) -> Rates:
    """Measure :class:`Rates` of this machine, in some minutes: the best of some rounds.

    Tables are random, so no query can stop early. The disk is measured by a file in ``folder``
    (default: the temporary folder), which is deleted. ``cases`` are (consumer, score, dtype).
    ``clock`` times kernels; on a shared machine use ``time.process_time``.
    """
    every = list(product(CONSUMERS, SCORES, BYTES)) if cases is None else list(cases)
    costs: dict[str, dict[str, dict[str, Cost]]] = {}
    watch = Watch(rounds, clock)
    call = watch.least(_counting("l1", "float32", 1, 1, "rank"))
    for consumer, score, dtype in every:
        found = _cost((consumer, score, dtype), block_bytes, watch, call)
        costs.setdefault(consumer, {}).setdefault(score, {})[dtype] = found
    disk, read = _disk(folder, file_bytes)
    where = f"{_cpu_name()}, {torch.get_num_threads()} threads"
    if isa := info().isa:
        where += f", {isa}"
    source = f"measured on {where}, {datetime.now(UTC):%Y-%m-%d}, kgfast {__version__}"
    threads, memory = torch.get_num_threads(), memory_of_the_machine()
    return Rates(source, costs, call, _base_bytes(), disk, read, threads, memory)


@dataclass(frozen=True)
class Watch:
    """A timer of calls."""

    rounds: int
    clock: Clock

    def least(self, run: Callable[[], Any]) -> float:
        """Return seconds of the fastest call, after one that warms up."""
        run()
        return min(self._seconds(run) for _ in range(self.rounds))

    def _seconds(self, run: Callable[[], Any]) -> float:
        start = self.clock()
        run()
        return self.clock() - start


def _cost(case: Case, block_bytes: int, watch: Watch, call: float) -> Cost:
    """Fit the four numbers of a cost from two widths and two numbers of queries."""
    consumer, score, dtype = case
    seconds = {}
    for dim, count in product(_DIMS, _QUERIES):
        rows = block_bytes // (dim * PLANES[score] * BYTES[dtype])
        run = _counting(score, dtype, dim, count, consumer, rows)
        seconds[dim, count] = max(0.0, watch.least(run) - call) / rows
    few, many = _QUERIES
    pairs = {dim: (seconds[dim, many] - seconds[dim, few]) / (many - few) for dim in _DIMS}
    own = {dim: max(0.0, seconds[dim, few] - few * pairs[dim]) for dim in _DIMS}
    return Cost(*_line(own), *_line(pairs))


def _line(values: Mapping[int, float]) -> tuple[float, float]:
    """Return value at width 0 and slope, neither negative, through the larger of two widths."""
    narrow, wide = _DIMS
    slope = max(0.0, (values[wide] - values[narrow]) / (wide - narrow))
    start = values[wide] - slope * wide
    return (start, slope) if start >= 0 else (0.0, values[wide] / wide)


def _counting(
    score: str, dtype: str, dim: int, count: int, consumer: str, rows: int = 1
) -> Callable[[], Any]:
    """Return a call on random rows; top-k queries are float64, as for tables in files."""
    generator = torch.Generator().manual_seed(0)
    width = dim * PLANES[score]
    table = _uniform((rows, width), generator).to(getattr(torch, dtype))
    queries = _uniform((count, width), generator)
    if dtype == "float64" or consumer == "topk":
        queries = queries.double()
    targets = torch.randint(rows, (count,), generator=generator, dtype=torch.int64, device="cpu")
    nothing = torch.zeros(count + 1, dtype=torch.int64, device="cpu")
    if consumer == "topk":
        return lambda: topk(queries, table, min(_TOP, rows), score=score)
    return lambda: rank_counts(queries, table, targets, nothing, nothing[:0], score)


def _uniform(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu") * 2 - 1


def _disk(folder: str | os.PathLike[str] | None, size: int) -> tuple[float, float]:
    """Return bytes a second of reading an uncached file, and CPU seconds a byte."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="kgfast-") as name:
        path = Path(name) / "rows.bin"
        piece = os.urandom(min(size, 1 << 24))
        with path.open("wb", buffering=0) as file:
            for _ in range(max(1, size // len(piece))):
                file.write(piece)
            os.fsync(file.fileno())
        table = open_table(path, columns=_COLUMNS, dtype=torch.float16)
        start, cores = time.perf_counter(), time.process_time()
        read_cold(table, 0, len(table))
        seconds, cores = time.perf_counter() - start, time.process_time() - cores
        count = len(table) * 2 * _COLUMNS
        return count / seconds, cores / count


def read_cold(table: Rows, first: int, last: int) -> None:
    """Read rows ``first .. last - 1`` uncached, in blocks whose pages are given back, as rank()."""
    table.give_back(first, last)
    step = max(1, _BLOCK_BYTES // table.row_bytes)
    block = torch.empty((min(step, last - first), table.shape[1]), dtype=table.dtype, device="cpu")
    for start in range(first, last, step):
        stop = min(start + step, last)
        table.read_into(start, block[: stop - start])
        table.give_back(start, stop)


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def _base_bytes() -> int:
    """Return the anonymous memory of a new process that can rank."""
    script = "import kgfast.eval.ranking; print(open('/proc/self/status').read())"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    found = bytes_of(done.stdout, "RssAnon")
    return 200 << 20 if found is None else found
