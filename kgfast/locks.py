"""Locks of folders: one process writes at a time, and a second process learns which."""

import errno
import json
import os
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import fcntl

NAME = ".lock"
_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_SIGNED_WITHIN = 0.5  # a signature is written within so many seconds after the lock is taken
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of file systems without locks


@contextmanager
def locked(
    folder: Path, what: str = "", instead: str = "name another folder with --run"
) -> Iterator[None]:
    """Hold the lock of a folder, or raise a ValueError that names its holder.

    The lock is a ``flock``, which the system frees when the process ends. The text in the file only
    names the holder, so a file that a killed process left locks nothing. Reading needs no lock
    where every file of the folder is replaced as a whole. The error begins with ``what`` and
    advises ``instead``.
    """
    if sys.platform == "win32":  # Windows has no flock
        yield
        return
    text = _signature()
    descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                raise ValueError(
                    f"{what}{folder} is being written by another process: {_holder(descriptor)}; "
                    f"wait for that process or end it, or {instead}"
                ) from None
            if error.errno not in _NO_LOCKS:
                raise
            warnings.warn(
                f"{folder}: its file system has no locks ({error.strerror}): make sure that no "
                "other process writes there",
                stacklevel=3,
            )
        with suppress(OSError):  # a full disk: the lock holds without a signature
            os.pwrite(descriptor, text, 0)
            os.ftruncate(descriptor, len(text))
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)  # frees the lock


def _signature() -> bytes:
    holder = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:1000],
    }
    return json.dumps(holder).encode() + b"\n"


def _holder(descriptor: int) -> str:
    """Say who holds a lock; a process that took the lock just now is given time to sign."""
    last_look = time.monotonic() + _SIGNED_WITHIN
    while True:
        try:
            holder: dict[str, Any] = dict(json.loads(os.pread(descriptor, 4096, 0)))
            host, process, since = (str(holder[key])[:80] for key in ("host", "process", "since"))
        except (KeyError, TypeError, ValueError, RecursionError):
            host, process, since = "unknown", "unknown", "unknown"
        who = f"process {process} on host {host}, since {since}"
        has_ended = (
            host == socket.gethostname() and process.isdecimal() and not _lives(int(process))
        )
        if not has_ended and process != "unknown":
            return who
        if time.monotonic() > last_look:
            ended = " (that process has ended; a process that it forked still holds the lock)"
            return who + ended * has_ended
        time.sleep(_SIGNED_WITHIN / 50)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # the process is another user's
    return True
