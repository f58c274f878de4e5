"""What a long pass over a file has found so far, in a folder, so that a killed run goes on.

After each range of rows one file is replaced by the next, whole: counts add, so nothing else is
needed, and whoever is killed at any moment leaves a file that is true.
"""

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_FACTS = "call.json"
_FORMAT = 1


class Partial:
    """The folder of one call.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    fingerprint : str
        Of everything that the result depends on.
    per_pass : int
        Queries that one pass over the file serves, where the call is new.

    Attributes
    ----------
    per_pass : int
        Those of the call that made the folder: its passes are gone on with.

    Raises
    ------
    ValueError
        If the folder is another call's, or holds something else.
    OSError
        If it cannot be written to.
    """

    def __init__(self, folder: str | os.PathLike[str], fingerprint: str, per_pass: int) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        facts = self.folder / _FACTS
        if facts.exists():
            try:
                found = json.loads(facts.read_text())
                theirs, self.per_pass = found["fingerprint"], int(found["per_pass"])
                is_ours = found["format"] == _FORMAT and theirs == fingerprint
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{facts}: not what kgfast writes: {error!s:.120}") from None
            if not is_ours:
                raise ValueError(
                    f"partial: {self.folder} is of another call: its table, triples, known "
                    f"triples, sides, dims, candidates or model differ; choose another folder, or "
                    f"delete it"
                )
            return
        if any(self.folder.iterdir()):
            raise ValueError(f"partial: {self.folder} holds other files; choose an empty folder")
        self.per_pass = per_pass
        text = json.dumps(
            {"format": _FORMAT, "fingerprint": fingerprint, "per_pass": per_pass}, indent=1
        )
        self._replace(_FACTS, lambda path: path.write_text(text + "\n"))

    def load(self, number: int, like: Sequence[Tensor]) -> int:
        """Fill ``like`` with what a pass has found, and return the row that it goes on from.

        Raises
        ------
        ValueError
            If a file is not what was written.
        """
        path = self.folder / f"pass-{number}.npz"
        if not path.exists():
            return 0
        try:
            with np.load(path, allow_pickle=False) as found:
                for place, values in enumerate(like):
                    values.copy_(torch.from_numpy(found[f"values_{place}"]))
                return int(found["next_row"])
        except (OSError, ValueError, KeyError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: damaged: {error!s:.120}; delete it") from None

    def save(self, number: int, values: Sequence[Tensor], next_row: int) -> None:
        """Keep what a pass has found up to a row.

        Raises
        ------
        OSError
            If the disk is full; what was kept before stays.
        """
        arrays: dict[str, Any] = {f"values_{i}": it.numpy() for i, it in enumerate(values)}
        needed = sum(array.nbytes for array in arrays.values()) + (1 << 12)
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise OSError(
                f"partial: {self.folder} needs {needed:,} bytes, and its disk has {free:,} left; "
                f"what was finished before is kept: make room, or move the folder, and call again"
            )
        self._replace(
            f"pass-{number}.npz",
            lambda path: np.savez(path, next_row=np.int64(next_row), **arrays),
        )

    def _replace(self, name: str, write: Callable[[Path], Any]) -> None:
        """Write a file beside, then put it in place of the old one, for good."""
        beside = self.folder / f".{name.partition('.')[0]}-{os.getpid()}.{name.partition('.')[2]}"
        try:
            write(beside)
            with beside.open("rb+") as file:
                os.fsync(file.fileno())
            beside.replace(self.folder / name)
        finally:
            beside.unlink(missing_ok=True)


class Fingerprint:
    """A hash of tensors and plain values, in the order in which they are added."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=20)

    def add(self, *values: Any) -> None:
        """Add tensors by their shape, dtype and bits, and anything else by its ``repr``."""
        for value in values:
            if isinstance(value, Tensor):
                flat = value.detach().cpu().contiguous()
                self._hash.update(repr((tuple(flat.shape), flat.dtype)).encode())
                if flat.numel():  # one number may have any stride
                    bits = flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)
                    self._hash.update(bits.numpy().data)
            else:
                self._hash.update(repr(value).encode())

    def text(self) -> str:
        """The hash in hexadecimal digits."""
        return self._hash.hexdigest()
