"""The folder of an index of known triples: numpy arrays, and ``known.json`` with their digests.

| file | holds |
|---|---|
| `tail.pairs.npy` | int64 `[P]`: head times relations plus relation, ascending |
| `tail.indptr.npy` | `[P + 1]`: pair p has the tails `indptr[p] .. indptr[p + 1] - 1` |
| `tail.indices.npy` | `[T]`: the tails, ascending within a pair |

`head.*` are for tails and relations, `relation.*` for heads and tails. Arrays are int32 if their
values fit.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgfast.graph.pair_index import PairIndex, check_sizes
from kgfast.text import reading, shown

MANIFEST = "known.json"
PARTS = ("pairs", "indptr", "indices")
_FORMAT, _VERSION = "kgfast known triples", 1
_HEADER = 128  # bytes of the header that numpy writes for an array of one axis
_HASHED = 1 << 24  # bytes that are hashed at once


@dataclass(frozen=True)
class Stored:
    """Contents of a folder; ``checksum`` is equal for equal triples in any files."""

    num_entities: int
    checksum: str
    indices: Mapping[str, PairIndex]


class ArrayFile:
    """File of a numpy array of one axis, for appending."""

    def __init__(self, path: Path, dtype: type[np.integer[Any]]) -> None:
        self.dtype, self.count = np.dtype(dtype), 0
        self._file = path.open("wb")
        self._hash = _hash()
        self._write_header()

    def append(self, values: np.ndarray[Any, Any]) -> None:
        values = np.ascontiguousarray(values, self.dtype)
        self.count += len(values)
        self._hash.update(values.data)
        self._file.write(values.data)

    def finish(self) -> dict[str, Any]:
        """Close the file; return the manifest's facts of the array."""
        self._file.seek(0)
        self._write_header()
        self._file.close()
        return _facts(self.dtype.name, self.count, self._hash)

    def _write_header(self) -> None:
        """Write a header, which numpy pads for arrays that grow."""
        facts = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.count,)}
        np.lib.format.write_array_header_1_0(self._file, facts)


def write_folder(folder: Path, sizes: tuple[int, int], indices: Mapping[str, PairIndex]) -> None:
    """Write indexes that are in memory; ``sizes`` are the numbers of entities and relations."""
    sides: dict[str, Any] = {}
    for side, index in indices.items():
        sides[side] = {}
        for name in PARTS:
            values = getattr(index, name).cpu().numpy()
            array = ArrayFile(folder / f"{side}.{name}.npy", values.dtype.type)
            array.append(values)
            sides[side][name] = array.finish()
    write_manifest(folder, sizes, sides)


def write_manifest(folder: Path, sizes: tuple[int, int], sides: Mapping[str, Any]) -> None:
    """Write sizes, and the facts of the arrays of each side."""
    num_entities, num_relations = sizes
    facts = {
        "format": _FORMAT,
        "version": _VERSION,
        "num_entities": num_entities,
        "num_relations": num_relations,
        "checksum": _checksum(num_relations, sides["tail"]),
        "sides": sides,
    }
    (folder / MANIFEST).write_text(json.dumps(facts, indent=1))


def checksum_of(tails: PairIndex) -> str:
    """Return the checksum of a folder of these triples, from tails in memory."""
    arrays = {}
    for name in PARTS:
        values, found = getattr(tails, name), _hash()
        for some in values.split(_HASHED // values.itemsize):
            found.update(some.cpu().numpy().data)
        arrays[name] = _facts(str(values.dtype).removeprefix("torch."), len(values), found)
    return _checksum(tails.num_others, arrays)


def _hash(data: Any = b"") -> Any:
    return hashlib.blake2b(data, digest_size=20)


def _facts(dtype: str, count: int, found: Any) -> dict[str, Any]:
    return {"dtype": dtype, "count": count, "blake2b": found.hexdigest()}


def _checksum(num_relations: int, arrays: Mapping[str, Any]) -> str:
    return str(_hash(json.dumps([num_relations, arrays]).encode()).hexdigest())


def open_folder(folder: Path, *, verify: bool) -> Stored:
    """Map the arrays of a folder; see :meth:`kgfast.KnownTriples.open`."""
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file: {folder} is no folder that KnownTriples.build wrote"
        )
    with reading(path, "not written by kgfast"):
        facts = json.loads(path.read_text(encoding="utf-8"))
        written = facts["format"], facts["version"]
    if written != (_FORMAT, _VERSION):
        raise ValueError(
            f"{path}: this kgfast reads {_FORMAT!r} of version {_VERSION}, not {shown(written)}: "
            "build the folder again"
        )
    with reading(path, "damaged"):
        sizes, sides = (facts["num_entities"], facts["num_relations"]), dict(facts["sides"])
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError(f"sizes must be numbers; got {shown(sizes)}")
        check_sizes(*sizes, has_relations="relation" in sides)
        if not {"tail", "head"} <= set(sides) <= {"tail", "head", "relation"}:
            raise ValueError(f"the sides are {shown(sorted(sides))}")
        counts = {arrays["indices"]["count"] for arrays in sides.values()}
        checksum = _checksum(sizes[1], sides["tail"])
        if len(counts) != 1 or checksum != facts["checksum"]:
            raise ValueError("the numbers contradict each other")
    return Stored(
        sizes[0],
        checksum,
        {side: mapped_index(folder / side, sizes, sides[side], verify=verify) for side in sides},
    )


def mapped_index(
    files: Path, sizes: tuple[int, int], facts: Mapping[str, Any], *, verify: bool = False
) -> PairIndex:
    """Map the arrays of the side that ``files`` names, such as ``folder/tail``."""
    num_entities, num_relations = sizes
    pairs, indptr, indices = (
        _mapped(Path(f"{files}.{name}.npy"), facts.get(name), verify) for name in PARTS
    )
    if pairs.dtype != torch.int64 or len(indptr) != len(pairs) + 1:
        raise ValueError(f"{files}.pairs.npy: damaged: contradicts indptr")
    num_others = num_entities if files.name == "relation" else num_relations
    return PairIndex(pairs, indptr, indices, num_entities, num_others, files)


def _mapped(path: Path, facts: Any, verify: bool) -> Tensor:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file: the folder is not whole; build the folder again"
        )
    with reading(path, "truncated or damaged"):
        dtype, count = {"int32": np.int32, "int64": np.int64}[facts["dtype"]], int(facts["count"])
        if path.stat().st_size != _HEADER + count * np.dtype(dtype).itemsize:
            raise ValueError(f"{count:,} values were written")
        # Private, since torch warns of memory that cannot be written to.
        values = np.memmap(path, dtype, "c", _HEADER, (count,))
        if verify and facts["blake2b"] != _hash(values).hexdigest():
            raise ValueError("the values are not those that were written")
        return torch.from_numpy(values)
