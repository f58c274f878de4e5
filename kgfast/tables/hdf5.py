"""Tables in HDF5 files of PBG (``embeddings_<type>_<part>.v<n>.h5``) and GraphStorm.

Rows that lie one after the other in the file are read like rows of any file. Rows in chunks, which
may be compressed, are read through h5py.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgfast.frames import needed
from kgfast.tables.file_table import FileTable, InFile, Place
from kgfast.tables.protocol import Rows
from kgfast.text import reading, shown

_DATASET = "embeddings"  # name in the files of PBG and GraphStorm
_DAMAGED = "not a file of HDF5, damaged or truncated"
_DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


def open_hdf5(
    path: Path, name: str | None, place_of: Callable[..., Place], *, writable: bool
) -> Rows:
    """Open a dataset as a table, by default ``embeddings``, or the only one.

    The file must hold the rows itself: a file of HDF5 can name any other file.
    """
    h5py = needed("h5py", f"{path}: HDF5")
    with ExitStack() as stack:
        with reading(path, _DAMAGED):
            file = stack.enter_context(h5py.File(path, "r"))
            names: list[str] = []  # links are not followed
            file.visititems(
                lambda at, it: names.append(at) if isinstance(it, h5py.Dataset) else None
            )
            names = [at for at in names if isinstance(at, str)]  # skips names that are not UTF-8
        chosen = name if name is not None else _DATASET if _DATASET in names else None
        if chosen is None and len(names) == 1:
            chosen = names[0]
        if chosen not in names:
            what = (
                "name a dataset after a colon" if chosen is None else f"no dataset {shown(chosen)}"
            )
            raise ValueError(f"{path}: {what}: it has {shown(sorted(names))}")
        label = chosen if chosen.isprintable() and len(chosen) <= 60 else shown(chosen)
        with reading(path, _DAMAGED):
            dataset = file[chosen]
            kind, shape, offset = dataset.dtype, tuple(dataset.shape or ()), dataset.id.get_offset()
            is_elsewhere = bool(dataset.external) or dataset.is_virtual
        if is_elsewhere:
            raise ValueError(f"{path}: {label} must hold its rows itself, and names other files")
        if kind.name not in _DTYPES or not kind.isnative:
            raise TypeError(f"{path}: {label} must be floating point; got {kind}")
        place = place_of(path, offset or 0, shape, _DTYPES[kind.name], label)
        if offset is not None:
            return FileTable(place, writable=writable)
        if writable:
            raise ValueError(f"{path}: {label} lies in chunks, which are only read")
        stack.pop_all()  # the dataset keeps the file open
        return Hdf5Table(place, dataset)


class Hdf5Table(InFile):
    """Dataset in chunks, read by h5py."""

    def __init__(self, place: Place, dataset: Any) -> None:
        super().__init__(place)
        self._dataset = dataset

    def _fill(self, start: int, out: Tensor) -> None:
        if out.numel():
            with self._lock, reading(self.path, _DAMAGED):
                self._dataset.read_direct(out.numpy(), source_sel=slice(start, start + len(out)))
