"""Files of tensors: a checkpoint is atomic, checksummed, and read without running code.

A file is a safetensors file. The header holds a CRC-32 of the content, which detects damage, and,
in a checkpoint, everything that is no tensor as JSON. Tensors are written and read in blocks, so
that tables larger than memory are written and read like all others.
"""

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kgfast.models.tables import Room
from kgfast.text import reading, shown
from kgfast.whole_files import write_whole

VERSION = 1
_KEY, _CHECKSUM, _UNKNOWN = "kgfast", "crc32", "0" * 8
_BLOCK = 1 << 24  # bytes that are written or read at once
_KINDS = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

Stored = tuple[Mapping[str, Any], dict[str, Any]]  # tensors or tables by name, and the meta


def save(path: str | os.PathLike[str], tensors: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint; an older file under the path stays intact until the new one is complete.

    Parameters
    ----------
    path
        The file; a temporary folder is made beside it.
    tensors : mapping of str to Tensor or Table
        Tensors on any device, and tables that are read in blocks.
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
    header = {_KEY: json.dumps({"version": VERSION, "meta": meta})}
    write_whole(path, lambda fresh: write(fresh, tensors, header), lasting=True)


def write(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write a file of safetensors block by block, with a checksum in its header."""
    header: dict[str, Any] = {"__metadata__": {_CHECKSUM: _UNKNOWN, **metadata}}
    # In this order no number lies across its alignment.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    end = 0
    for name in names:
        rows, start = tensors[name], end
        end += math.prod(rows.shape) * rows.dtype.itemsize
        kind, shape = _KINDS[rows.dtype], list(rows.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    checksums = dict.fromkeys(names, 0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for block in blocks(tensors[name]):
                content = _bytes(block)
                checksums[name] = zlib.crc32(content, checksums[name])
                file.write(content)
        file.seek(8 + text.index(_UNKNOWN.encode()))
        file.write(_checksum(metadata, tensors, checksums).encode())


def blocks(rows: Any) -> Iterator[Tensor]:
    """Yield blocks of rows of a tensor or a table, on the CPU; a scalar is a row."""
    rows = torch.atleast_1d(rows.detach()) if isinstance(rows, Tensor) else rows
    step = max(1, _BLOCK // max(1, math.prod(rows.shape[1:]) * rows.dtype.itemsize))
    for start in range(0, rows.shape[0], step):
        stop = min(start + step, rows.shape[0])
        block = rows[start:stop] if isinstance(rows, Tensor) else rows.block(start, stop)
        yield block.detach().cpu().contiguous()


def _bytes(block: Tensor) -> Any:
    return block.reshape(-1).view(torch.uint8).numpy().data


def _checksum(
    metadata: Mapping[str, str], tensors: Mapping[str, Any], checksums: Mapping[str, int]
) -> str:
    others = {key: value for key, value in metadata.items() if key != _CHECKSUM}
    facts = {name: [_KINDS.get(rows.dtype), list(rows.shape)] for name, rows in tensors.items()}
    text = json.dumps([others, facts, checksums], sort_keys=True)
    return f"{zlib.crc32(text.encode()):08x}"


def load(
    path: str | os.PathLike[str], room: Room | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
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
    checksums: dict[str, int] = {}
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            meta = _meta(path, metadata)
            for name in file.keys():  # noqa: SIM118, no mapping
                stored = file.get_tensor(name)  # on the pages of the file
                has_room = stored.ndim == 2 and stored.dtype == torch.float32
                make = room if room and has_room else stored.new_empty
                tensors[name], checksums[name] = make(stored.shape), 0
                for rows, block in zip(blocks(tensors[name]), blocks(stored), strict=True):
                    checksums[name] = zlib.crc32(_bytes(block), checksums[name])
                    rows.copy_(block)
    except SafetensorError as error:
        raise ValueError(f"{path}: truncated, or not a checkpoint: {error}") from None
    if metadata.get(_CHECKSUM) != _checksum(metadata, tensors, checksums):
        raise ValueError(f"{path}: damaged: the checksum is not that of the content")
    return tensors, meta


def _meta(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> dict[str, Any]:
    with reading(path, "a safetensors file, but not a checkpoint of kgfast"):
        stored = json.loads(metadata[_KEY])
        version, meta = stored["version"], dict(stored["meta"])
        if type(version) is not int:
            raise TypeError(f"version {shown(version)}")
    if version != VERSION:
        raise ValueError(
            f"{path}: format version {version}; this kgfast reads {VERSION}: train again, or use "
            "the kgfast that wrote the file"
        )
    return meta


def of_part(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors ``model.<name>`` or ``optim.<name>`` by their own names."""
    start = f"{kind}."
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


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
