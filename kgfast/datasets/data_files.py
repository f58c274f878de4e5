"""Files of a dataset folder: found, unpacked within a bound, decoded, blamed by line."""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kgfast.text import bad_line

KNOWN_LAYOUTS = (
    "known layouts: official RotatE / DGL-KE (entities.dict, relations.dict, train.txt), "
    "DGL-KE raw_udd_hrt (entities.tsv, relations.tsv, train.tsv), "
    "OpenKE (entity2id.txt, relation2id.txt, train2id.txt), "
    "LibKGE (entity_ids.del, relation_ids.del, train.del), "
    "plain TSV (train.txt or train.tsv), Parquet (train.parquet); "
    "each file but Parquet as it is or with .gz"
)
# A gzipped file may unpack to 64 times its size, and always to 64 MiB. Triples by name compress 3
# to 20 times; a file made to fill the memory, a thousand times.
_RATIO = 64
_ALWAYS = 64 << 20


@dataclass(frozen=True)
class DataFile:
    """File of a dataset."""

    path: Path

    def text(self) -> str:
        """Return the text of the file, without byte order mark and carriage returns."""
        raw = self._unpacked() if self.path.suffix == ".gz" else self.path.read_bytes()
        try:
            return raw.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            # `error.object` begins after the byte order mark, as `error.start` does.
            before = error.object[: error.start]
            line = error.object[before.rfind(b"\n") + 1 :][:200].split(b"\n")[0]
            raise self.bad_line(before.count(b"\n") + 1, "not valid UTF-8", line) from None

    def _unpacked(self) -> bytes:
        most = max(_ALWAYS, _RATIO * self.path.stat().st_size)
        try:
            with gzip.open(self.path) as file:
                raw = file.read(most + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{self.path}: not a valid gzip file: {error}") from None
        if len(raw) > most:
            raise ValueError(
                f"{self.path}: unpacks to more than {most:,} bytes; if that is intended, unpack "
                "the file yourself"
            )
        return raw

    def bad_line(self, number: int, problem: str, line: str | bytes) -> ValueError:
        """Return the error for a line, which is quoted as far as space allows."""
        return bad_line(self.path, number, problem, line)

    def place(self, row: int, count: int) -> str:
        """Name the line of a triple, the ``row``-th of ``count``, with which the file ends."""
        if self.path.suffix == ".parquet":
            return f"{self.path}: row {row}"
        numbers = [number for number, _ in numbered_lines(self.text())]
        return f"{self.path}:{numbers[len(numbers) - count + row]}"


@dataclass(frozen=True)
class Folder:
    """Folder of data files."""

    root: Path

    def find(self, *names: str) -> DataFile | None:
        """Return the first of these files that exists, gzipped or not."""
        paths = (self.root / f"{name}{end}" for name in names for end in ("", ".gz"))
        return next((DataFile(path) for path in paths if path.is_file()), None)

    def need(self, *names: str) -> DataFile:
        """Return the first of these files that exists, or raise FileNotFoundError."""
        file = self.find(*names)
        if file is None:
            looked_for = " or ".join(f"{name}[.gz]" for name in names)
            raise FileNotFoundError(f"{self.root}: looked for {looked_for}; {KNOWN_LAYOUTS}")
        return file

    def splits(self, *patterns: str) -> list[DataFile | None]:
        """Return the files of train, valid and test; only train must exist."""
        names = [[it.format(split) for it in patterns] for split in ("train", "valid", "test")]
        return [self.need(*names[0]), self.find(*names[1]), self.find(*names[2])]


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and content of the lines that are not blank."""
    return ((i, line) for i, line in enumerate(text.split("\n"), 1) if line and not line.isspace())
