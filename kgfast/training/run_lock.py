"""One process writes a run folder at a time, and a second one is told who does."""

import errno
import json
import os
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import fcntl

NAME = ".lock"
_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of the file system


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder, which must exist.

    It is a ``flock``: the system frees it when the process ends, however that comes. The text in
    the file only says who holds it, so a file that a kill left locks nothing. Reading needs no
    lock: every file of a run is replaced as a whole.

    Raises
    ------
    ValueError
        If another process holds it: names host, process, since when, and the folder.
    """
    if sys.platform == "win32":  # it has no flock
        yield
        return
    descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                raise ValueError(_whose(folder, os.read(descriptor, 4096))) from None
            if error.errno not in _NO_LOCKS:
                raise
            warnings.warn(
                f"{folder}: its file system has no locks ({error.strerror}): see to it that no "
                "other process writes this run",
                stacklevel=3,
            )
        _sign(descriptor)
        yield
    finally:
        os.close(descriptor)  # frees the lock


def _sign(descriptor: int) -> None:
    """Write into the file who holds the lock."""
    holder = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:1000],
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode() + b"\n", 0)


def _whose(folder: Path, text: bytes) -> str:
    """The message about a lock that is held."""
    try:
        holder: dict[str, Any] = dict(json.loads(text))
        host, process, since = (str(holder[key])[:80] for key in ("host", "process", "since"))
    except (KeyError, TypeError, ValueError, RecursionError):
        host, process, since = "unknown", "unknown", "unknown"
    who = f"process {process} on host {host}, since {since}"
    if host == socket.gethostname() and process.isdecimal() and not _lives(int(process)):
        who += " (that one has ended; a process that it forked still holds the lock)"
    return (
        f"{folder} is being written by another process: {who}; wait for it or end it, or name "
        "another folder with --run"
    )


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it belongs to someone else
    return True
