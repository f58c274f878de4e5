"""open(): a table from files of many formats."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from kgfast.tables.formats import TABLE_DTYPES, open_file, open_raw
from kgfast.tables.protocol import Rows, Table, TensorTable, as_rows, is_table
from kgfast.tables.shard import Shards
from kgfast.tables.views import OnDevice
from kgfast.text import shown

_One = str | os.PathLike[str] | Tensor | Table
Source = _One | Sequence[_One]


def open_table(
    source: Source,
    *,
    columns: int | None = None,
    dtype: torch.dtype | None = None,
    offset: int = 0,
    writable: bool = False,
    device: torch.device | str | None = None,
) -> Rows:
    """Open a table that may be larger than memory; only headers are read.

    Parameters
    ----------
    source : str, path, Table, Tensor, or a list of them
        ``"entity.npy"``; ``"e.safetensors:entity"`` and ``"e.pt:entity"``, where the name after the
        colon may be left out if the file holds one tensor (``a.b`` is ``["a"]["b"]`` of a ``.pt``);
        ``"embeddings_all_0.v50.h5"`` of PBG, with the dataset ``embeddings``, or
        ``"file.h5:name"``; any other file with ``columns`` and ``dtype``. A list is one table: the
        rows of all members in turn. A :class:`~kgfast.tables.Shard` in a list knows the place of
        its rows.
    columns, dtype, offset : int, torch.dtype, int
        Layout of rows without a header, one after the other from byte ``offset`` on.
    writable : bool
        Allow rows to be replaced in the files (:class:`WritableTable`).
    device : torch.device or str, optional
        The device of the model's other tensors, on which rows are returned; the CPU by default. On
        a GPU, blocks are copied from pinned memory while earlier blocks are in use.

    Returns
    -------
    Table
        A complex array has twice as many columns: ``re0 im0 re1 ...``.

    Raises
    ------
    FileNotFoundError
        If a file is not there.
    ImportError
        For HDF5 without h5py.
    ValueError, TypeError
        For a file that is truncated or damaged, holds no such table or leads to other files, and
        for shards that overlap, miss rows or differ in dtype or columns.

    Examples
    --------
    >>> shards = open_table([torch.zeros(2, 3), torch.zeros(0, 3), torch.ones(4, 3)])
    >>> shards
    Shards(3 shards, 6 rows, 3 columns, float32)
    >>> shards.rows(torch.tensor([5, 0])).tolist()
    [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """
    raw = (columns, dtype, offset)
    if isinstance(source, Sequence) and not isinstance(source, str):
        table: Rows = Shards([_opened(it, raw, writable) for it in source])
    else:
        table = _opened(source, raw, writable)
    return table if device is None else OnDevice(table, device)


def _opened(
    source: object,
    raw: tuple[int | None, torch.dtype | None, int],
    writable: bool,
) -> Rows:
    if isinstance(source, Tensor):
        return TensorTable(source)
    if is_table(source):
        return as_rows(source)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"source must be a path, a Table, a tensor or a list of them; got {shown(source)}"
        )
    columns, dtype, offset = raw
    if columns is None and dtype is None:
        path, name = _path_and_name(os.fspath(source))
        return open_file(path, name, writable=writable)
    if columns is None or dtype not in TABLE_DTYPES:
        raise TypeError(
            f"rows without a header need columns and dtype, a floating-point one; got "
            f"columns={columns} and dtype={shown(dtype)}"
        )
    return open_raw(Path(source), columns, dtype, offset, writable=writable)


def _path_and_name(source: str) -> tuple[Path, str | None]:
    """Return the path and the name after the last colon, unless the colon is part of the path."""
    path, colon, name = source.rpartition(":")
    is_drive = len(path) == 1 and name[:1] in ("\\", "/")
    if not colon or is_drive or Path(source).exists():
        return Path(source), None
    return Path(path), name
