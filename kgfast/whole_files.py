"""Files that are written whole or not at all."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(
    path: str | os.PathLike[str], write: Callable[[Path], object], *, lasting: bool = False
) -> Path:
    """Let ``write`` make a file in a folder beside ``path``, and move that file to ``path``.

    safetensors makes temporary files that only their owner can read, and a kill leaves them in the
    folder. The next write deletes the folder. A ``lasting`` file outlives a loss of power from when
    this function returns. An OSError leaves the old file as it was.
    """
    path = Path(path)
    scratch = path.with_name(f".kgfast-{path.name}.tmp")
    fresh = scratch / path.name
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        fresh.touch()
        mode = fresh.stat().st_mode
        write(fresh)
        fresh.chmod(mode)
        if lasting:
            sync(fresh)
        os.replace(fresh, path)
    except OSError as error:
        reason = f"cannot write: {error.strerror or error}; the old file is intact"
        raise OSError(error.errno, reason, str(path)) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if lasting:
        sync(path.parent)
    return path


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a folder that becomes ``path``, empty or new until then, if nothing is raised."""
    path = Path(path)
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise ValueError(f"{path} is there already: name another folder")
    place = Path(os.path.realpath(path))
    scratch = place.with_name(f".{place.name}-{os.getpid()}")
    try:
        scratch.mkdir(parents=True)
        yield scratch
        for file in scratch.rglob("*"):
            if file.is_file():
                sync(file)
        os.replace(scratch, place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sync(path: Path) -> None:
    """Bring a file or the names in a folder to the disk."""
    if sys.platform == "win32" and path.is_dir():  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
