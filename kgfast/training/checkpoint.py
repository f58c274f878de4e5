"""The file of a checkpoint: atomic, checksummed, and read without running code.

A safetensors file holds the tensors and, as JSON in its header, everything else. A file is written
under another name, synced and renamed, so a file with the final name is always complete. A CRC-32
over header and tensors detects damage (0.03 s for 100 MB).
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

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, uint8

from kgfast.text import shown
from kgfast.whole_files import write_durably

VERSION = 1
_KEY, _CHECKSUM = "kgfast", "crc32"
_NUMBERS = 1 << 23  # numbers of a block

Stored = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, and the meta
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
    text = json.dumps({"version": VERSION, "meta": meta})
    rows: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():  # safetensors refuses shared memory
        row = tensor.detach().cpu().contiguous()
        storage = row.untyped_storage().data_ptr()
        rows[name] = row.clone() if storage and storage in storages else row
        storages.add(storage)
    checksum = zlib.crc32(text.encode())
    for name, row in sorted(rows.items()):
        checksum = _with_bytes(row, _with_kind(name, row, row.shape, checksum))
    header = {_KEY: text, _CHECKSUM: f"{checksum:08x}"}
    write_durably(Path(path), lambda fresh: _save_file(rows, fresh, header), "a checkpoint")


def _save_file(rows: dict[str, Tensor], path: Path, header: dict[str, str]) -> None:
    """Write a file; raise the OSError inside safetensors' own error."""
    try:
        save_file(rows, path, header)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)|code: (\d+)", str(error))
        number = int(code[1] or code[2]) if code else errno.EIO
        raise OSError(number, os.strerror(number) if code else str(error)) from error


def _with_kind(name: str, rows: Tensor, shape: Sequence[int], checksum: int) -> int:
    return zlib.crc32(f"|{name}|{rows.dtype}|{list(shape)}|".encode(), checksum)


def _with_bytes(rows: Tensor, checksum: int) -> int:
    if not rows.numel():
        return checksum
    return zlib.crc32(rows.reshape(-1).view(uint8).numpy().data, checksum)


def load(path: str | os.PathLike[str], room: Room | None = None) -> Stored:
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
        If the file is truncated, damaged, no checkpoint of kgfast, or of another version: the
        message names the path.
    """
    tensors: dict[str, Tensor] = {}
    with _opened(path) as opened:
        for name, shape, start, block in _blocks(opened, None if room is None else _NUMBERS):
            if room is None or not shape:
                tensors[name] = block
                continue
            if not start:
                tensors[name] = new_table(block, shape, room)
            tensors[name][start : start + len(block)] = block
    return tensors, opened.meta


def new_table(block: Tensor, shape: Sequence[int], room: Room | None) -> Tensor:
    """Allocate a tensor for blocks like ``block``, by ``room`` if it takes such tensors."""
    has_room = room is not None and len(shape) == 2 and str(block.dtype) == "torch.float32"
    return room(shape) if room is not None and has_room else block.new_empty(shape)


def load_meta(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the meta of a checkpoint without reading or checking its tensors."""
    with _opened(path) as opened:
        return opened.meta


def blocks(path: str | os.PathLike[str]) -> Iterator[Block]:
    """Yield name, shape, first row and rows of each block of each tensor, within bounded memory.

    The checksum is compared after the last block. Errors are those of :func:`load`.
    """
    with _opened(path) as opened:
        yield from _blocks(opened, _NUMBERS)


class _Opened(NamedTuple):
    path: Path
    file: Any
    header: dict[str, str]
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
            yield _Opened(path, file, header, _meta(path, header))
    except SafetensorError as error:
        raise ValueError(f"{path}: truncated, or not a checkpoint: {error}") from None


def _meta(path: Path, header: Mapping[str, str]) -> dict[str, Any]:
    try:
        stored = json.loads(header[_KEY])
        version, meta = stored["version"], stored["meta"]
        if type(version) is not int or not isinstance(meta, dict):
            raise TypeError
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{path}: a safetensors file, but not a checkpoint of kgfast") from None
    if version != VERSION:
        raise ValueError(
            f"{path}: format version {version}; this kgfast reads {VERSION}: train again, or use "
            "the kgfast that wrote the file"
        )
    return meta


def _blocks(opened: _Opened, most: int | None) -> Iterator[Block]:
    """Yield blocks of ``most`` numbers, or whole tensors, in the order of the checksum."""
    checksum = zlib.crc32(opened.header[_KEY].encode())
    for name in sorted(opened.file.keys()):
        stored = opened.file.get_slice(name)
        shape: list[int] = stored.get_shape()
        count = shape[0] if shape else 1
        step = max(1, count if most is None else most // max(1, math.prod(shape[1:])))
        for start in range(0, max(1, count), step):
            whole = step >= count
            block = opened.file.get_tensor(name) if whole else stored[start : start + step]
            if not start:
                checksum = _with_kind(name, block, shape, checksum)
            checksum = _with_bytes(block, checksum)
            yield name, shape, start, block
    if opened.header.get(_CHECKSUM) != f"{checksum:08x}":
        raise ValueError(
            f"{opened.path}: damaged: the checksum is {opened.header.get(_CHECKSUM)}, and that of "
            f"the content {checksum:08x}"
        )


def of_part(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the model or of the optimizer, by their own names.

    >>> list(of_part("model", {"model.entity": Tensor(), "optim.entity.step": Tensor()}))
    ['entity']
    """
    prefix = f"{part}."
    return {
        name.removeprefix(prefix): it for name, it in tensors.items() if name.startswith(prefix)
    }


def check_tensors(name: str, stored: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless tensors have the names, shapes and dtypes that are expected."""
    for key in sorted(expected.keys() - stored.keys()):
        raise ValueError(f"{name}.{key} is missing")
    for key in sorted(stored.keys() - expected.keys()):
        raise ValueError(f"{name}.{key} is not known; known: {shown(sorted(expected), 200)}")
    for key, tensor in stored.items():
        other = expected[key]
        if tensor.shape != other.shape or tensor.dtype != other.dtype:
            raise ValueError(
                f"{name}.{key} must be {other.dtype} {list(other.shape)}; got "
                f"{tensor.dtype} {list(tensor.shape)}"
            )
