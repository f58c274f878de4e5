"""Known triples in a folder: numpy arrays that are mapped, and ``known.json``.

| file | holds |
|---|---|
| `tail.pairs.npy` | int64 `[P]`: head times relations plus relation, ascending |
| `tail.indptr.npy` | `[P + 1]`: pair p has the tails `indptr[p] .. indptr[p + 1] - 1` |
| `tail.indices.npy` | `[T]`: the tails, ascending within a pair |

`head.*` are for tails and relations. Arrays are int32 if their values fit.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgfast.graph.ids import id_rows
from kgfast.graph.pair_index import CHUNK, Column, Columns, PairIndex, build_index, check_sizes
from kgfast.text import bad_line, reading, shown

MANIFEST = "known.json"
_PARTS = ("pairs", "indptr", "indices")
_FORMAT = "kgfast known triples", 1
_STORED = ("tail", "head")
_TEXT = 1 << 23  # bytes of text that are read at once


def build_folder(paths: Sequence[Path], folder: Path) -> None:
    """Index files of triples, which are read twice, in an empty folder."""

    def rows() -> Iterator[Columns]:
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(f"{path}: no such file")
            for block in _of_array(path) if path.suffix == ".npy" else _of_text(path):
                if len(block):
                    yield block[:, 0], block[:, 1], block[:, 2]

    sizes, count = (0, 0), 0
    for head, relation, tail in rows():
        count += len(head)
        entities = int(max(head.max(), tail.max())) + 1
        sizes = max(sizes[0], entities), max(sizes[1], int(relation.max()) + 1)
    check_sizes(*sizes)
    most, free = 48 * count, shutil.disk_usage(folder).free
    if free < most:
        raise OSError(
            f"{folder}: {count:,} triples need up to {most:,} bytes, and the disk has {free:,} "
            "left: make room, or move the folder, and call again"
        )

    def room(side: str, name: str, dtype: type[np.integer[Any]], length: int) -> Column:
        path = folder / f"{side}.{name}.npy"
        array: Column = np.lib.format.open_memmap(path, "w+", dtype, (length,))
        return array

    tails = build_index("tail", rows, count, sizes, partial(room, "tail"))
    build_index("head", tails.rows, len(tails.indices), sizes, partial(room, "head"))
    for side in _STORED:
        (folder / f"{side}.keys.npy").unlink()
    _write_manifest(folder, tails)


def write_folder(folder: Path, indices: Mapping[str, PairIndex], **more: Any) -> None:
    """Write the indexes that a folder has, and more facts."""
    for side in _STORED:
        for name in _PARTS:
            np.save(folder / f"{side}.{name}.npy", getattr(indices[side], name).cpu().numpy())
    _write_manifest(folder, indices["tail"], **more)


def _write_manifest(folder: Path, tails: PairIndex, **more: Any) -> None:
    facts = {
        "format": _FORMAT[0],
        "version": _FORMAT[1],
        "num_entities": tails.num_anchors,
        "num_relations": tails.num_others,
        "checksum": checksum_of(tails),
        **more,
    }
    (folder / MANIFEST).write_text(json.dumps(facts, indent=1))


def checksum_of(tails: PairIndex) -> str:
    """Return the checksum of the triples of an index of tails."""
    checksum = hashlib.blake2b(str(tails.num_others).encode(), digest_size=20)
    for name in _PARTS:
        for some in getattr(tails, name).split(CHUNK):
            checksum.update(some.cpu().numpy().data)
    return checksum.hexdigest()


def open_folder(folder: Path) -> tuple[str, dict[str, PairIndex], int | None, int]:
    """Map the arrays of a folder; return the checksum, the index of each side, and times."""
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file: {folder} is no folder that KnownTriples.build wrote"
        )
    with reading(path, "not written by kgfast"):
        facts = json.loads(path.read_text(encoding="utf-8"))
        written = facts["format"], facts["version"]
    if written != _FORMAT:
        raise ValueError(
            f"{path}: this kgfast reads {_FORMAT[0]!r} of version {_FORMAT[1]}, not "
            f"{shown(written)}: build the folder again"
        )
    with reading(path, "damaged"):
        sizes = facts["num_entities"], facts["num_relations"]
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError(f"sizes must be numbers; got {shown(sizes)}")
        check_sizes(*sizes)
        checksum = str(facts["checksum"])
        num_times, times_of_key = facts.get("times", (None, 1))
        if times_of_key not in (1, num_times):
            raise ValueError(f"times must be numbers; got {shown(facts['times'])}")
    indices = {side: _mapped_index(folder / side, sizes) for side in _STORED}
    if len(indices["tail"].indices) != len(indices["head"].indices):
        raise ValueError(f"{folder}: damaged: the sides have different numbers of triples")
    return checksum, indices, num_times, times_of_key


def _mapped_index(files: Path, sizes: tuple[int, int]) -> PairIndex:
    pairs, indptr, indices = (_mapped(Path(f"{files}.{name}.npy")) for name in _PARTS)
    if pairs.dtype != torch.int64 or len(indptr) != len(pairs) + 1:
        raise ValueError(f"{files}.pairs.npy: damaged: contradicts indptr")
    return PairIndex(pairs, indptr, indices, *sizes, files)


def _mapped(path: Path) -> Tensor:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file: the folder is not whole; build the folder again"
        )
    with reading(path, "truncated or damaged"):
        # Private, since torch warns of memory that cannot be written to.
        values = np.load(path, mmap_mode="c")
        if values.ndim != 1 or values.dtype not in (np.int32, np.int64):
            raise ValueError(f"expected integers of one axis; got {values.dtype}, {values.shape}")
        return torch.from_numpy(values)


def _of_array(path: Path) -> Iterator[Column]:
    with reading(path, "truncated, or not an array of numpy"):
        values = np.load(path, mmap_mode="r")
    if values.dtype.kind not in "iu" or values.ndim != 2 or values.shape[1] != 3:
        raise ValueError(
            f"{path}: triples must be integers [T, 3]; got {values.dtype}, {list(values.shape)}"
        )
    for first in range(0, len(values), CHUNK):
        rows = values[first : first + CHUNK].astype(np.int64)
        bad = np.flatnonzero((rows < 0).any(1))
        if len(bad):
            row = first + int(bad[0])
            raise ValueError(f"{path}: row {row}: {values[row].tolist()} must be ids >= 0")
        yield rows


def _of_text(path: Path) -> Iterator[Column]:
    number = 1
    with path.open("rb") as file:
        while text := file.read(_TEXT):
            text += file.readline(_TEXT)
            if len(text) >= 2 * _TEXT and not text.endswith(b"\n"):
                raise bad_line(path, number + text.count(b"\n"), "the line does not end", b"")
            yield id_rows(path, text, number, dict.fromkeys(("head", "relation", "tail")))
            number += text.count(b"\n")
