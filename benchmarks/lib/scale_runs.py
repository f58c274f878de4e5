"""The runs of scale.py that need processes of their own: measured, killed, or several at once."""

import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
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
    table.give_back(0, len(table))
    with Sampled() as memory:
        found, taken = timed(lambda: rank(planted, table))
    about = {"anonymous_bytes": memory.bytes, "wrong": planted.wrong(found)}
    return {**taken, **about, "counts": counts_of(found)}


def counts_of(ranks: kgfast.Ranks) -> Any:
    """Return all counts of a ranking."""
    return torch.stack([ranks.greater, ranks.equal, ranks.raw.greater, ranks.raw.equal]).numpy()


def read_cold(path: Path, first: int, count: int) -> dict[str, float]:
    """Return the seconds of reading rows that are not cached, as rank() reads them."""
    table = kgfast.tables.open(path)
    last = min(len(table), first + count)
    _, taken = timed(lambda: _read(table, first, last))
    return {**taken, "bytes": (last - first) * table.row_bytes}


def _read(table: kgfast.tables.Rows, first: int, last: int) -> None:
    """Read rows in blocks and give their pages back, from a cache without them."""
    table.give_back(first, last)
    step = max(1, BLOCK // table.row_bytes)
    block = torch.empty(min(step, last - first), table.shape[1], dtype=table.dtype, device="cpu")
    for start in range(first, last, step):
        stop = min(start + step, last)
        table.read_into(start, block[: stop - start])
        table.give_back(start, stop)


def kill_and_resume(
    planted: Planted, path: Path, folder: Path, kills: int, seed: int
) -> dict[str, Any]:
    """Rank with ``partial=`` through kills at random moments; return counts and losses of each."""
    moments = random.Random(seed)
    places = sorted(moments.random() for _ in range(kills))
    killed = []
    for place in places:
        delay = moments.random() / 4
        rows, process, _ = _started(planted, path, folder)
        while process.is_alive() and rows.value < place * planted.entities:
            time.sleep(0.002)
        time.sleep(delay)
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        reached, kept = int(rows.value), _kept(folder)
        fact = {"reached_row": reached, "kept_row": kept, "exit_code": process.exitcode}
        killed.append({**fact, "lost_rows": reached - kept, "after_s": delay})
    rows, process, pipe = _started(planted, path, folder)
    counts = pipe.recv()
    process.join()
    row_bytes = planted.dim * 4
    span = max(min(BLOCK // row_bytes, planted.entities), -(-planted.entities // 256))
    return {"counts": counts, "killed": killed, "range_rows": span}


def _kept(folder: Path) -> int:
    """Return the row that a killed run goes on from."""
    path = folder / "pass-0.safetensors"
    if not path.exists():
        return 0
    with np.load(path) as found:
        return int(found["next_row"])


def _started(planted: Planted, path: Path, folder: Path) -> tuple[Any, Any, Any]:
    """Start a process that ranks; return its counted rows, itself, and the pipe of its counts."""
    rows = _CONTEXT.Value("q", 0)
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(
        target=_watched, args=(planted, path, folder, rows, sender, torch.get_num_threads())
    )
    process.start()
    sender.close()
    return rows, process, receiver


def _watched(
    planted: Planted, path: Path, folder: Path, rows: Any, sender: Any, threads: int
) -> None:
    """Rank, and say after each block how far it is."""
    from kgfast.eval import one_pass

    @contextmanager
    def counted(*_: Any) -> Iterator[Callable[[int, int], None]]:
        def advance(count: int, queries: int) -> None:
            rows.value += count

        yield advance

    torch.set_num_threads(threads)
    with patch.object(one_pass, "sweep_bar", counted):
        found = rank(planted, kgfast.tables.open(path), partial=folder)
    sender.send(counts_of(found))


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
    """Rank as often as is asked for; ``facts`` tell the bytes that collectives are called with."""
    planted, place, processes, threads, store = facts
    torch.set_num_threads(threads)
    sent = [0]
    if processes > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=place, world_size=processes
        )
        _count_bytes(sent)
    first, last = (planted.entities * it // processes for it in (place, place + 1))
    rows = planted.rows(first, last)
    shard = kgfast.tables.Shard(rows, start=first, total_rows=planted.entities)
    model = planted.model(shard if processes > 1 else rows)
    options = {"known": planted.known, "sides": SIDES}
    with distributed.processes() if processes > 1 else nullcontext():
        kgfast.rank(model, planted.triples, **options)
        pipe.send(True)
        while pipe.recv():
            sent[0] = 0
            found, taken = timed(lambda: kgfast.rank(model, planted.triples, **options))
            pipe.send({**taken, "sent_bytes": sent[0], "wrong": planted.wrong(found)})
    if processes > 1:
        dist.destroy_process_group()


def _count_bytes(sent: list[int]) -> None:
    """Add up the bytes that collectives are called with."""
    for name in ("all_reduce", "all_gather"):
        original = getattr(dist, name)

        def counted(*values: Any, original: Any = original, **options: Any) -> Any:
            own = values[-1]
            sent[0] += own.numel() * own.element_size()
            return original(*values, **options)

        setattr(dist, name, counted)
