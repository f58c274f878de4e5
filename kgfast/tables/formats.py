"""Places of rows in files of several formats: each function reads a header, no rows.

``.npy`` (numpy's format description), safetensors (its README), ``torch.save`` (a zip archive of
plain records), HDF5 of PBG and GraphStorm, and rows with no header at all.
"""

import json
import struct
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgfast.frames import needed
from kgfast.graph import did_you_mean
from kgfast.tables.file_table import FileTable, InFile, Place
from kgfast.tables.protocol import Rows
from kgfast.text import each_key_once, reading, shown

_OF_NUMPY = {
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
_OF_SAFETENSORS = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_REALS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
TABLE_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def place_of(
    path: Path, offset: int, shape: Sequence[int], dtype: torch.dtype, name: str = "it"
) -> Place:
    """Return the place of rows of numbers that may be complex."""
    if len(shape) != 2:
        raise ValueError(f"{path}: {name} must have two axes; got shape {shown(list(shape))}")
    if not all(0 <= length < 1 << 63 for length in shape) or (shape[0] and not shape[1]):
        raise ValueError(
            f"{path}: {name} must have rows of at least one number; got shape {shown(list(shape))}"
        )
    real = _REALS.get(dtype, dtype)
    if real not in TABLE_DTYPES:
        raise TypeError(f"{path}: {name} must be floating point; got {dtype}")
    is_complex = dtype in _REALS
    return Place(path, offset, (shape[0], shape[1] * (1 + is_complex)), real, is_complex)


def npy(path: Path, name: str | None) -> Place:
    """Find an array of numpy, of format 1, 2 or 3."""
    _no_name(path, name)
    with path.open("rb") as file, reading(path, "not an array of numpy"):
        version = np.lib.format.read_magic(file)
        reader = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, by_columns, dtype = reader(file)
        offset = file.tell()
    if not dtype.isnative:
        raise TypeError(f"{path}: the order of bytes is not this machine's: {dtype}")
    if by_columns and len(shape) == 2 and min(shape) > 1:
        raise ValueError(
            f"{path}: columns lie one after the other (Fortran order), so that a row is spread "
            "over the whole file: save numpy.ascontiguousarray(array)"
        )
    if dtype.name not in _OF_NUMPY:
        raise TypeError(f"{path}: the array must be floating point; got {dtype}")
    return place_of(path, offset, shape, _OF_NUMPY[dtype.name])


def safetensors(path: Path, name: str | None) -> Place:
    """Find one tensor of a file of safetensors, whose header the library checks."""
    from safetensors import safe_open

    with reading(path, "truncated, or not a file of safetensors"):
        with safe_open(path, "numpy"):
            pass
        with path.open("rb") as file:  # the library does not say where tensors lie
            (size,) = struct.unpack("<Q", file.read(8))
            tensors = json.loads(file.read(size), object_pairs_hook=each_key_once)
        tensors.pop("__metadata__", None)
    chosen = _chosen(path, name, tensors)
    facts = tensors[chosen]
    if facts["dtype"] not in _OF_SAFETENSORS:
        raise TypeError(
            f"{path}: {shown(chosen)}: the tensor must be floating point; got "
            f"{shown(facts['dtype'])}"
        )
    first = 8 + size + facts["data_offsets"][0]
    return place_of(path, first, facts["shape"], _OF_SAFETENSORS[facts["dtype"]])


def torch_file(path: Path, name: str | None) -> Place:
    """Find a tensor that ``torch.save`` wrote: alone, or in dicts; ``a.b`` is ``["a"]["b"]``.

    Torch's loader of plain weights reads the file without the values of tensors.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    with path.open("rb") as file:
        is_archive = file.read(4) == b"PK\3\4"  # the test that torch uses
    if not is_archive:
        raise ValueError(
            f"{path}: cannot be read in place; torch.load of plain weights cannot read the file, "
            "or torch before 1.6 wrote it: save the tensors as .npy or .safetensors"
        )
    with reading(path, "torch.load of plain weights cannot read the file"):
        # the loader would swap bytes of values, but values are not loaded
        if _byte_order(path) != sys.byteorder.encode():
            raise ValueError(f"{path}: the order of bytes is not this machine's")
        with FakeTensorMode():
            held = torch.load(path, map_location="cpu", weights_only=True)
        tensors, records = dict(_tensors(held)), _records(path)
    chosen = _chosen(path, name, tensors)
    tensor = tensors[chosen]
    _check_plain(f"{path}: {shown(chosen) if chosen else 'it'}", tensor)
    offset = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
    if offset not in records:
        raise ValueError(
            f"{path}: cannot be read in place: the archive is compressed, or records do not lie "
            "as torch.save writes them; save the tensors as .npy or .safetensors"
        )
    start = int(tensor.storage_offset()) * tensor.dtype.itemsize
    if not 0 <= start <= records[offset] - tensor.numel() * tensor.dtype.itemsize:
        raise ValueError(
            f"{path}: contradicts itself: {list(tensor.shape)} of {tensor.dtype} from byte "
            f"{start} on in a record of {records[offset]} bytes"
        )
    return place_of(path, offset + start, tuple(tensor.shape), tensor.dtype)


def _byte_order(path: Path) -> bytes:
    reader: Any = torch._C.PyTorchFileReader(str(path))
    order: bytes = reader.get_record("byteorder") if reader.has_record("byteorder") else b"little"
    return order


def _check_plain(what: str, tensor: Tensor) -> None:
    """Check that a tensor's numbers lie unchanged in memory, row after row."""
    if tensor.layout != torch.strided:
        raise ValueError(f"{what} must be dense; got {tensor.layout}: save its .to_dense()")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"{what} must hold its numbers as they are; got a tensor that is conjugated or negated "
            "lazily, by a bit beside the numbers: save its .resolve_conj().resolve_neg()"
        )
    if tensor.ndim == 2 and tensor.numel() and tensor.stride() != (tensor.shape[1], 1):
        raise ValueError(
            f"{what}: rows do not lie one after the other (strides {list(tensor.stride())}): save "
            "its .contiguous()"
        )


def _records(path: Path) -> dict[int, int]:
    """Return the bytes of an archive's records by their offsets.

    The result is empty if a record is compressed, or if records do not lie in the order of their
    numbers, as torch supposes.
    """
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        found, numbers = {}, []
        for it in sorted(archive.infolist(), key=lambda it: it.header_offset):
            if it.compress_type != zipfile.ZIP_STORED:
                return {}
            # the local header may differ from the directory's entry
            file.seek(it.header_offset + 26)
            name, extra = struct.unpack("<HH", file.read(4))
            found[it.header_offset + 30 + name + extra] = it.file_size
            folder, _, last = it.filename.rpartition("/")
            if folder.endswith("/data") and last.isdecimal():
                numbers.append(int(last))
    return found if numbers == sorted(numbers) else {}


def _tensors(held: Any, prefix: str = "") -> list[tuple[str, Tensor]]:
    """Return the tensors in dicts of dicts, with names; a single tensor has the name ""."""
    if isinstance(held, Tensor):
        return [(prefix, held)]
    if not isinstance(held, Mapping):
        return []
    dot = f"{prefix}." if prefix else ""
    return [pair for key, value in held.items() for pair in _tensors(value, f"{dot}{key}")]


def _chosen(path: Path, name: str | None, names: Mapping[str, Any]) -> str:
    """Return the named tensor, or the only one."""
    if name is not None and name in names:
        return name
    found = sorted(names)
    if name is None and len(found) == 1:
        return found[0]
    if name is None:
        raise ValueError(
            f"{path} holds {len(found)} tensors: name one after a colon, as in "
            f'"{path.name}:{found[0] if found else "entity"}"; it has {shown(found)}'
        )
    raise ValueError(
        f"{path} holds no tensor {shown(name)}: it has {shown(found)}{did_you_mean(name, found)}"
    )


def _no_name(path: Path, name: str | None) -> None:
    if name is not None:
        raise ValueError(f"{path} holds one array, which has no name; got {shown(name)}")


READERS: dict[str, Callable[[Path, str | None], Place]] = {
    ".npy": npy,
    ".safetensors": safetensors,
    ".pt": torch_file,
    ".pth": torch_file,
    ".ckpt": torch_file,
}
_HDF5 = (".h5", ".hdf5")
_DATASET = "embeddings"  # name in the files of PBG and GraphStorm
_DAMAGED = "not a file of HDF5, damaged or truncated"


def open_file(path: Path, name: str | None, *, writable: bool) -> Rows:
    """Open the table of one file, by the ending of the file's name."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    ending = path.suffix.lower()
    if ending in _HDF5:
        return _open_hdf5(path, name, writable=writable)
    if ending not in READERS and zipfile.is_zipfile(path):  # torch.save, under any name
        return FileTable(torch_file(path, name), writable=writable)
    if ending not in READERS:
        known = ", ".join([*READERS, *_HDF5])
        raise ValueError(
            f"{path}: files that end in {known} have headers; rows without a header need columns= "
            "and dtype="
        )
    return FileTable(READERS[ending](path, name), writable=writable)


def open_raw(path: Path, columns: int, dtype: torch.dtype, offset: int, *, writable: bool) -> Rows:
    """Open rows without a header: as many as the file has from ``offset`` on."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    for name, value, least in (("columns", columns, 1), ("offset", offset, 0)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int; got {shown(value)}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}; got {value}")
    size = columns * dtype.itemsize
    count, rest = divmod(path.stat().st_size - offset, size)
    if rest or count < 0:
        raise ValueError(
            f"{path}: {path.stat().st_size:,} bytes are no whole number of rows of {columns} "
            f"{dtype} ({size} bytes) from byte {offset} on: truncated, or other rows than these"
        )
    return FileTable(place_of(path, offset, (count, columns), dtype), writable=writable)


def _open_hdf5(path: Path, name: str | None, *, writable: bool) -> Rows:
    """Open a dataset as a table, by default ``embeddings``, or the only one.

    Rows that lie one after the other in the file are read like rows of any file, rows in chunks
    through h5py. The file must hold the rows itself: a file of HDF5 can name any other file.
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
        if kind.name not in ("float16", "float32", "float64") or not kind.isnative:
            raise TypeError(f"{path}: {label} must be floating point; got {kind}")
        place = place_of(path, offset or 0, shape, _OF_NUMPY[kind.name], label)
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
