"""Tables in HDF5, as PBG (``embeddings_<type>_<part>.v<n>.h5``) and GraphStorm write them.

Rows that lie one after the other in the file are read as of any file; those in chunks, which may
be compressed, through h5py.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgfast.graph import shown
from kgfast.tables.files import FileTable, Place
from kgfast.tables.protocol import Rows, checked_range, checked_row_ids

_DATASET = "embeddings"  # what both call it
_DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


def open_hdf5(
    path: Path, name: str | None, place_of: Callable[..., Place], *, writable: bool
) -> Rows:
    """The table of a dataset, by default that of ``embeddings``, or of the only one.

    Raises
    ------
    ImportError
        Without h5py.
    ValueError, TypeError
        For another kind of file or dataset.
    """
    try:
        import h5py
    except ImportError:
        raise ImportError(f"{path}: HDF5 needs h5py: pip install h5py") from None
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path}: not a file of HDF5, or truncated: {error!s:.120}") from None
    names = _datasets(file, h5py)
    chosen = name if name is not None else _DATASET if _DATASET in names else None
    if chosen is None and len(names) == 1:
        chosen = names[0]
    if chosen not in names:
        file.close()
        what = "name a dataset after a colon" if chosen is None else f"no dataset {shown(chosen)}"
        raise ValueError(f"{path}: {what}: it has {shown(sorted(names))}")
    dataset = file[chosen]
    if dataset.dtype.name not in _DTYPES or not dataset.dtype.isnative:
        file.close()
        raise TypeError(f"{path}: {chosen} must be floating point; got {dataset.dtype}")
    dtype, shape = _DTYPES[dataset.dtype.name], tuple(dataset.shape)
    offset = dataset.id.get_offset()
    place = place_of(path, offset or 0, shape, dtype, chosen)
    if offset is not None:
        file.close()
        return FileTable(place, writable=writable)
    if writable:
        file.close()
        raise ValueError(f"{path}: {chosen} lies in chunks, which are only read")
    return Hdf5Table(place, dataset)


def _datasets(file: Any, h5py: Any) -> list[str]:
    found: list[str] = []
    file.visititems(lambda at, it: found.append(at) if isinstance(it, h5py.Dataset) else None)
    return found


class Hdf5Table(Rows):
    """A dataset in chunks.

    Parameters
    ----------
    place : Place
    dataset : h5py.Dataset
    """

    def __init__(self, place: Place, dataset: Any) -> None:
        self.place, self.path, self._dataset = place, place.path, dataset
        self.shape, self.dtype = place.shape, place.dtype
        self._lock = threading.Lock()
        self._facts = self._stat()

    @property
    def facts(self) -> tuple[int, ...]:
        """What tells that the file is the same: its size and time of change."""
        return self._facts

    def block(self, start: int, stop: int) -> Tensor:
        """Rows ``start .. stop - 1``.

        Raises
        ------
        IndexError
            For rows outside.
        ValueError
            If the file is not what it was when it was opened.
        """
        checked_range(start, stop, self.shape[0])
        out = torch.empty((stop - start, self.shape[1]), dtype=self.dtype, device="cpu")
        if len(out) and self.shape[1]:
            with self._lock:
                self._dataset.read_direct(out.numpy(), source_sel=slice(start, stop))
        if self._stat() != self._facts:
            raise ValueError(f"{self.path} changed while it was read; open it again")
        return out

    def rows(self, ids: Tensor) -> Tensor:
        """The rows of ids ``[B]``, in any order."""
        distinct, place = checked_row_ids(ids, 0, self.shape[0]).unique(return_inverse=True)
        out = torch.empty((len(distinct), self.shape[1]), dtype=self.dtype, device="cpu")
        for row, at in enumerate(distinct.tolist()):
            out[row] = self.block(at, at + 1)[0]
        return out[place]

    def where(self, row: int) -> str:
        """A row in words."""
        return f"{self.path}: row {row}"

    def _stat(self) -> tuple[int, ...]:
        found = self.path.stat()
        return found.st_size, found.st_mtime_ns

    def _held(self) -> str:
        return f"{self.path.name}: "
