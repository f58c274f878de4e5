"""Files of a dataset folder: found, unpacked within a bound, decoded, blamed by line."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from kgfast.text import bad_line

KNOWN_LAYOUTS = (
    "known layouts: official RotatE / DGL-KE (entities.dict, relations.dict, train.txt), "
    "DGL-KE raw_udd_hrt (entities.tsv, relations.tsv, train.tsv), "
    "OpenKE (entity2id.txt, relation2id.txt, train2id.txt), "
    "LibKGE (entity_ids.del, relation_ids.del, train.del), "
    "plain TSV (train.txt or train.tsv), Parquet (train.parquet), "
    "TGB (tkgl-*_edgelist.csv), train.csv with columns=; "
    "each file but Parquet as it is or with .gz"
)
# A gzipped file may unpack to 64 times its size, and always to 64 MiB. Triples by name compress 3
# to 20 times; a file made to fill the memory, a thousand times.
_RATIO = 64
_ALWAYS = 64 << 20


def text_of(file: Path) -> str:
    """Return the text of a file, without byte order mark and carriage returns."""
    raw = _unpacked(file) if file.suffix == ".gz" else file.read_bytes()
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        # `error.object` begins after the byte order mark, as `error.start` does.
        before = error.object[: error.start]
        line = error.object[before.rfind(b"\n") + 1 :][:200].split(b"\n")[0]
        raise bad_line(file, before.count(b"\n") + 1, "not valid UTF-8", line) from None


def most_unpacked(path: Path) -> int:
    """Return the bytes that a gzipped file may unpack to."""
    return max(_ALWAYS, _RATIO * path.stat().st_size)


def unpacks_to_more(path: Path) -> ValueError:
    """Make the error of a file that unpacks to more than it may."""
    return ValueError(
        f"{path}: unpacks to more than {most_unpacked(path):,} bytes; if that is intended, unpack "
        "the file yourself"
    )


def _unpacked(path: Path) -> bytes:
    most = most_unpacked(path)
    try:
        with gzip.open(path) as file:
            raw = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: not a valid gzip file: {error}") from None
    if len(raw) > most:
        raise unpacks_to_more(path)
    return raw


def place_of(file: Path, row: int, count: int) -> str:
    """Name the line of a triple, the ``row``-th of ``count``, with which the file ends."""
    if file.suffix == ".parquet":
        return f"{file}: row {row}"
    numbers = [number for number, _ in numbered_lines(text_of(file))]
    return f"{file}:{numbers[len(numbers) - count + row]}"


def find_file(folder: Path, *names: str) -> Path | None:
    """Return the first of these files that exists, gzipped or not."""
    paths = (folder / f"{name}{end}" for name in names for end in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def need_file(folder: Path, *names: str) -> Path:
    """Return the first of these files that exists, or raise FileNotFoundError."""
    file = find_file(folder, *names)
    if file is None:
        looked_for = " or ".join(f"{name}[.gz]" for name in names)
        raise FileNotFoundError(f"{folder}: looked for {looked_for}; {KNOWN_LAYOUTS}")
    return file


def split_files(folder: Path, *patterns: str) -> list[Path | None]:
    """Return the files of train, valid and test; only train must exist."""
    train, *others = (
        [pattern.format(split) for pattern in patterns] for split in ("train", "valid", "test")
    )
    return [need_file(folder, *train), *(find_file(folder, *names) for names in others)]


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and content of the lines that are not blank."""
    return ((i, line) for i, line in enumerate(text.split("\n"), 1) if line and not line.isspace())
