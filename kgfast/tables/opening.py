"""Tables in files: rows that lie one after the other, read when needed and never mapped.

Reading keeps the pages of a file out of the process. A file that shrinks during a run is an error,
whereas a mapped file would end the process.
"""

import json
import os
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgfast.graph import did_you_mean
from kgfast.storage import bytes_of
from kgfast.tables.protocol import (
    Rows,
    Table,
    TensorTable,
    as_rows,
    checked_range,
    checked_row_ids,
    is_table,
)
from kgfast.tables.shard import Shards
from kgfast.tables.views import OnDevice
from kgfast.text import each_key_once, reading, shown

_CALL = 1 << 28  # bytes of one read: systems stop at 2 GiB
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_OF_SAFETENSORS = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}

_One = str | os.PathLike[str] | Tensor | Table


def open_table(source: _One | Sequence[_One], *, device: torch.device | str | None = None) -> Rows:
    """Open a table that may be larger than memory; only headers are read.

    Parameters
    ----------
    source : str, path, Table, Tensor, or a list of them
        ``"entity.npy"``; ``"e.safetensors:entity"``, where the name after the colon may be left out
        if the file holds one tensor. A list is one table: the rows of all members in turn. Other
        files are read by an object of your own with the members of
        :class:`~kgfast.tables.Table`, or mapped: ``torch.load(path, mmap=True)``.
    device : torch.device or str, optional
        The device of the model's other tensors, on which rows are returned; the CPU by default. On
        a GPU, blocks are copied from pinned memory while earlier blocks are in use.

    Returns
    -------
    Table

    Raises
    ------
    FileNotFoundError
        If a file is not there.
    ValueError, TypeError
        For a file that is truncated or damaged, or holds no such table, and for members of a list
        that differ in dtype or columns.

    Examples
    --------
    >>> shards = open_table([torch.zeros(2, 3), torch.zeros(0, 3), torch.ones(4, 3)])
    >>> shards
    Shards(3 shards, 6 rows, 3 columns, float32)
    >>> shards.rows(torch.tensor([5, 0])).tolist()
    [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """
    if isinstance(source, Sequence) and not isinstance(source, str):
        table: Rows = Shards([_opened(member) for member in source])
    else:
        table = _opened(source)
    return table if device is None else OnDevice(table, device)


def _opened(source: object) -> Rows:
    if isinstance(source, Tensor):
        return TensorTable(source)
    if is_table(source):
        return as_rows(source)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"source must be a path, a Table, a tensor or a list of them; got {shown(source)}"
        )
    text = os.fspath(source)
    path, _, name = text.rpartition(".safetensors:")
    if path and not Path(text).exists():
        return _in_safetensors(Path(f"{path}.safetensors"), name)
    if text.endswith(".npy"):
        return _in_npy(Path(text))
    if text.endswith(".safetensors"):
        return _in_safetensors(Path(text), None)
    raise ValueError(
        f"{text}: files end in .npy or .safetensors; pass other files as a tensor, such as "
        "torch.load(path, mmap=True), or as an object with shape, dtype, block and rows"
    )


def _in_npy(path: Path) -> "FileTable":
    _check_is_file(path)
    with reading(path, "truncated, or not an array of numpy"):
        values: Any = np.load(path, mmap_mode="r")
    if not values.dtype.isnative:
        raise TypeError(f"{path}: the order of bytes is not this machine's: {values.dtype}")
    if values.size > 1 and not values.flags.c_contiguous:
        raise ValueError(
            f"{path}: columns lie one after the other (Fortran order), so that a row is spread "
            "over the whole file: save numpy.ascontiguousarray(array)"
        )
    dtype = getattr(torch, values.dtype.name, values.dtype)
    return FileTable(path, values.offset, values.shape, dtype, "the array")


def _in_safetensors(path: Path, name: str | None) -> "FileTable":
    """Find one tensor of a file of safetensors, whose header the library checks."""
    from safetensors import safe_open

    _check_is_file(path)
    with reading(path, "truncated, or not a file of safetensors"):
        with safe_open(path, "numpy"):
            pass
        with path.open("rb") as file:  # the library does not say where tensors lie
            (size,) = struct.unpack("<Q", file.read(8))
            tensors = json.loads(file.read(size), object_pairs_hook=each_key_once)
        tensors.pop("__metadata__", None)
    names = sorted(tensors)
    if name is None and len(names) == 1:
        name = names[0]
    if name not in tensors:
        hint = "name one after a colon" if name is None else f"no tensor {shown(name)}"
        raise ValueError(f"{path}: {hint}: it has {shown(names)}{did_you_mean(name, names)}")
    facts = tensors[name]
    dtype = _OF_SAFETENSORS.get(facts["dtype"], facts["dtype"])
    return FileTable(path, 8 + size + facts["data_offsets"][0], facts["shape"], dtype, shown(name))


def _check_is_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")


class FileTable(Rows):
    """Table with rows one after the other in one file, after ``offset`` bytes.

    A TypeError or ValueError calls rows of another kind by ``name``.
    """

    def __init__(
        self, path: Path, offset: int, shape: Sequence[int], dtype: Any, name: str = "the rows"
    ) -> None:
        if dtype not in _DTYPES:
            raise TypeError(f"{path}: {name} must be floating point; got {dtype}")
        if len(shape) != 2 or (shape[0] and not shape[1]):
            raise ValueError(
                f"{path}: {name} must have two axes, and rows of at least one number; got shape "
                f"{shown(list(shape))}"
            )
        self.path, self.offset = path, offset
        self.shape, self.dtype = (shape[0], shape[1]), dtype
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        self._lock = threading.Lock()
        self._state = self._stat()

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of ids ``[B]``; rows next to each other are read together."""
        ids = checked_row_ids(ids, 0, len(self))
        distinct, place = ids.unique(return_inverse=True)
        rows = self._empty(len(distinct))
        ends = [*(distinct.diff() != 1).nonzero()[:, 0].add(1).tolist(), len(distinct)]
        first = 0
        for last in ends:
            if first < last:
                self.read_into(int(distinct[first]), rows[first:last])
            first = last
        return rows[place]

    def read_into(self, start: int, out: Tensor) -> None:
        """Fill ``out [n, G]``, contiguous; a file that changed since the opening is an error."""
        checked_range(start, start + len(out), len(self))
        offset = self.offset + start * self.row_bytes
        done, view = 0, bytes_of(out.view(-1)).data  # a view of `out` itself: another layout raises
        while done < len(view):
            count = self._read(view[done : done + _CALL], offset + done)
            if not count:
                break
            done += count
        state = self._stat()
        if state != self._state or done < len(view):
            (size, _), (was, _) = state, self._state
            how = f"its size was {was:,} and is {size:,}" if size != was else "it was written to"
            raise ValueError(
                f"{self.path} changed while it was read: {how}; open the file again and begin anew"
            )

    def where(self, row: int) -> str:
        return f"{self.path}: row {row}"

    def _read(self, part: memoryview, offset: int) -> int:
        if hasattr(os, "preadv"):  # moves no position, which forked processes share
            return os.preadv(self._file.fileno(), [part], offset)
        with self._lock:
            self._file.seek(offset)
            return self._file.readinto(part) or 0

    def mapped(self) -> Tensor:
        """Return all rows as a tensor on the pages of the file, which must not change."""
        if not len(self):
            return self.block(0, 0)
        size = len(self) * self.row_bytes
        # Private, since torch warns of memory that cannot be written to.
        pages = np.memmap(self.path, np.uint8, "c", self.offset, (size,))
        return torch.from_numpy(pages).view(self.dtype).view(self.shape)

    def close(self) -> None:
        """Close the file; the table reads nothing afterwards."""
        self._file.close()

    def __reduce__(self) -> tuple[object, ...]:
        return FileTable, (self.path, self.offset, self.shape, self.dtype)

    def _stat(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def _held(self) -> str:
        return f"{self.path.name}: "
