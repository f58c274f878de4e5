"""What an index holds, in a safetensors file: its panels, and what tables they are of.

The data begin at a multiple of 64 bytes, so that panels that are mapped into memory are read by
whole lines of a cache.
"""

import json
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from kgfast.eval.partial import Fingerprint
from kgfast.kernels.panels import Panels
from kgfast.kernels.scores import get_score
from kgfast.text import reading, shown

_KEY, _VERSION = "kgfast_index", 1
_DTYPES = {torch.float32: "F32", torch.int8: "I8"}
_BLOCK = 1 << 22  # numbers that a checksum takes at once
_LINE = 64  # bytes


@dataclass(frozen=True)
class TableFacts:
    """A table by its numbers.

    Attributes
    ----------
    shape : list of int
    dtype : str
    checksum : str
        Of its bytes, row by row.
    """

    shape: list[int]
    dtype: str
    checksum: str

    @classmethod
    def of(cls, table: Tensor) -> Self:
        """Those of a table ``[N, G]``."""
        return cls(list(table.shape), str(table.dtype), _checksum(table))

    @property
    def in_words(self) -> str:
        """Shape and dtype."""
        return f"{shown(self.shape)} of {self.dtype!s:.20}"


@dataclass(frozen=True)
class StoredIndex:
    """What a file holds.

    Attributes
    ----------
    score : str or None
    croppable : bool
    tables : sequence of TableFacts
    panels : sequence of Panels or None
        Of each table, or None.
    """

    score: str | None
    croppable: bool
    tables: Sequence[TableFacts]
    panels: Sequence[Panels | None]

    @property
    def formats(self) -> str:
        """The formats of its panels."""
        return "/".join(sorted({it.number_format for it in self.panels if it is not None}))

    def check(self, path: Any, score: str | None, tables: Sequence[Tensor]) -> None:
        """That it is of these tables, to the last bit.

        Raises
        ------
        ValueError
            If it is not.
        """
        if score != self.score:
            theirs = shown(self.score)
            raise ValueError(f"{path}: an index of the score {theirs}; this is {score!r}")
        found = [(list(table.shape), str(table.dtype)) for table in tables]
        if found != [(own.shape, own.dtype) for own in self.tables]:
            theirs = " and ".join(own.in_words for own in self.tables)
            ours = " and ".join(f"{shape} of {dtype}" for shape, dtype in found)
            raise ValueError(f"{path}: an index of other tables, {theirs}; the model's are {ours}")
        for own, table, panels in zip(self.tables, tables, self.panels, strict=True):
            if panels is not None and not _are_of(panels, score, table):
                raise ValueError(f"{path}: damaged: its panels are of other rows than its table")
            if own.checksum != _checksum(table):
                raise ValueError(
                    f"{path}: an index of another table of the same shape {own.shape}: the "
                    f"checksums differ, so the model was trained on, or is another"
                )


def _are_of(panels: Panels, score: str | None, table: Tensor) -> bool:
    features = get_score(panels.score).num_features(table.shape[1])
    found = panels.score, panels.num_rows, panels.num_features
    return found == (score, len(table), features)


def write_index(path: str | os.PathLike[str], index: StoredIndex) -> None:
    """Write a file, whole or not at all.

    Raises
    ------
    FileNotFoundError
        If its folder is not there.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent}: no such folder")
    held = [(place, it) for place, it in enumerate(index.panels) if it is not None]
    tensors = {f"{place}.{name}": it for place, own in held for name, it in own.tensors.items()}
    # The largest first: these end at a multiple of a line of the cache.
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].nbytes))
    facts = {
        "version": _VERSION,
        "byte_order": sys.byteorder,
        "score": index.score,
        "croppable": index.croppable,
        "tables": [asdict(table) for table in index.tables],
        "panels": [None if it is None else _facts_of(it) for it in index.panels],
        "checksums": {name: _checksum(tensor) for name, tensor in tensors.items()},
    }
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            file.write(_header(json.dumps(facts), tensors))
            for tensor in tensors.values():
                file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _header(facts: str, tensors: dict[str, Tensor]) -> bytes:
    """That of the format, with spaces at its end, as it allows."""
    header: dict[str, Any] = {"__metadata__": {_KEY: facts}}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.nbytes
        shape = list(tensor.shape)
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": shape,
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _LINE)
    return struct.pack("<Q", len(text)) + text


def read_index(path: str | os.PathLike[str]) -> StoredIndex:
    """Map a file into memory.

    Raises
    ------
    FileNotFoundError
        If there is none.
    ValueError
        If it is none of :func:`write_index`, damaged, or of another version or byte order.
    """
    from safetensors import safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file of an index")
    with reading(path, "truncated, or no file of an index"), safe_open(path, "pt") as file:
        text = (file.metadata() or {}).get(_KEY)
        names = tuple(file.keys())
        tensors = {name: file.get_tensor(name) for name in names}
    if text is None:
        raise ValueError(f"{path}: no file of kgfast.Index.save, but of something else")
    with reading(path, "damaged"):
        facts = json.loads(text)
        _check_origin(path, facts)
        if facts["checksums"] != {name: _checksum(tensor) for name, tensor in tensors.items()}:
            raise ValueError("its panels do not have the checksums that it names")
        panels = [
            None if it is None else _panels(it, _of_place(place, tensors))
            for place, it in enumerate(facts["panels"])
        ]
        tables = [TableFacts(**it) for it in facts["tables"]]
        return StoredIndex(facts["score"], facts["croppable"], tables, panels)


def _check_origin(path: Path, facts: Any) -> None:
    if facts["version"] != _VERSION:
        raise ValueError(
            f"{path}: an index of version {shown(facts['version'])}; this kgfast reads {_VERSION}: "
            f"make it again"
        )
    if facts["byte_order"] != sys.byteorder:
        raise ValueError(
            f"{path}: an index of a machine whose bytes are in {shown(facts['byte_order'])} order, "
            f"and this one's are {sys.byteorder}: make it again here"
        )


def _panels(facts: dict[str, Any], tensors: dict[str, Tensor]) -> Panels:
    """Return panels of what a file says of them."""
    for name, value in facts.items():
        wanted = str if name in ("number_format", "score") else int
        if type(value) is not wanted:
            raise TypeError(f"{name} must be of {wanted.__name__}; got {shown(value)}")
    return Panels(**facts, tensors=tensors)


def _facts_of(panels: Panels) -> dict[str, Any]:
    """All but the tensors."""
    return {
        "number_format": panels.number_format,
        "score": panels.score,
        "lanes": panels.lanes,
        "num_rows": panels.num_rows,
        "num_features": panels.num_features,
    }


def _of_place(place: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    start = f"{place}."
    return {name.removeprefix(start): it for name, it in tensors.items() if name.startswith(start)}


def _checksum(tensor: Tensor) -> str:
    """Of the bytes, in blocks of rows, so that one that is no whole is not copied at once."""
    fingerprint = Fingerprint()
    step = max(1, _BLOCK // max(1, tensor[:1].numel()))
    for rows in tensor.detach().split(step):
        fingerprint.add(rows)
    return fingerprint.text()
