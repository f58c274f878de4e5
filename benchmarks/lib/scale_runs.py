"""The runs of scale.py that need processes of their own: measured, or several at once."""

import multiprocessing
import os
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import kgfast
from kgfast import distributed
from lib.measure import Sampled, timed
from lib.planted import Planted

BLOCK = 32 << 20  # bytes: as tables are read
SIDES = ("tail",)
_CONTEXT = multiprocessing.get_context("forkserver")


def rank_in_memory(planted: Planted, table: Tensor) -> dict[str, float]:
    """Return the seconds of a table in memory; its ranks are checked."""
    found, taken = timed(lambda: rank(planted, table))
    return {**taken, "wrong": planted.wrong(found)}


def rank(planted: Planted, table: Any, **options: Any) -> kgfast.Ranks:
    """Rank as every measurement does."""
    model = planted.model(table)
    ranks = kgfast.rank(model, planted.triples, known=planted.known, sides=SIDES, **options)
    assert isinstance(ranks, kgfast.Ranks)
    return ranks


def rank_file(planted: Planted, path: Path) -> dict[str, Any]:
    """Measure a table in a file that is not cached; for a process of its own."""
    small = Planted(max(64, 4 * planted.queries), planted.dim, 4)
    rank(small, small.table())  # loads all that the first call loads
    table = kgfast.tables.open(path)
    _ = planted.known, planted.triples  # made before the clock starts
    forget(path)
    with Sampled() as memory:
        found, taken = timed(lambda: rank(planted, table))
    return {**taken, "anonymous_bytes": memory.bytes, "wrong": planted.wrong(found)}


def forget(path: Path) -> None:
    """Let the system forget the pages of a file."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_cold(path: Path, first: int, count: int) -> dict[str, float]:
    """Return the seconds of reading rows that are not cached, as rank() reads them."""
    table = kgfast.tables.open(path)
    last = min(len(table), first + count)
    step = max(1, BLOCK // table.row_bytes)
    forget(path)

    def read() -> None:
        shape = min(step, last - first), table.shape[1]
        block = torch.empty(shape, dtype=table.dtype, device="cpu")
        for start in range(first, last, step):
            stop = min(start + step, last)
            table.read_into(start, block[: stop - start])

    return {**timed(read)[1], "bytes": (last - first) * table.row_bytes}


class Ranker:
    """Processes that hold a table between them and rank it on demand."""

    def __init__(self, planted: Planted, processes: int, threads: int) -> None:
        self._store = tempfile.TemporaryDirectory()
        self._pipes, self._processes = [], []
        for place in range(processes):
            here, there = _CONTEXT.Pipe()
            facts = planted, place, processes, threads, f"{self._store.name}/store"
            process = _CONTEXT.Process(target=_serve, args=(there, facts), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()  # the process is up

    def rank(self) -> list[dict[str, Any]]:
        """Return each process's report of one ranking."""
        for pipe in self._pipes:
            pipe.send(True)
        return [pipe.recv() for pipe in self._pipes]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(False)
        for process in self._processes:
            process.join()
        self._store.cleanup()


def _serve(pipe: Any, facts: tuple[Planted, int, int, int, str]) -> None:
    """Rank until the other end of the pipe says no more."""
    planted, place, processes, threads, store = facts
    torch.set_num_threads(threads)
    first, last = (planted.entities * it // processes for it in (place, place + 1))
    table: Any = planted.rows(first, last)
    if processes > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=place, world_size=processes
        )
        table = kgfast.tables.Shard(table, start=first, total_rows=planted.entities)
    with distributed.processes() if processes > 1 else nullcontext():
        rank(planted, table)
        pipe.send(True)
        while pipe.recv():
            found, taken = timed(lambda: rank(planted, table))
            pipe.send({**taken, "wrong": planted.wrong(found)})
    if processes > 1:
        dist.destroy_process_group()
