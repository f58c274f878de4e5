"""The folder of an index of known triples: numpy arrays, and ``known.json`` with their names.

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
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgfast.graph.pair_index import PairIndex, check_sizes
from kgfast.text import reading, shown
from kgfast.whole_files import write_whole

MANIFEST = "known.json"
FORMAT, VERSION = "kgfast known triples", 1
PARTS = ("pairs", "indptr", "indices")
_HEADER = 128  # bytes before the values of an array
_HASHED = 1 << 24  # bytes that are hashed at once


@dataclass(frozen=True)
class Stored:
    """Contents of a folder; ``checksum`` is equal for equal triples in any files."""

    num_entities: int
    checksum: str
    indices: Mapping[str, PairIndex]


class GrowingArray:
    """File of a numpy array of one axis, for appending."""

    def __init__(self, path: Path, dtype: type[np.integer[Any]]) -> None:
        self.dtype, self.count = np.dtype(dtype), 0
        self._file = path.open("wb")
        self._hash = hashlib.blake2b(digest_size=20)
        self._file.write(b"\0" * _HEADER)

    def append(self, values: np.ndarray[Any, Any]) -> None:
        """Write values after all earlier values."""
        values = np.ascontiguousarray(values, self.dtype)
        self.count += len(values)
        self._hash.update(values.data)
        self._file.write(values.data)

    def finish(self) -> dict[str, Any]:
        """Write the header, and sync; return the manifest's facts of the file."""
        facts = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.count,)}
        text = repr(facts).encode()
        self._file.seek(0)
        self._file.write(np.lib.format.magic(1, 0) + (_HEADER - 10).to_bytes(2, "little"))
        self._file.write(text.ljust(_HEADER - 11) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"dtype": self.dtype.name, "count": self.count, "blake2b": self._hash.hexdigest()}


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write sizes, and the facts of :class:`GrowingArray` for the arrays of each side."""
    found = {"format": FORMAT, "version": VERSION} | dict(facts)
    found["checksum"] = _checksum(facts["num_relations"], facts["sides"]["tail"])
    write_json(folder / MANIFEST, found, indent=1)


def write_json(path: Path, facts: Mapping[str, Any], indent: int | None = None) -> None:
    """Write facts of a folder or a step, so that they outlive a loss of power."""
    text = json.dumps(facts, indent=indent)
    write_whole(path, lambda beside: beside.write_text(text), lasting=True)


def write_folder(folder: Path, sizes: tuple[int, int], indices: Mapping[str, PairIndex]) -> None:
    """Write indexes that are in memory; ``sizes`` are the numbers of entities and relations."""
    sides: dict[str, Any] = {}
    for side, index in indices.items():
        sides[side] = {}
        for name in PARTS:
            values = getattr(index, name).cpu().numpy()
            array = GrowingArray(folder / f"{side}.{name}.npy", values.dtype.type)
            array.append(values)
            sides[side][name] = array.finish()
    facts = {"num_entities": sizes[0], "num_relations": sizes[1], "sides": sides}
    write_manifest(folder, facts)


def checksum_of(tails: PairIndex) -> str:
    """Return the checksum of a folder of these triples, from tails in memory."""
    arrays = {}
    for name, values in zip(PARTS, (tails.pairs, tails.indptr, tails.indices), strict=True):
        found = hashlib.blake2b(digest_size=20)
        for some in values.split(_HASHED // values.itemsize):
            found.update(some.cpu().numpy().data)
        dtype = str(values.dtype).removeprefix("torch.")
        arrays[name] = {"dtype": dtype, "count": len(values), "blake2b": found.hexdigest()}
    return _checksum(tails.num_others, arrays)


def _checksum(num_relations: int, arrays: Mapping[str, Any]) -> str:
    text = json.dumps([num_relations, arrays])
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def open_folder(path: str | os.PathLike[str], *, verify: bool) -> Stored:
    """Map the arrays of a folder; see :meth:`kgfast.KnownTriples.open`."""
    folder = Path(path)
    facts = _manifest(folder)
    sizes = {
        "tail": (facts["num_entities"], facts["num_relations"]),
        "head": (facts["num_entities"], facts["num_relations"]),
        "relation": (facts["num_entities"], facts["num_entities"]),
    }
    indices = {}
    for side, arrays in facts["sides"].items():
        parts = [_mapped(folder / f"{side}.{name}.npy", arrays[name], verify) for name in PARTS]
        pairs, indptr, answers = parts
        indices[side] = PairIndex(pairs, indptr, answers, *sizes[side], folder / side)
    return Stored(facts["num_entities"], facts["checksum"], indices)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file: {folder} is no folder that KnownTriples.build wrote"
        )
    with reading(path, "not written by kgfast"):
        facts = json.loads(path.read_text(encoding="utf-8"))
        is_ours, version = facts["format"] == FORMAT, facts["version"]
    if not is_ours:
        raise ValueError(f"{path}: not written by kgfast: format {shown(facts['format'])}")
    if version != VERSION:
        raise ValueError(
            f"{path}: of version {shown(version)}; this kgfast reads version {VERSION}: build the "
            f"folder again"
        )
    with reading(path, "damaged"):
        numbers = [facts["num_entities"], facts["num_relations"]]
        sides = {side: [facts["sides"][side][name] for name in PARTS] for side in facts["sides"]}
        arrays = [it for parts in sides.values() for it in parts]
        numbers += [it["count"] for it in arrays]
        is_whole = all(type(it) is int and it >= 0 for it in numbers)
        is_whole &= {"tail", "head"} <= set(sides) <= {"tail", "head", "relation"}
        is_whole &= all(it["dtype"] in ("int32", "int64") for it in arrays)
        texts = [facts["checksum"], *(it["blake2b"] for it in arrays)]
        is_whole &= all(isinstance(it, str) for it in texts)
        is_whole &= len({ids["count"] for _, _, ids in sides.values()}) == 1
        for pairs, indptr, _ in sides.values():
            is_whole &= pairs["dtype"] == "int64" and indptr["count"] == pairs["count"] + 1
        if not is_whole:
            raise ValueError("the numbers contradict each other")
        check_sizes(*numbers[:2], has_relations="relation" in sides)
    return dict(facts)


def _mapped(path: Path, facts: Mapping[str, Any], verify: bool) -> Tensor:
    dtype, count = np.dtype(facts["dtype"]), facts["count"]
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file: the folder is not whole; build the folder again"
        )
    needed, size = _HEADER + count * dtype.itemsize, path.stat().st_size
    if size != needed:
        how = "truncated" if size < needed else "too long"
        raise ValueError(f"{path}: {how}: {needed:,} bytes were written; it has {size:,}")
    if verify and _digest(path) != facts["blake2b"]:
        raise ValueError(f"{path}: damaged: the values are not those that were written")
    if not count:
        return torch.from_numpy(np.empty(0, dtype))
    # Private, since torch warns of memory that cannot be written to.
    return torch.from_numpy(np.memmap(path, dtype, "c", _HEADER, (count,)))


def _digest(path: Path) -> str:
    found = hashlib.blake2b(digest_size=20)
    with path.open("rb") as file:
        file.seek(_HEADER)
        while read := file.read(_HASHED):
            found.update(read)
    return found.hexdigest()
