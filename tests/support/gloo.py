"""Processes that work together over gloo on the loopback."""

import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from support.forked import PROCESSES


def run_together(
    world: int, work: Callable[..., Any], *args: Any, timeout: float = 60
) -> list[Any]:
    """Return results or errors of ``work(rank, *args)`` in processes; None for one that was killed.

    ``work`` is a function of ``support``, or a partial one.
    """
    store = dist.TCPStore("127.0.0.1", _free_port(), is_master=True, wait_for_workers=False)
    pipes: list[Any] = []
    processes: list[Any] = []
    for rank in range(world):
        here, there = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=_one, args=(there, store.port, rank, world, work, args))
        process.start()
        there.close()  # so that the end of the process ends the pipe
        pipes.append(here)
        processes.append(process)
    results = []
    try:
        for pipe in pipes:
            try:
                results.append(pickle.loads(pipe.recv_bytes()) if pipe.poll(timeout) else None)
            except EOFError:
                results.append(None)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return results


def values(results: Sequence[Any]) -> list[Any]:
    """Return the results, none of which is an error."""
    for rank, result in enumerate(results):
        if result is None or isinstance(result, BaseException):
            raise AssertionError(f"process {rank}: {result}") from result
    return list(results)


def _one(pipe: Any, port: int, rank: int, world: int, work: Callable[..., Any], args: Any) -> None:
    torch.set_num_threads(1)
    if sys.platform == "linux":  # whatever the machine calls itself, and whether that is found
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    try:
        pipe.send_bytes(pickle.dumps(work(rank, *args)))  # by value: this process ends
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)[-3:]))
        pipe.send_bytes(pickle.dumps(error))
    finally:
        pipe.close()
    os._exit(0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
