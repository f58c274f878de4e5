"""What a long pass over a table has found so far, in a folder, so that a killed run goes on.

After each range of rows one file is replaced by the next, whole: counts add, so nothing else is
needed, and whoever is killed at any moment leaves a file that is true. One process at a time uses
the folder.

| file | holds |
|---|---|
| `call.json` | what the results depend on, how the table is read, checksums of its blocks of rows |
| `pass-N.npz` | what pass N has found up to a row, and a digest of that and of `call.json` |
| `.lock` | which process uses the folder: see :func:`kgfast.locks.locked` |
"""

import hashlib
import json
import os
import re
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kgfast.locks import NAME as LOCK
from kgfast.locks import locked
from kgfast.tables import Rows
from kgfast.tables.prefetch import RowBlock, prefetched
from kgfast.text import shown

BLOCK_BYTES = 32 << 20  # of rows that are read at once; nobody works while the first is read
_FACTS = "call.json"
_FORMAT = 2
_FIELDS = ("format", "fingerprint", "per_pass", "block_rows", "blocks", "checksum")
_DIGEST = 20  # bytes
_OURS = re.compile(r"call\.json|pass-\d+\.npz|" + re.escape(LOCK))
_LEFT = re.compile(r"\.(call-\d+\.json|pass-\d+-\d+\.npz)")  # by a process that was killed


class Partial:
    """The folder of one call.

    Parameters
    ----------
    folder : Path
        This process holds its lock.
    table : Rows
        What passes read.
    fingerprint : str
        The hash of everything else that the result depends on.
    per_pass : int
        Queries that one pass over the table serves, if the call is new.
    block_rows : int
        Rows that are read at once, if the call is new.

    Attributes
    ----------
    per_pass, block_rows : int
        The numbers of the call that made the folder.

    Raises
    ------
    ValueError
        If the folder is another call's, is damaged, or holds something else; if rows of the table
        have changed.
    OSError
        If the folder cannot be written to.
    """

    def __init__(
        self, folder: Path, table: Rows, fingerprint: str, per_pass: int, block_rows: int
    ) -> None:
        self.folder, self._table, self._facts = folder, table, table.facts
        self._clear()
        call = self._call()
        if call is None:
            self.per_pass, self.block_rows = per_pass, block_rows
            self._blocks = self._checksums()
            values = _FORMAT, fingerprint, per_pass, block_rows, self._blocks
            call = dict(zip(_FIELDS, (*values, _digest(*values).hex()), strict=True))
            text = json.dumps(call, indent=1)
            self._replace(_FACTS, lambda path: path.write_text(text + "\n"))
        else:
            self.per_pass, self.block_rows = call["per_pass"], call["block_rows"]
            self._blocks = call["blocks"]
            self._compare(call["fingerprint"] == fingerprint)
        self._checksum = call["checksum"]

    def check(self, block: RowBlock) -> None:
        """Check that a block which was read holds the rows that the call began with.

        Raises
        ------
        ValueError
            If the table has changed: names the table and the rows.
        """
        if self._table.facts != self._facts:
            raise ValueError(
                f"partial: the entity table, {self._table!r}, was written to while rows "
                f"{block.start} .. {block.stop - 1} were read; choose another folder than "
                f"{self.folder}, or delete it"
            )
        if self._blocks:
            self._check_block(block.start // self.block_rows, _checksum(block.rows))

    def load(self, number: int, like: Sequence[Tensor]) -> int:
        """Fill ``like`` with what a pass has found, and return the row that it goes on from.

        Raises
        ------
        ValueError
            If a file is not what was written.
        """
        path, rows = self.folder / f"pass-{number}.npz", len(self._table)
        wanted: dict[str, npt.NDArray[Any]] = {
            "next_row": np.zeros((), np.int64),
            "digest": np.zeros(_DIGEST, np.uint8),
            **{f"values_{place}": it.numpy() for place, it in enumerate(like)},
        }
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return 0
        except IsADirectoryError as error:
            raise _damaged(path, error) from None
        with file:
            try:
                found = _read_arrays(file, wanted)
                values = [torch.from_numpy(found[f"values_{it}"]) for it in range(len(like))]
                next_row = int(found["next_row"])
                if not 0 <= next_row <= rows or (next_row % self.block_rows and next_row != rows):
                    raise ValueError(f"next_row {next_row} is no end of a block of {rows} rows")
                if found["digest"].tobytes() != self._of_pass(number, next_row, values):
                    raise ValueError("its values are not those that were written for this call")
            except MemoryError:
                raise
            except Exception as error:  # what a damaged archive raises is of many classes
                raise _damaged(path, error) from None
        for own, kept in zip(like, values, strict=True):
            own.copy_(kept)
        return next_row

    def save(self, number: int, values: Sequence[Tensor], next_row: int) -> None:
        """Keep what a pass has found up to a row.

        Raises
        ------
        OSError
            If the disk is full; what was kept before stays.
        """
        arrays: dict[str, Any] = {f"values_{i}": it.numpy() for i, it in enumerate(values)}
        arrays["digest"] = np.frombuffer(self._of_pass(number, next_row, values), np.uint8)
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

    def _clear(self) -> None:
        """Remove the half-written files of killed processes; refuse a folder of something else."""
        names = [path.name for path in self.folder.iterdir()]
        for name in filter(_LEFT.fullmatch, names):
            (self.folder / name).unlink(missing_ok=True)
        others = [it for it in names if not _OURS.fullmatch(it) and not _LEFT.fullmatch(it)]
        if others and _FACTS not in names:
            raise ValueError(
                f"partial: {self.folder} holds other files, {shown(min(others))}; choose an empty "
                f"folder"
            )

    def _call(self) -> dict[str, Any] | None:
        """Read the call that made the folder."""
        path = self.folder / _FACTS
        try:
            return _checked_call(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, RecursionError, IsADirectoryError) as error:
            raise _damaged(path, error) from None

    def _compare(self, is_same: bool) -> None:
        """Check that a call is the one that made the folder, on the table that it began with."""
        block, count = self.block_rows, len(self._table)
        blocks = 0 if self._table.tells else -(-count // block)
        most = max(1, BLOCK_BYTES // max(1, self._table.row_bytes))
        if len(self._blocks) == blocks and block <= most:
            for number, checksum in enumerate(self._checksums()):
                self._check_block(number, checksum)
            if is_same:
                return
        raise ValueError(
            f"partial: {self.folder} is of another call: its table, triples, known triples, sides, "
            f"dims, candidates or model differ; choose another folder, or delete it"
        )

    def _checksums(self) -> list[str]:
        """Read the table once, and return the checksum of each block; none if its facts tell."""
        if self._table.tells:
            return []
        count, step = len(self._table), self.block_rows
        ranges = [(start, min(start + step, count)) for start in range(0, count, step)]
        with prefetched(self._table, ranges, gives_back=False) as blocks:
            return [_checksum(block.rows) for block in blocks]

    def _check_block(self, number: int, checksum: str) -> None:
        if checksum != self._blocks[number]:
            start = number * self.block_rows
            stop = min(start + self.block_rows, len(self._table))
            raise ValueError(
                f"partial: {self.folder} is of another call: rows {start} .. {stop - 1} of the "
                f"entity table, {self._table!r}, have changed since it began; choose another "
                f"folder, or delete it"
            )

    def _of_pass(self, number: int, next_row: int, values: Sequence[Tensor]) -> bytes:
        """Hash what a pass has found, with its number and its call."""
        return _digest(self._checksum, number, next_row, *values)

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
        if sys.platform != "win32":  # it cannot open folders
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


@contextmanager
def using(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a folder for a call, and keep other processes out of it.

    Raises
    ------
    ValueError
        If another process uses the folder: names host, process and since when.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with locked(path, "partial: ", "choose another folder"):
        yield path


def _checked_call(found: Any) -> dict[str, Any]:
    """Check what a file says of a call.

    Raises
    ------
    ValueError, TypeError
        If a field is missing, or not what was written.
    """
    call = dict(found)
    if set(call) != set(_FIELDS) or call["format"] != _FORMAT:
        form = shown(call.get("format"))
        raise ValueError(f"format {form} with the fields {shown(list(call))}, not {_FORMAT}")
    for name in ("per_pass", "block_rows"):
        if type(call[name]) is not int or call[name] < 1:
            raise ValueError(f"{name} must be an int of at least 1; got {shown(call[name])}")
    if call["checksum"] != _digest(*(call[name] for name in _FIELDS[:-1])).hex():
        raise ValueError("its checksum is not that of its fields")
    return call


def _read_arrays(
    file: IO[bytes], wanted: dict[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Read an archive of arrays that have the names, shapes and dtypes of others."""
    found = {}
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        if sorted(names) != sorted(f"{name}.npy" for name in wanted):
            raise ValueError(f"it holds {shown(names)}, not {shown(list(wanted))}")
        for name, like in wanted.items():
            with archive.open(f"{name}.npy") as member:
                version = np.lib.format.read_magic(member)
                header = np.lib.format.read_array_header_1_0(member)
                if version != (1, 0) or header != (like.shape, False, like.dtype):
                    what = f"{list(like.shape)} of {like.dtype}"
                    raise ValueError(f"{name} is {list(header[0])} of {header[2]}, not {what}")
                values = member.read(like.nbytes + 1)
            if len(values) != like.nbytes:
                raise ValueError(f"{name} has another number of bytes than its shape")
            found[name] = np.frombuffer(bytearray(values), like.dtype).reshape(like.shape)
    return found


def _damaged(path: Path, error: Exception) -> ValueError:
    why = " ".join((str(error) or type(error).__name__).split())
    return ValueError(f"{path}: damaged: not what kgfast writes: {why:.200}; delete it")


def _checksum(rows: Tensor) -> str:
    """Return the CRC-32 of a block of rows; it is several times as fast as a hash."""
    return f"{zlib.crc32(_bytes_of(rows).data):08x}"


def _digest(*values: Any) -> bytes:
    found = Fingerprint()
    found.add(*values)
    return bytes.fromhex(found.text())


def _bytes_of(values: Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of a tensor, in the order of its elements."""
    flat = values.detach().cpu().contiguous()
    if not flat.numel():
        return np.empty(0, np.uint8)
    flat = flat.as_strided((flat.numel(),), (1,))  # one number may have any stride
    return flat.view(torch.uint8).numpy()


class Fingerprint:
    """A hash of tensors and plain values, in the order in which they are added."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=_DIGEST)

    def add(self, *values: Any) -> None:
        """Add tensors by their shape, dtype and bits, and anything else by its ``repr``."""
        for value in values:
            if isinstance(value, Tensor):
                flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
                self._hash.update(repr((tuple(flat.shape), flat.dtype)).encode())
                self._hash.update(_bytes_of(flat).data)
            else:
                self._hash.update(repr(value).encode() + b"\0")

    def add_each(self, values: Iterable[Any]) -> None:
        """Add values one after the other, as they are made."""
        for value in values:
            self.add(value)

    def text(self) -> str:
        """The hash in hexadecimal digits."""
        return self._hash.hexdigest()
