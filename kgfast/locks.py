"""Locks of folders: one process writes at a time, and a second process learns which."""

import os
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kgfast.text import in_a_line

if sys.platform != "win32":
    import fcntl

NAME = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder and hold its lock, or raise a ValueError that names its holder.

    The lock is a ``flock``, which the system frees when the process and all processes that it
    forked end. The text in the file only names the holder, so a file that a killed process left
    locks nothing. Reading needs no lock where every file of the folder is replaced as a whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":  # Windows has no flock
        yield
        return
    with (folder / NAME).open("a+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = in_a_line(file.read(200).decode(errors="replace")) or "unknown"
            raise ValueError(
                f"{folder} is being written by another process: {holder}; wait for that "
                f"process or end it, or name another folder with --run"
            ) from None
        except OSError as error:
            warnings.warn(
                f"{folder}: its file system has no locks ({error.strerror}): make sure that no "
                "other process writes there",
                stacklevel=3,
            )
        file.truncate(0)
        with suppress(OSError):  # a full disk: the lock holds without a name
            began = time.strftime("%Y-%m-%d %H:%M:%S")
            holder = f"process {os.getpid()} on host {socket.gethostname()}, since {began}"
            file.write(holder.encode())
        try:
            yield
        finally:
            file.truncate(0)
