"""Checkpoints that survive a kill at any moment, in a format that runs no code when it is read.

One safetensors file holds the tensors and, as JSON in its header, everything else. It is written
beside its place, brought to the disk and renamed, so what stands under a name is always complete.
A checksum over all of it tells a file that a disk or a copy has damaged: a CRC-32, which no flip of
a bit escapes, and no burst of up to 32; 100 MB of tensors take it 0.03 s.

Files of format 1, which earlier versions wrote, have no checksum and load without.
"""

import errno
import json
import math
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

VERSION = 2
_WITHOUT_CHECKSUM = 1
_KEY, _CHECKSUM = "kgfast", "crc32"
_NUMBERS = 1 << 23  # of a block

State = tuple[dict[str, Tensor], dict[str, Any]]
Room = Callable[[Sequence[int]], Tensor]


def save(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> None:
    """Write a checkpoint; whatever stands under the path stays whole until the new one is.

    Parameters
    ----------
    path
        Of the file; a temporary folder is made beside it.
    tensors : mapping of str to Tensor
        Of any dtype and device. Contiguous ones on the CPU are not copied.
    meta : mapping
        What JSON can hold.

    Raises
    ------
    OSError
        If it cannot be written, a full disk for example: names the path; the old file is intact.
    TypeError
        If JSON cannot hold ``meta``.

    Examples
    --------
    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/a.safetensors", {"x": torch.ones(2)}, {"step": 3})
    ...     load(f"{folder}/a.safetensors")
    ({'x': tensor([1., 1.])}, {'step': 3})
    """
    path = Path(path)
    text = json.dumps({"version": VERSION, "meta": meta})
    rows = _apart(tensors)
    header = {_KEY: text, _CHECKSUM: _checksum(text, rows)}
    write_beside(path, lambda temporary: save_file(rows, temporary, header))


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, each in a storage of its own, as the format wants them."""
    rows: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        row = tensor.detach().cpu().contiguous()
        storage = row.untyped_storage().data_ptr()
        rows[name] = row.clone() if storage and storage in storages else row
        storages.add(storage)
    return rows


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Of the meta, and of name, dtype, shape and bytes of every tensor, in the order of names."""
    value = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        value = zlib.crc32(_kind(name, tensor.dtype, tensor.shape), value)
        value = _with_bytes(tensor, value)
    return f"{value:08x}"


def _kind(name: str, dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    return f"|{name}|{dtype}|{list(shape)}|".encode()


def _with_bytes(tensor: Tensor, value: int) -> int:
    """The checksum of what was before, and of a tensor's bytes."""
    if not tensor.numel():
        return value
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)


def _compare(path: Path, header: Mapping[str, str], checksum: str) -> None:
    if header.get(_CHECKSUM) != checksum:
        raise ValueError(
            f"{path}: damaged: its checksum is {header.get(_CHECKSUM)}, that of its content "
            f"{checksum}"
        )


def load(path: str | os.PathLike[str]) -> State:
    """Read a checkpoint: its tensors, on the CPU, and its meta.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If it is not a file, is truncated or damaged, not a checkpoint of kgfast, or of a later
        version; names the path.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such checkpoint")
    if not path.is_file():
        raise ValueError(f"{path}: a {'folder' if path.is_dir() else 'device'}, not a checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, str] = file.metadata() or {}
            version, meta = _meta(path, header)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, no dict
    except SafetensorError as error:
        raise ValueError(f"{path}: truncated, or not a checkpoint: {error}") from None
    if version != _WITHOUT_CHECKSUM:
        _compare(path, header, _checksum(header[_KEY], tensors))
    return tensors, meta


def load_meta(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The meta of a checkpoint; its tensors are not read, and so not checked.

    Raises
    ------
    FileNotFoundError, ValueError
        As of :func:`load`.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            return _meta(path, file.metadata() or {})[1]
    except SafetensorError as error:
        raise ValueError(f"{path}: truncated, or not a checkpoint: {error}") from None


def blocks(path: str | os.PathLike[str]) -> Iterator[tuple[str, list[int], int, Tensor]]:
    """The tensors of a checkpoint, a block of rows at a time: name, shape, first row, rows.

    For tensors larger than memory. The checksum is compared behind the last block.

    Raises
    ------
    ValueError
        As of :func:`load`.
    """
    path = Path(path)
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, str] = file.metadata() or {}
            version = _meta(path, header)[0]
            value = zlib.crc32(header[_KEY].encode())
            for name in sorted(file.keys()):
                part = file.get_slice(name)
                shape: list[int] = part.get_shape()
                count = shape[0] if shape else 1
                step = max(1, _NUMBERS // max(1, math.prod(shape[1:])))
                for start in range(0, max(1, count), step):
                    stop = min(start + step, count)
                    block = part[start:stop] if shape else file.get_tensor(name)
                    if not start:
                        value = zlib.crc32(_kind(name, block.dtype, shape), value)
                    value = _with_bytes(block, value)
                    yield name, shape, start, block
    except SafetensorError as error:
        raise ValueError(f"{path}: truncated, or not a checkpoint: {error}") from None
    if version != _WITHOUT_CHECKSUM:
        _compare(path, header, f"{value:08x}")


def load_into(path: str | os.PathLike[str], room: Room) -> State:
    """As :func:`load`; float32 tensors of two axes go where there is room for them.

    Parameters
    ----------
    path
    room : callable
        Makes a float32 tensor of a shape.
    """
    tensors: dict[str, Tensor] = {}
    meta = load_meta(path)
    for name, shape, start, block in blocks(path):
        if not shape:
            tensors[name] = block
            continue
        if not start:
            has_room = block.dtype == torch.float32 and len(shape) == 2
            tensors[name] = room(shape) if has_room else block.new_empty(shape)
        tensors[name][start : start + len(block)] = block
    return tensors, meta


def _meta(path: Path, header: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """The format version and the meta."""
    try:
        kept = json.loads(header[_KEY])
        version, meta = kept["version"], kept["meta"]
        if type(version) is not int or version < 1 or not isinstance(meta, dict):
            raise TypeError
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{path}: a safetensors file, but not a checkpoint of kgfast") from None
    if version > VERSION:
        raise ValueError(
            f"{path}: format version {version}; this kgfast reads up to {VERSION}: update it"
        )
    return version, meta


def write_beside(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, bring it to the disk, rename it.

    It is written in a folder of its own: safetensors makes temporary files, which a kill leaves,
    and makes them readable by their owner alone. The next write clears what is left. A folder that
    has the name is set aside.
    """
    scratch = path.with_name(path.name + ".tmp")
    fresh = scratch / path.name
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        fresh.touch()
        mode = fresh.stat().st_mode
        write(fresh)
        fresh.chmod(mode)
        sync(fresh)
        if path.is_dir():
            set_aside(path)
        os.replace(fresh, path)
    except (OSError, SafetensorError) as error:
        raise _os_error(error, path) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    sync(path.parent)


def set_aside(path: Path) -> Path:
    """Rename what cannot be read to a free name, ``<name>.broken`` or so; returns it."""
    names = (path.with_name(f"{path.name}.broken{'' if i == 1 else i}") for i in count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    os.rename(path, aside)
    return aside


def sync(path: Path) -> None:
    """Bring a file or the names in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _os_error(error: Exception, path: Path) -> OSError:
    """The failure as an OSError about the path: safetensors has its own class."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None:
        code = re.search(r"os error (\d+)|code: (\d+)", str(error))
        number = int(code[1] or code[2]) if code else errno.EIO
    reason = os.strerror(number) if number != errno.EIO else str(error)
    return OSError(number, f"cannot write a checkpoint: {reason}; the old one is intact", str(path))
