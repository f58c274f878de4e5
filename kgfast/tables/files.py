"""Files of tensors and tables: checksummed, and read without running code.

A file is a safetensors file, whose header holds a CRC-32 of the content, which detects damage.
Tensors are written and read in blocks, so that tables larger than memory are written and read like
all others.
"""

import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgfast.text import shown

Room = Callable[[Sequence[int]], Tensor]
_CHECKSUM, _UNKNOWN = "crc32", "0" * 8
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


def write(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write a file of safetensors block by block, with a checksum in its header."""
    header: dict[str, Any] = {"__metadata__": {_CHECKSUM: _UNKNOWN, **metadata}}
    # In this order no number lies across its alignment.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    end = 0
    for name in names:
        rows, start = tensors[name], end
        if rows.dtype not in _KINDS:
            raise TypeError(f"{name} is of {rows.dtype}, which no file of kgfast holds")
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


def read(path: str | os.PathLike[str], room: Room | None = None) -> dict[str, Tensor]:
    """Read the tensors of a file on the CPU; ``room`` allocates those of float32 and two axes.

    A ValueError says that the file is truncated, or damaged since :func:`write` wrote it.
    """
    tensors: dict[str, Tensor] = {}
    checksums: dict[str, int] = {}
    with _opened(path) as file:
        metadata = file.metadata() or {}
        for name in file.keys():  # noqa: SIM118, no mapping
            stored = file.get_tensor(name)  # on the pages of the file
            has_room = stored.ndim == 2 and stored.dtype == torch.float32
            make = room if room and has_room else stored.new_empty
            tensors[name], checksums[name] = make(stored.shape), 0
            for rows, block in zip(blocks(tensors[name]), blocks(stored), strict=True):
                checksums[name] = zlib.crc32(_bytes(block), checksums[name])
                rows.copy_(block)
    if metadata.get(_CHECKSUM) != _checksum(metadata, tensors, checksums):
        raise ValueError(f"{path}: damaged: the checksum is not that of the content")
    return tensors


def metadata_of(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the texts in the header of a file; a ValueError says that the file is truncated."""
    with _opened(path) as file:
        return dict(file.metadata() or {})


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{path}: truncated, or not a checkpoint: {error}") from None


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
