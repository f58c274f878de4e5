"""Files of a dataset folder: found, unpacked within a bound, decoded, blamed by line."""

import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kgfast.text import shown

KNOWN_LAYOUTS = (
    "known layouts: official RotatE / DGL-KE (entities.dict, relations.dict, train.txt), "
    "DGL-KE raw_udd (entities.tsv, relations.tsv, train.tsv), "
    "OpenKE (entity2id.txt, relation2id.txt, train2id.txt), "
    "LibKGE (dataset.yaml, entity_ids.del, relation_ids.del, train.del), "
    "plain TSV (train.txt or train.tsv), Parquet (train.parquet), N-Triples (train.nt); "
    "each file but Parquet as it is or with .gz"
)
LIMIT_VARIABLE = "KGFAST_MAX_BYTES"
# By default a gzipped file may unpack to 64 times its size, and always to 64 MiB. Triples by
# name compress 3 to 20 times; a file made to fill the memory, a thousand times.
_RATIO = 64
_ALWAYS = 64 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True)
class DataFile:
    """File of a dataset."""

    path: Path
    # limit after unpacking; None: 64 times the size, and always 64 MiB
    max_bytes: int | None = None

    def text(self) -> str:
        """Return the text of the file, without byte order mark and carriage returns."""
        raw = self._unpacked() if self.path.suffix == ".gz" else self.path.read_bytes()
        try:
            return raw.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            # `error.object` begins after the byte order mark, as `error.start` does.
            start = error.object.rfind(b"\n", 0, error.start) + 1
            number = error.object.count(b"\n", 0, error.start) + 1
            line = bytes(error.object[start : start + 200]).split(b"\n")[0]
            raise self.bad_line(number, "not valid UTF-8", line) from None

    def _unpacked(self) -> bytearray:
        most = self.max_bytes
        if most is None:
            most = max(_ALWAYS, _RATIO * self.path.stat().st_size)
        raw = bytearray()
        try:
            with gzip.open(self.path) as file:
                while chunk := file.read(_CHUNK):
                    raw += chunk
                    if len(raw) > most:
                        raise OverflowError
        except OverflowError:
            raise ValueError(
                f"{self.path}: unpacks to more than {most:,} bytes; if that is intended, pass "
                f"max_bytes= to kgfast.datasets.load or set {LIMIT_VARIABLE}"
            ) from None
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{self.path}: not a valid gzip file: {error}") from None
        return raw

    def bad_line(self, number: int, problem: str, line: str | bytes) -> ValueError:
        """Return the error for a line, which is quoted as far as space allows."""
        return ValueError(f"{self.path}:{number}: {problem}: {shown(line, 80)}")


@dataclass(frozen=True)
class Folder:
    """Folder of data files; the folder and its files may be links."""

    root: Path
    max_bytes: int | None = None

    def find(self, *names: str) -> DataFile | None:
        """Return the first of these files that exists, gzipped or not."""
        for name in names:
            for path in (self.root / name, self.root / f"{name}.gz"):
                if path.is_file():
                    return DataFile(path, self.max_bytes)
        return None

    def need(self, *names: str) -> DataFile:
        """Return the first of these files that exists, or raise FileNotFoundError."""
        file = self.find(*names)
        if file is None:
            looked_for = " or ".join(f"{name}[.gz]" for name in names)
            raise FileNotFoundError(f"{self.root}: looked for {looked_for}; {KNOWN_LAYOUTS}")
        return file

    def splits(self, *patterns: str) -> list[DataFile | None]:
        """Return the files of train, valid and test; only train must exist."""
        train, valid, test = (
            [pattern.format(split) for pattern in patterns] for split in ("train", "valid", "test")
        )
        return [self.need(*train), self.find(*valid), self.find(*test)]


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and content of the lines that are not blank."""
    return ((i, line) for i, line in enumerate(text.split("\n"), 1) if line and not line.isspace())


def checked_limit(max_bytes: int | None) -> int | None:
    """Return the bytes that a gzipped file may unpack to: the argument, else LIMIT_VARIABLE."""
    if max_bytes is not None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be >= 1, got {max_bytes}")
        return max_bytes
    said = os.environ.get(LIMIT_VARIABLE)
    if not said:
        return None
    if not (said.isascii() and said.isdigit() and len(said) < 19 and int(said) >= 1):
        raise ValueError(f"{LIMIT_VARIABLE} must be a number of bytes >= 1, got {shown(said)}")
    return int(said)
