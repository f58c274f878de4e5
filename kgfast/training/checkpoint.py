"""Checkpoints: files of tensors, with everything that is no tensor as JSON in the header."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from kgfast.tables.files import Room, metadata_of, read, write
from kgfast.text import reading, shown
from kgfast.whole_files import write_whole

VERSION = 1
_KEY = "kgfast"
Stored = tuple[Mapping[str, Any], dict[str, Any]]  # tensors or tables by name, and the meta


def save(path: str | os.PathLike[str], tensors: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint; an older file under the path stays intact until the new one is complete.

    Parameters
    ----------
    path
        The file; a temporary folder is made beside it.
    tensors : mapping of str to Tensor or Table
        Tensors on any device, and tables that are read in blocks.
    meta : mapping
        Values that JSON can hold.

    Raises
    ------
    OSError
        If the file cannot be written: the message names the path.
    TypeError
        If JSON cannot hold ``meta``.

    Examples
    --------
    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/a.safetensors", {"x": torch.ones(2)}, {"step": 3})
    ...     load(f"{folder}/a.safetensors")
    ({'x': tensor([1., 1.])}, {'step': 3})
    """
    header = {_KEY: json.dumps({"version": VERSION, "meta": meta})}
    write_whole(path, lambda fresh: write(fresh, tensors, header), lasting=True)


def load(
    path: str | os.PathLike[str], room: Room | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors of a checkpoint, on the CPU, and its meta.

    Parameters
    ----------
    path
    room : callable, optional
        Allocates float32 tensors of two axes, for tables larger than memory.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is truncated, damaged, no checkpoint of kgfast, or of another version: the
        message names the path.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint")
    meta = _meta(path, metadata_of(path))
    return read(path, room), meta


def _meta(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> dict[str, Any]:
    with reading(path, "a safetensors file, but not a checkpoint of kgfast"):
        stored = json.loads(metadata[_KEY])
        version, meta = stored["version"], dict(stored["meta"])
        if type(version) is not int:
            raise TypeError(f"version {shown(version)}")
    if version != VERSION:
        raise ValueError(
            f"{path}: format version {version}; this kgfast reads {VERSION}: train again, or use "
            "the kgfast that wrote the file"
        )
    return meta


def of_part(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors ``model.<name>`` or ``optim.<name>`` by their own names."""
    start = f"{kind}."
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
