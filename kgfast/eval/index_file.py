"""Safetensors file with the panels of an index, and the form of the packed tables.

The data begin at a multiple of 64 bytes, so mapped panels are aligned to lines of the cache.
"""

import json
import os
import struct
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.panels import Panels
from kgfast.kernels.scores import get_score
from kgfast.storage import Fingerprint
from kgfast.text import reading, shown
from kgfast.whole_files import write_whole

_KEY, _VERSION = "kgfast_index", 1
_DTYPES = {torch.float32: "F32", torch.int8: "I8"}
_BLOCK = 1 << 22  # numbers per step of a checksum
_LINE = 64  # bytes
_PANEL = tuple(it.name for it in fields(Panels) if it.name != "tensors")


def write_index(
    path: str | os.PathLike[str],
    made: tuple[str | None, bool],
    tables: Sequence[Tensor],
    panels: Sequence[Panels | None],
) -> None:
    """Write panels whole or not at all; ``made`` is the score and whether dims can be cropped."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent}: no such folder")
    held = [(place, it) for place, it in enumerate(panels) if it is not None]
    tensors = {f"{place}.{name}": it for place, own in held for name, it in own.tensors.items()}
    # The largest tensors first: their sizes are multiples of a line of the cache.
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].nbytes))
    facts = {
        "version": _VERSION,
        "score": made[0],
        "croppable": made[1],
        "tables": [{**_form(table), "checksum": _checksum(table)} for table in tables],
        "panels": [
            None if it is None else {name: getattr(it, name) for name in _PANEL} for it in panels
        ],
        "checksums": {name: _checksum(tensor) for name, tensor in tensors.items()},
    }

    def write(beside: Path) -> None:
        with beside.open("wb") as file:
            file.write(_header(json.dumps(facts), tensors))
            for tensor in tensors.values():
                file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)

    write_whole(path, write)


def _header(facts: str, tensors: dict[str, Tensor]) -> bytes:
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


def read_index(
    path: str | os.PathLike[str], score: str | None, tables: Sequence[Tensor]
) -> tuple[bool, list[Panels | None]]:
    """Map a file: return whether the index is croppable, and the panels of each table."""
    from safetensors import safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file of an index")
    with reading(path, "truncated, or no file of an index"), safe_open(path, "pt") as file:
        text = (file.metadata() or {}).get(_KEY)
        names = tuple(file.keys())
        tensors = {name: file.get_tensor(name) for name in names}
    if text is None:
        raise ValueError(f"{path}: not a file of kgfast.Index.save")
    with reading(path, "damaged"):
        facts = json.loads(text)
        if facts["version"] != _VERSION:
            raise ValueError(
                f"{path}: an index of version {shown(facts['version'])}; this kgfast reads "
                f"{_VERSION}: make the index again"
            )
        if facts["checksums"] != {name: _checksum(tensor) for name, tensor in tensors.items()}:
            raise ValueError("the panels do not have the checksums in the header")
        panels = [
            None if it is None else _panels(it, f"{place}.", tensors)
            for place, it in enumerate(facts["panels"])
        ]
        stored = [(_form_in_words(it), it["checksum"]) for it in facts["tables"]]
        croppable = bool(facts["croppable"])
        if facts["score"] != score:
            other = shown(facts["score"])
            raise ValueError(f"{path}: an index of the score {other}; this is {score!r}")
    ours = [_form_in_words(_form(table)) for table in tables]
    if ours != [form for form, _ in stored]:
        raise ValueError(
            f"{path}: an index of other tables, {' and '.join(form for form, _ in stored)}; the "
            f"model's are {' and '.join(ours)}"
        )
    for (_, checksum), table, own in zip(stored, tables, panels, strict=True):
        if own is not None:
            features = get_score(own.score).num_features(table.shape[1])
            sizes = own.score, own.num_rows, own.num_features
            if sizes != (score, len(table), features):
                raise ValueError(f"{path}: damaged: panels and table have different rows")
        if checksum != _checksum(table):
            raise ValueError(
                f"{path}: an index of another table of the same shape {list(table.shape)}: the "
                "checksums differ, so the model was trained since, or is another model"
            )
    return croppable, panels


def _form(table: Tensor) -> dict[str, Any]:
    return {"shape": list(table.shape), "dtype": str(table.dtype)}


def _form_in_words(facts: dict[str, Any]) -> str:
    return f"{shown(facts['shape'])} of {facts['dtype']!s:.20}"


def _panels(facts: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> Panels:
    for name, value in facts.items():
        wanted = str if name in ("number_format", "score") else int
        if type(value) is not wanted:
            raise TypeError(f"{name} must be of {wanted.__name__}; got {shown(value)}")
    own = {name: it for name, it in tensors.items() if name.startswith(prefix)}
    return Panels(**facts, tensors={name.removeprefix(prefix): it for name, it in own.items()})


def _checksum(tensor: Tensor) -> str:
    """Hash a tensor in blocks of rows, so that a view is never copied whole."""
    fingerprint = Fingerprint()
    step = max(1, _BLOCK // max(1, tensor[:1].numel()))
    for rows in tensor.detach().split(step):
        fingerprint.add(rows)
    return fingerprint.text()
