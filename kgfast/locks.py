"""Locks of folders: one process writes at a time, and a second process learns which."""

import errno
import os
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from kgfast.text import in_a_line

if sys.platform != "win32":
    import fcntl

NAME = ".lock"
_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_TRIES = 30  # to read the name of a holder
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of file systems without locks


@contextmanager
def locked(
    folder: Path, what: str = "", instead: str = "name another folder with --run"
) -> Iterator[None]:
    """Hold the lock of a folder, or raise a ValueError that names its holder.

    The lock is a ``flock``, which the system frees when the process and all processes that it
    forked end. The text in the file only names the holder, so a file that a killed process left
    locks nothing. Reading needs no lock where every file of the folder is replaced as a whole. The
    error begins with ``what`` and advises ``instead``.
    """
    if sys.platform == "win32":  # Windows has no flock
        yield
        return
    holder = f"process {os.getpid()} on host {socket.gethostname()}"
    with (folder / NAME).open("a+b", buffering=0) as file:
        try:
            named = _holder_of(file)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            named = ""
            warnings.warn(
                f"{folder}: its file system has no locks ({error.strerror}): make sure that no "
                "other process writes there",
                stacklevel=3,
            )
        if named:
            raise ValueError(
                f"{what}{folder} is being written by another process: {named}; wait for that "
                f"process or end it, or {instead}"
            )
        file.truncate(0)
        with suppress(OSError):  # a full disk: the lock holds without a name
            file.write(f"{holder}, since {time.strftime('%Y-%m-%d %H:%M:%S')}".encode())
        try:
            yield
        finally:
            file.truncate(0)


def _holder_of(file: IO[bytes]) -> str:
    """Lock a file and return nothing, or return the name of its holder.

    A process that just took the lock, or is about to free it, has not written its name.
    """
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _HELD:
                raise
        else:
            return ""
        file.seek(0)
        if named := in_a_line(file.read(200).decode(errors="replace")):
            return named
        time.sleep(0.01)
    return "unknown"
