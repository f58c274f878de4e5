"""Files of a dataset folder: found, unpacked within a bound, decoded, blamed by line."""

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kgfast.text import bad_line, shown

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


@dataclass(frozen=True)
class DataFile:
    """File of a dataset."""

    path: Path
    # limit after unpacking; None: 64 times the size, and always 64 MiB
    max_bytes: int | None = None
    clean: frozenset[str] = frozenset()  # see `kgfast.datasets.load`

    def text(self) -> str:
        """Return the text of the file, cleaned, without byte order mark and carriage returns."""
        text = self._decoded()
        if "comments" in self.clean:
            text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
        if "header" in self.clean:  # the first line that is not blank; numbers of lines stay
            text = re.sub(r"\A(\s*)\S[^\n]*", r"\1", text)
        if "blanks" in self.clean:
            lines = (line.split("\t") for line in text.split("\n"))
            text = "\n".join("\t".join(field.strip() for field in fields) for fields in lines)
        return text

    def _decoded(self) -> str:
        raw = self._unpacked() if self.path.suffix == ".gz" else self.path.read_bytes()
        try:
            return raw.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            # `error.object` begins after the byte order mark, as `error.start` does.
            start = error.object.rfind(b"\n", 0, error.start) + 1
            number = error.object.count(b"\n", 0, error.start) + 1
            line = bytes(error.object[start : start + 200]).split(b"\n")[0]
            raise self.bad_line(number, "not valid UTF-8", line) from None

    def _unpacked(self) -> bytes:
        most = self.max_bytes or max(_ALWAYS, _RATIO * self.path.stat().st_size)
        try:
            with gzip.open(self.path) as file:
                raw = file.read(most + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{self.path}: not a valid gzip file: {error}") from None
        if len(raw) > most:
            raise ValueError(
                f"{self.path}: unpacks to more than {most:,} bytes; if that is intended, pass "
                f"max_bytes= to kgfast.datasets.load or set {LIMIT_VARIABLE}"
            )
        return raw

    def bad_line(self, number: int, problem: str, line: str | bytes) -> ValueError:
        """Return the error for a line, which is quoted as far as space allows."""
        return bad_line(self.path, number, problem, line)

    def place(self, row: int, count: int) -> str:
        """Name the line of a triple, the ``row``-th of ``count``, with which the file ends."""
        if self.path.suffix == ".parquet":
            return f"{self.path}: row {row}"
        if ".nt" in self.path.suffixes:  # comments and literals stand between triples
            return str(self.path)
        numbers = [number for number, _ in numbered_lines(self.text())]
        return f"{self.path}:{numbers[len(numbers) - count + row]}"


@dataclass(frozen=True)
class Folder:
    """Folder of data files."""

    root: Path
    max_bytes: int | None = None
    clean: frozenset[str] = frozenset()
    notes: dict[str, None] = field(default_factory=dict)  # warnings, each once

    def find(self, *names: str, has_header: bool = False) -> DataFile | None:
        """Return the first of these files that exists, gzipped or not; note that others do."""
        paths = (self.root / f"{name}{end}" for name in names for end in ("", ".gz"))
        found = [path for path in paths if path.is_file()]
        for other in found[1:]:
            self.notes[f"{other} is not read: {found[0].name} is"] = None
        if not found:
            return None
        clean = self.clean if has_header else self.clean - {"header"}
        return DataFile(found[0], self.max_bytes, clean)

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
        self.need(*train)
        return [self.find(*names, has_header=True) for names in (train, valid, test)]


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
