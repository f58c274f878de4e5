"""The folder of ``partial=``: the results of a long pass so far, so that a killed run resumes.

After each range of rows a new file replaces the last file as a whole, so a process that is killed
at any moment leaves a valid file. One process at a time uses the folder.

| file | content |
|---|---|
| `call.json` | what results depend on, how the table is read, checksums of its blocks of rows |
| `pass-N.safetensors` | results of pass N up to a row, a digest of these and of `call.json` |
| `.lock` | the process that uses the folder: see :func:`kgfast.locks.locked` |
"""

import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from kgfast.eval.rows import RowReader
from kgfast.locks import NAME as LOCK
from kgfast.locks import locked
from kgfast.storage import Fingerprint, bytes_of, check_room
from kgfast.tables.prefetch import RowBlock, prefetched
from kgfast.text import shown
from kgfast.whole_files import write_whole

# bytes of rows that are read at once; no thread works while the first are read
BLOCK_BYTES = 32 << 20
_FACTS = "call.json"
_FORMAT = 1
_FIELDS = ("format", "fingerprint", "per_pass", "block_rows", "blocks", "checksum")
_RANGES = 256  # most ranges of rows; results are saved after each
_OURS = re.compile(r"call\.json|pass-\d+\.safetensors|" + re.escape(LOCK))
_LEFT = re.compile(
    r"\.(call-\d+\.json|pass-\d+-\d+\.safetensors)"
)  # files that a killed process left


class Partial:
    """Folder of one call, with passes numbered in order; this process holds the lock of the folder.

    ``fingerprint`` hashes everything that results depend on besides the rows. The attributes
    ``reader`` and ``per_pass`` come from the call that made the folder.
    """

    def __init__(self, folder: Path, reader: RowReader, fingerprint: str, per_pass: int) -> None:
        self.folder, self.reader, self.number = folder, reader, -1
        assert reader.table is not None
        self._table = reader.table
        self._facts = self._table.facts
        self._clear()
        call = self._call()
        if call is None:
            self.per_pass, self._blocks = per_pass, self._checksums()
            values = _FORMAT, fingerprint, per_pass, reader.block_rows, self._blocks
            call = dict(zip(_FIELDS, (*values, _digest(*values)), strict=True))
            text = json.dumps(call, indent=1) + "\n"
            write_whole(folder / _FACTS, lambda path: path.write_text(text), lasting=True)
        else:
            self.per_pass, self._blocks = call["per_pass"], call["blocks"]
            self.reader = replace(reader, block_rows=call["block_rows"])
            self._compare(call["fingerprint"] == fingerprint)
        self._checksum = call["checksum"]

    def check(self, block: RowBlock) -> None:
        """Check that a block has the rows that the call began with."""
        if self._table.facts != self._facts:
            raise ValueError(
                f"partial: the entity table, {self._table!r}, was written to while rows "
                f"{block.start} .. {block.stop - 1} were read; choose another folder than "
                f"{self.folder}, or delete that folder"
            )
        if self._blocks:
            number = (block.start - self.reader.start) // self.reader.block_rows
            self._check_block(number, _checksum(block.rows))

    def is_end(self, block: RowBlock) -> bool:
        """Return True if results are saved after this block."""
        start, stop = self.reader.start, self.reader.stop
        step = max(self.reader.block_rows, -(-(stop - start) // _RANGES))
        return block.stop >= stop or (block.stop - start) // step > (block.start - start) // step

    def load(self, parts: Sequence[Any]) -> int:
        """Begin the next pass: restore the results, and return the row to resume from."""
        self.number += 1
        states = [part.state for part in parts]
        like = [it for own in states for it in own]
        next_row, values = self._found(like)
        for own, kept in zip(like, values, strict=True):
            own.copy_(kept)
        for part, state in zip(parts, states, strict=True):
            part.restore(state)
        return next_row

    def save(self, parts: Sequence[Any], next_row: int) -> None:
        """Save the results of the pass up to a row; on a full disk, the earlier file stays."""
        from safetensors.torch import save_file

        values = [it for part in parts for it in part.state]
        needed = sum(it.nbytes for it in values) + (1 << 12)
        check_room(self.folder, needed, f"partial: {self.folder} needs")
        tensors = {str(place): it.contiguous() for place, it in enumerate(values)}
        facts = {"next_row": str(next_row), "digest": self._of_pass(next_row, values)}
        write_whole(self._path, lambda path: save_file(tensors, path, facts), lasting=True)

    @property
    def _path(self) -> Path:
        return self.folder / f"pass-{self.number}.safetensors"

    def _found(self, like: Sequence[Tensor]) -> tuple[int, Sequence[Tensor]]:
        """Read the next row of a pass and the values; return ``like`` for a new pass."""
        from safetensors import safe_open

        path, start, stop = self._path, self.reader.start, self.reader.stop
        if not path.exists():
            return start, like
        try:
            with safe_open(path, "pt") as file:
                facts, names = file.metadata() or {}, sorted(map(str, range(len(like))))
                if sorted(file.keys()) != names:
                    raise ValueError(f"the file holds {shown(list(file.keys()))}, not {names}")
                values = [file.get_tensor(str(place)) for place in range(len(like))]
            row = int(facts["next_row"])
            is_end = start <= row <= stop and not (row - start) % self.reader.block_rows
            if not is_end and row != stop:
                raise ValueError(f"next_row {row} is no end of a block of {stop} rows")
            if any(it.shape != own.shape for it, own in zip(values, like, strict=True)):
                raise ValueError(f"the shapes are {[list(it.shape) for it in values]}")
            if facts["digest"] != self._of_pass(row, values):
                raise ValueError("the values are not those that were written for this call")
        except MemoryError:
            raise
        except Exception as error:  # errors for a damaged file are of many classes
            raise _damaged(path, error) from None
        return row, values

    def _clear(self) -> None:
        """Remove half-written files of killed processes; refuse a folder of something else."""
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
        path = self.folder / _FACTS
        try:
            found = json.loads(path.read_text())
            number = found.get("format") if isinstance(found, dict) else None
            if type(number) is not int or number == _FORMAT:
                return _checked_call(found)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, RecursionError, IsADirectoryError) as error:
            raise _damaged(path, error) from None
        raise ValueError(
            f"{path}: format {number}; this kgfast goes on with format {_FORMAT}: choose another "
            f"folder, or delete this one"
        )

    def _compare(self, is_same: bool) -> None:
        """Check that this call made the folder, on a table that has not changed."""
        block = self.reader.block_rows
        blocks = 0 if self._table.tells else -(-(self.reader.stop - self.reader.start) // block)
        most = max(1, BLOCK_BYTES // max(1, self._table.row_bytes))
        if len(self._blocks) == blocks and block <= most:
            for number, checksum in enumerate(self._checksums()):
                self._check_block(number, checksum)
            if is_same:
                return
        raise ValueError(
            f"partial: {self.folder} is of another call: table, triples, known triples, sides, "
            "dims, candidates, model or batch_size differ; choose another folder, or delete this "
            "one"
        )

    def _checksums(self) -> list[str]:
        """Return the checksum of each block of rows; none if the table tells of writes."""
        if self._table.tells:
            return []
        with prefetched(self._table, self.reader.ranges(), gives_back=False) as blocks:
            return [_checksum(block.rows) for block in blocks]

    def _check_block(self, number: int, checksum: str) -> None:
        if checksum != self._blocks[number]:
            start, stop = self.reader.ranges()[number]
            raise ValueError(
                f"partial: {self.folder} is of another call: rows {start} .. {stop - 1} of the "
                f"entity table, {self._table!r}, have changed since that call began; choose "
                "another folder, or delete this one"
            )

    def _of_pass(self, next_row: int, values: Sequence[Tensor]) -> str:
        return _digest(self._checksum, self.number, next_row, *values)


@contextmanager
def using(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a folder for a call, and lock other processes out."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    with locked(path, "partial: ", "choose another folder"):
        yield path


def _checked_call(found: Any) -> dict[str, Any]:
    call = dict(found)
    if set(call) != set(_FIELDS) or call["format"] != _FORMAT:
        form = shown(call.get("format"))
        raise ValueError(f"format {form} with the fields {shown(list(call))}, not {_FORMAT}")
    for name in ("per_pass", "block_rows"):
        if type(call[name]) is not int or call[name] < 1:
            raise ValueError(f"{name} must be an int of at least 1; got {shown(call[name])}")
    if call["checksum"] != _digest(*(call[name] for name in _FIELDS[:-1])):
        raise ValueError("the checksum is not that of the fields")
    return call


def _damaged(path: Path, error: Exception) -> ValueError:
    why = " ".join((str(error) or type(error).__name__).split())
    return ValueError(f"{path}: damaged: not written by kgfast: {why:.200}; delete the file")


def _checksum(rows: Tensor) -> str:
    """Return the CRC-32 of a block of rows, which is several times as fast as a hash."""
    return f"{zlib.crc32(bytes_of(rows).data):08x}"


def _digest(*values: Any) -> str:
    found = Fingerprint()
    found.add(*values)
    return found.text()
