"""Memory, time, bytes and bottleneck of a ranking, from sizes and the rates of a machine."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from kgfast.extras.planning.rates import Rates
from kgfast.extras.planning.work import Work

# Constants of rank() and topk() for a table in files (docs/how-to/tables.md): a test compares these
# with a call.
_BLOCK_BYTES, _BUFFERS = 32 << 20, 2
_QUERY_BYTES, _MOST = 8 << 20, 4096  # limits of a batch: bytes, queries
_KERNEL_BYTES = 8 << 20  # scratch of one call: measured; at most 64 MiB
_KNOWN_BYTES = 2 * 20  # upper bound for a known triple: an id and an own pair, both ways
_SHARE = 0.5  # share of the memory that a table may take before the file is read in blocks
_SENT_BYTES = 48  # counts and other numbers of a query that processes exchange
_MEETINGS = 5  # exchanges of the processes for a batch
MEETING_SECONDS = 1e-4  # seconds of each process at each exchange: assumed
NETWORK = 1.25e9  # bytes a second: assumed unless given


@dataclass(frozen=True)
class Plan:
    """Predicted needs of a ranking, for the slowest worker.

    Attributes
    ----------
    streamed : bool
        True if the table is read in blocks, not stored in memory.
    passes : int
        Number of reads of the table's file.
    table_bytes, memory_bytes, process_bytes : int
        All rows; the peak of a worker; the part of this peak that Python and torch take.
    read_bytes, sent_bytes : int
        Bytes that a worker reads from disk, and sends to all others.
    compute_seconds, disk_seconds, network_seconds : float
        Seconds of each alone; for the disk, None if no rate is known.
    load_seconds, seconds : float
        Reading a table into memory first; the ranking after that.
    binding : str
        ``compute``, ``disk``, ``network``, or ``memory`` if memory is too small.
    source : str
        Origin of the rates.
    """

    streamed: bool
    passes: int
    table_bytes: int
    memory_bytes: int
    process_bytes: int
    read_bytes: int
    sent_bytes: int
    compute_seconds: float
    disk_seconds: float | None
    network_seconds: float
    load_seconds: float
    seconds: float
    binding: str
    source: str

    @property
    def total_seconds(self) -> float:
        """Seconds of loading the table and of the ranking."""
        return self.load_seconds + self.seconds

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers for JSON."""
        return asdict(self) | {"total_seconds": self.total_seconds}


def planned(
    work: Work,
    rates: Rates,
    *,
    disk: float | None = None,
    network: float | None = None,
    max_memory: int | None = None,
    streamed: bool | None = None,
) -> Plan:
    """Predict the needs of a ranking at these rates, if no query stops early.

    With tables of trained models queries stop early, which can halve the time.

    Parameters
    ----------
    work : Work
    rates : Rates
        Rates of each worker.
    disk, network : float, optional
        Bytes per second of each worker, instead of the measured or assumed rates.
    max_memory : int, optional
        Bytes for blocks and queries; by default a quarter of the memory.
    streamed : bool, optional
        Read the table in blocks; by default if the table takes more than half the memory.

    Raises
    ------
    ValueError
        If the rates lack the score, the dtype, or the disk that the work needs.

    Examples
    --------
    >>> from kgfast.extras.planning.devices import rates_of
    >>> plan = planned(Work(91_000_000, 128, 15_000, "float16"), rates_of("h200"))
    >>> plan.binding, round(plan.seconds)
    ('compute', 88)
    """
    disk = rates.disk if disk is None else disk
    part = work.rows * work.row_bytes
    if streamed is None:
        streamed = part > _SHARE * rates.memory
    if streamed and disk is None:
        raise ValueError(
            f"{part / 1e9:,.1f} GB of rows do not fit in memory, so rows are read from a disk: "
            "give the rate of the disk (--disk 2GB/s)"
        )
    cut = FileCut.of(work, max_memory or rates.memory // 4)
    batches = work.sides * math.ceil(work.queries / batch_size(work))
    passes, calls = _passes_and_calls(work, cut, batches) if streamed else (1, batches)
    compute = rates.cost(work).seconds(work.rows, work.features, work.asked, calls)
    compute += calls * rates.call_seconds * (cut.blocks(work) if streamed else 1)
    read = part * passes
    reading = None if disk is None else read / disk
    sent, talking = _network(work, network or NETWORK, batches)
    memory = _memory(work, rates, cut, streamed)
    seconds = compute
    if streamed and disk is not None:  # reading takes cores, and the first block is waited for
        first = passes * cut.block_rows * work.row_bytes / disk
        seconds = first + max(read / disk, compute + read * rates.read_seconds / rates.threads)
    each = {"compute": compute, "disk": reading or 0.0, "network": talking}
    binding = max(each, key=lambda name: each[name])
    return Plan(
        streamed,
        passes,
        work.entities * work.row_bytes,
        memory,
        rates.base_bytes,
        read,
        sent,
        compute,
        reading,
        talking,
        0.0 if streamed or reading is None else reading,
        seconds + talking,
        "memory" if memory > rates.memory else binding,
        rates.source,
    )


def _passes_and_calls(work: Work, cut: "FileCut", batches: int) -> tuple[int, int]:
    """Count passes and calls for a table in a file.

    One worker serves all queries that fit in memory by one pass; several workers need a pass a
    batch.
    """
    if work.workers > 1:
        return batches, batches
    passes = math.ceil(work.asked / cut.per_pass)
    return passes, max(passes, work.sides)


@dataclass(frozen=True)
class FileCut:
    """The blocks of a table in a file: rows of a block, and queries that a pass serves."""

    block_rows: int
    per_pass: int

    @classmethod
    def of(cls, work: Work, limit: int) -> "FileCut":
        """Cut the table within ``limit`` bytes."""
        row = _BUFFERS * work.row_bytes + 8 + 8 * work.dim
        query = query_bytes(work)
        rows = max(1, min(_BLOCK_BYTES // work.row_bytes, limit // 4 // row, work.rows))
        return cls(rows, max(1, (limit - rows * row) // query))

    def blocks(self, work: Work) -> int:
        """Return the number of blocks of a worker's rows."""
        return math.ceil(work.rows / self.block_rows)


def query_bytes(work: Work) -> int:
    """Return the bytes of a query during a pass: query, target's score, counts, an answer."""
    return 3 * 8 * work.columns + 104 + 32 + 64


def batch_size(work: Work) -> int:
    """Return the number of queries that are made and swept together."""
    wide = 8 if work.dtype == "float64" else 4
    return max(64, min(_MOST, _QUERY_BYTES // (wide * 2 * work.dim)))


def _network(work: Work, network: float, batches: int) -> tuple[int, float]:
    """Return the bytes that a worker sends, and the seconds of sending and meeting."""
    if work.workers == 1:
        return 0, 0.0
    wide = 8 if work.dtype == "float64" else 4
    summed = work.asked * (wide * work.columns + _SENT_BYTES)
    sent = 2 * summed * (work.workers - 1) // work.workers  # a sum over all processes
    return sent, sent / network + batches * _MEETINGS * work.workers * MEETING_SECONDS


def _memory(work: Work, rates: Rates, cut: FileCut, streamed: bool) -> int:
    """Return the peak memory of a worker."""
    result = 48 * work.asked if work.top is None else 16 * work.top * work.asked
    held = rates.base_bytes + _KERNEL_BYTES + result + _KNOWN_BYTES * work.known
    if not streamed:
        batch = min(work.queries, batch_size(work))
        return held + work.rows * work.row_bytes + batch * query_bytes(work)
    queries = min(work.asked, cut.per_pass)
    return held + _BUFFERS * cut.block_rows * work.row_bytes + queries * query_bytes(work)
