"""Files of a graph: where they are, and checksums that do not depend on line ends."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import kgfast
from kgfast.training.config.sections import DatasetConfig

FILES = ("train.txt", "valid.txt", "test.txt")


def checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of triples, with line ends of one byte.

    Published copies of FB15k-237 have line ends of two bytes, which change no triple.

    Raises
    ------
    FileNotFoundError
        If one of the files is missing.
    """
    contents = {name: (folder / name).read_bytes().replace(b"\r\n", b"\n") for name in FILES}
    return {name: hashlib.sha256(text).hexdigest() for name, text in contents.items()}


def folder_of(name: str, data: Path | None, cache: Path) -> Path:
    """Return the folder of a graph below ``data``, or download the graph into ``cache``.

    Raises
    ------
    FileNotFoundError, ConnectionError, ImportError
        If the graph is not in ``data``, or cannot be downloaded.
    """
    if data is not None:
        return DatasetConfig(name=name, root=str(data)).folder()
    return cache / kgfast.datasets.download(name, root=cache).name


def check(folder: Path, expected: Mapping[str, str]) -> None:
    """Raise a ValueError that names the first file with another checksum than a row's."""
    for name, found in checksums(folder).items():
        if found != expected[name]:
            raise ValueError(
                f"{folder / name}: its SHA-256, with line ends of one byte, is {found}, but the "
                f"row was trained on {expected[name]}: another graph, split or order of triples"
            )
