"""The file of a checkpoint: atomic, checksummed, and read without running code.

A safetensors file holds the tensors and, as JSON in its header, everything else. A file is written
under another name, synced and renamed, so a file with the final name is always complete. A CRC-32
over header and tensors detects damage (0.03 s for 100 MB). A file of format 1, of earlier versions,
may have no checksum; one that is there is compared.
"""

import errno
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kgfast.whole_files import write_durably

VERSION = 2
_WITHOUT_CHECKSUM = 1
_KEY, _CHECKSUM = "kgfast", "crc32"
_NUMBERS = 1 << 23  # numbers of a block

State = tuple[dict[str, Tensor], dict[str, Any]]
Room = Callable[[Sequence[int]], Tensor]
Block = tuple[str, list[int], int, Tensor]  # name, shape of the whole, first row, rows


def save(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> None:
    """Write a checkpoint; an older file under the path stays intact until the new one is complete.

    Parameters
    ----------
    path
        The file; a temporary folder is made beside it.
    tensors : mapping of str to Tensor
        Tensors of any dtype and device. Contiguous tensors on the CPU are not copied.
    meta : mapping
        Values that JSON can hold.

    Raises
    ------
    OSError
        If the file cannot be written: the message names the path.
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
    write_durably(path, lambda fresh: _save_file(rows, fresh, header), "a checkpoint")


def _save_file(rows: dict[str, Tensor], path: Path, header: dict[str, str]) -> None:
    """Write a file; raise the OSError inside safetensors' own error."""
    try:
        save_file(rows, path, header)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)|code: (\d+)", str(error))
        number = int(code[1] or code[2]) if code else errno.EIO
        raise OSError(number, os.strerror(number) if code else str(error)) from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    rows: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        row = tensor.detach().cpu().contiguous()
        storage = row.untyped_storage().data_ptr()
        rows[name] = row.clone() if storage and storage in storages else row
        storages.add(storage)
    return rows


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    value = zlib.crc32(text.encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(_kind(name, tensor.dtype, tensor.shape), value)
        value = _with_bytes(tensor, value)
    return f"{value:08x}"


def _kind(name: str, dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    return f"|{name}|{dtype}|{list(shape)}|".encode()


def _with_bytes(tensor: Tensor, value: int) -> int:
    if not tensor.numel():
        return value
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)


def load(path: str | os.PathLike[str], room: Room | None = None) -> State:
    """Read the tensors of a checkpoint, on the CPU, and its meta.

    Parameters
    ----------
    path
    room : callable, optional
        Allocates float32 tensors of two axes, for tables larger than memory.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is truncated, damaged, no checkpoint of kgfast, or of a later version: the
        message names the path.
    """
    tensors: dict[str, Tensor] = {}
    with _opened(path) as opened:
        for name, shape, start, block in _blocks(opened, None if room is None else _NUMBERS):
            if room is None or not shape:
                tensors[name] = block
                continue
            if not start:
                has_room = block.dtype == torch.float32 and len(shape) == 2
                tensors[name] = room(shape) if has_room else block.new_empty(shape)
            tensors[name][start : start + len(block)] = block
        return tensors, opened.meta


def load_meta(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the meta of a checkpoint without reading or checking its tensors.

    Raises
    ------
    FileNotFoundError, ValueError
        For the reasons of :func:`load`.
    """
    with _opened(path) as opened:
        return opened.meta


def blocks(path: str | os.PathLike[str]) -> Iterator[Block]:
    """Yield name, shape, first row and rows of each block of each tensor, within bounded memory.

    The checksum is compared after the last block.

    Raises
    ------
    FileNotFoundError, ValueError
        For the reasons of :func:`load`.
    """
    with _opened(path) as opened:
        yield from _blocks(opened, _NUMBERS)


class _Opened(NamedTuple):
    """Open checkpoint, with the contents of the header."""

    path: Path
    file: Any
    header: dict[str, str]
    version: int
    meta: dict[str, Any]


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[_Opened]:
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such checkpoint")
    if not path.is_file():
        raise ValueError(f"{path}: a {'folder' if path.is_dir() else 'device'}, not a checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, str] = file.metadata() or {}
            yield _Opened(path, file, header, *_meta(path, header))
    except SafetensorError as error:
        raise ValueError(f"{path}: truncated, or not a checkpoint: {error}") from None


def _blocks(opened: _Opened, most: int | None) -> Iterator[Block]:
    """Yield blocks of ``most`` numbers, or whole tensors, in the order of the checksum."""
    file, found = opened.file, zlib.crc32(opened.header[_KEY].encode())
    for name in sorted(file.keys()):
        part = file.get_slice(name)
        shape: list[int] = part.get_shape()
        count = shape[0] if shape else 1
        step = max(1, count if most is None else most // max(1, math.prod(shape[1:])))
        for start in range(0, max(1, count), step):
            stop = min(start + step, count)
            block = file.get_tensor(name) if step >= count else part[start:stop]
            if not start:
                found = zlib.crc32(_kind(name, block.dtype, shape), found)
            found = _with_bytes(block, found)
            yield name, shape, start, block
    said = opened.header.get(_CHECKSUM)
    has_none = opened.version == _WITHOUT_CHECKSUM and said is None
    if not has_none and said != f"{found:08x}":
        raise ValueError(
            f"{opened.path}: damaged: the checksum is {said}, and that of the content {found:08x}"
        )


def _meta(path: Path, header: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    try:
        kept = json.loads(header[_KEY])
        version, meta = kept["version"], kept["meta"]
        if type(version) is not int or version < 1 or not isinstance(meta, dict):
            raise TypeError
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{path}: a safetensors file, but not a checkpoint of kgfast") from None
    if version > VERSION:
        raise ValueError(
            f"{path}: format version {version}; this kgfast reads up to {VERSION}: update kgfast"
        )
    return version, meta


def of_part(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the model or of the optimizer, by their own names.

    >>> list(of_part("model", {"model.entity": Tensor(), "optim.entity.step": Tensor()}))
    ['entity']
    """
    prefix = f"{part}."
    return {
        name.removeprefix(prefix): it for name, it in tensors.items() if name.startswith(prefix)
    }


def check_like(name: str, held: Any, own: Mapping[str, Any] | None) -> None:
    """Raise a ValueError unless stored numbers ``held`` have the keys and types of ``own``.

    A None in ``own`` admits any number; ``own`` None means that the run has no such object.
    """
    if own is None or held is None:
        if held is not own:
            raise ValueError(f"{name} must be {'missing' if own is None else 'there'}")
        return
    if not isinstance(held, Mapping):
        raise ValueError(f"{name} must be a mapping; got {held!r:.60}")
    check_names(name, held, set(own))
    for key, value in own.items():
        allowed = (int,) if type(value) is int else (int, float)
        number = held[key]
        if not (type(number) in allowed or (number is None and value is None)):
            raise ValueError(f"{name}.{key} must be a number; got {number!r:.60}")


def check_tensors(name: str, held: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless tensors have the names, shapes and dtypes of ``own``."""
    check_names(name, held, set(own))
    for key, tensor in held.items():
        if tensor.shape != own[key].shape or tensor.dtype != own[key].dtype:
            raise ValueError(
                f"{name}.{key} must be {own[key].dtype} {list(own[key].shape)}; got "
                f"{tensor.dtype} {list(tensor.shape)}"
            )


def check_names(name: str, held: Mapping[str, Any], expected: set[str]) -> None:
    """Raise a ValueError that names the first missing or unknown key."""
    for key in sorted(expected - set(held)):
        raise ValueError(f"{name}.{key} is missing")
    for key in sorted(set(held) - expected):
        raise ValueError(f"{name}.{key} is not known; known: {', '.join(sorted(expected)) or '-'}")
