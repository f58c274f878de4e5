"""Files of triples of ids, read in pieces: ``.npy``, Parquet, and text.

Cost model of text: a few operations of numpy on each byte and on each digit, 0.2 s for a million
lines of 20 characters. Text with anything but digits between tabs or spaces is read line by line.
This takes ten times as long and finds the wrong line.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from kgfast.frames import EXTRA, needed
from kgfast.graph.ids import INT64_MAX, read_id
from kgfast.graph.pair_index import narrow_dtype
from kgfast.storage import NpyHeader, npy_header
from kgfast.text import reading, shown

Column = npt.NDArray[Any]
Columns = tuple[Column, Column, Column]

# Names of heads, relations and tails in Parquet files.
TRIPLE_COLUMNS = (
    ("head", "relation", "tail"),
    ("h", "r", "t"),
    ("subject", "predicate", "object"),
    ("source", "relation", "target"),
)
NAMES = TRIPLE_COLUMNS[0]
ORDERS = ("hrt", "htr", "rht", "rth", "thr", "trh")
_TEXT_ENDINGS = (".tsv", ".txt", ".del")
_ENDINGS = (".npy", ".parquet", *_TEXT_ENDINGS)
_PIECE = 1 << 20  # rows that are read at once
_TEXT = 1 << 23  # bytes of text that are read at once
_SAMPLE = 1 << 20  # bytes of text from which the number of lines is estimated
_WHOLE = 2**53  # floats hold every whole number up to here
_MOST_DIGITS = 18  # most digits of ids that are read together


@dataclass(frozen=True)
class ReadOptions:
    """Order of columns of ``.npy`` and text, as "hrt", and limits of ids."""

    order: str
    num_entities: int | None
    num_relations: int | None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"columns must be one of {', '.join(ORDERS)}; got {shown(self.order)}")

    @property
    def places(self) -> list[int]:
        """Return the columns of heads, relations and tails."""
        return [self.order.index(letter) for letter in "hrt"]

    @property
    def sizes(self) -> tuple[int | None, int | None, int | None]:
        """Return one past the largest head, relation and tail."""
        return self.num_entities, self.num_relations, self.num_entities


@dataclass(frozen=True)
class IdFile:
    """File of triples; the number of rows of text is estimated."""

    path: Path
    rows: int
    pieces: Callable[[], Iterator[Columns]]  # heads, relations, tails, int32 or int64


def open_files(sources: Any, asked: ReadOptions) -> list[IdFile]:
    """Open files, or folders of files; only headers are read."""
    is_one = isinstance(sources, str | os.PathLike)
    if not is_one and not isinstance(sources, Sequence):
        raise TypeError(f"files must be a path or a list of paths; got {shown(sources)}")
    found = []
    for source in [sources] if is_one else sources:
        path = Path(source)
        if path.is_dir():
            inside = sorted(it for it in path.iterdir() if it.suffix.lower() in _ENDINGS)
            if not inside:
                raise FileNotFoundError(f"{path}: holds no files that end in {', '.join(_ENDINGS)}")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise FileNotFoundError(f"{path}: no such file")
    return [_open(path, asked) for path in found]


def _open(path: Path, asked: ReadOptions) -> IdFile:
    ending = path.suffix.lower()
    if ending == ".npy":
        return _npy(path, asked)
    if ending == ".parquet":
        return _parquet(path, asked)
    if ending in _TEXT_ENDINGS:
        return IdFile(path, _lines_of(path), partial(_text_pieces, path, asked))
    raise ValueError(f"{path}: must end in {', '.join(_ENDINGS)}; got {ending or 'no ending'}")


def _npy(path: Path, asked: ReadOptions) -> IdFile:
    header = npy_header(path)
    shape, kind = header.shape, header.dtype
    if len(shape) != 2 or shape[1] != 3:
        raise ValueError(f"{path}: triples must have shape [T, 3]; got {list(shape)}")
    if kind.kind not in "iuf":
        raise TypeError(f"{path}: triples must be ids; got {kind}")
    needed, size = header.offset + 3 * shape[0] * kind.itemsize, path.stat().st_size
    if size < needed:
        raise ValueError(
            f"{path}: truncated: {shape[0]:,} rows need {needed:,} bytes; has {size:,}"
        )
    return IdFile(path, shape[0], partial(_npy_pieces, path, header, asked))


def _npy_pieces(path: Path, header: NpyHeader, asked: ReadOptions) -> Iterator[Columns]:
    """Read pieces; a mapped file that shrinks meanwhile would end the process."""
    count, dtype, start = header.shape[0], header.dtype, header.offset
    size = dtype.itemsize
    with path.open("rb") as file:
        for first in range(0, count, _PIECE):
            rows = min(_PIECE, count - first)
            if header.by_columns:
                offsets = [start + (place * count + first) * size for place in asked.places]
                columns = [_numbers(path, file, dtype, it, rows) for it in offsets]
            else:
                found = _numbers(path, file, dtype, start + 3 * first * size, 3 * rows)
                columns = [found.reshape(-1, 3)[:, place] for place in asked.places]
            yield _checked(path, columns, first, asked)


def _numbers(path: Path, file: BinaryIO, dtype: Any, offset: int, count: int) -> Column:
    file.seek(offset)
    found = np.fromfile(file, dtype, count)
    if len(found) != count:
        raise ValueError(f"{path}: truncated during reading")
    return found


def _parquet(path: Path, asked: ReadOptions) -> IdFile:
    parquet = needed("pyarrow.parquet", f"{path}: reading Parquet", EXTRA)
    with (
        reading(path, "no valid Parquet file, or truncated"),
        parquet.ParquetFile(path, buffer_size=_PIECE, pre_buffer=False) as file,
    ):
        columns, rows = file.schema_arrow.names, file.metadata.num_rows
    names = triple_columns(path, columns)
    return IdFile(path, rows, partial(_parquet_pieces, path, names, asked))


def triple_columns(path: Path, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of heads, relations and tails of a Parquet file."""
    for names in TRIPLE_COLUMNS:
        if set(names) <= set(columns):
            return names
    known = " or ".join(", ".join(names) for names in TRIPLE_COLUMNS)
    raise ValueError(f"{path}: expected columns {known}; got {shown(columns)}")


def _parquet_pieces(path: Path, names: tuple[str, ...], asked: ReadOptions) -> Iterator[Columns]:
    from pyarrow import parquet

    first = 0
    with parquet.ParquetFile(path, buffer_size=_PIECE, pre_buffer=False) as file:
        batches = file.iter_batches(batch_size=_PIECE, columns=list(names))
        while True:
            with reading(path, f"cannot be read from row {first} on"):
                batch = next(batches, None)
                if batch is None:
                    return
                columns = [_of_arrow(path, batch.column(name), first) for name in names]
            yield _checked(path, columns, first, asked)
            first += len(batch)


def arrow_values(path: Path, column: Any, what: str, first: int = 0) -> Column:
    """Return the values of a column of pyarrow, in which every row must have a value."""
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueError(f"{path}: row {first + row} has no {what}")
    values: Column = column.to_numpy(zero_copy_only=False)
    return values


def _of_arrow(path: Path, column: Any, first: int) -> Column:
    values = arrow_values(path, column, "id", first)
    if values.dtype.kind not in "iuf":
        raise TypeError(f"{path}: triples must be ids; got {column.type}")
    return values


def _checked(path: Path, columns: list[Column], first: int, asked: ReadOptions) -> Columns:
    """Check that values are whole numbers within the sizes; return the narrowest dtype."""
    found = []
    for name, values, size in zip(NAMES, columns, asked.sizes, strict=True):
        if values.dtype.kind == "f":
            whole = (values == np.floor(values)) & (np.abs(values) <= _WHOLE)
            _refuse(path, ~whole, values, first, f"{name} {{}} is not a whole number")
        top = INT64_MAX if size is None else size - 1
        said = f"{name} {{}} is outside 0..{'' if size is None else top}"
        _refuse(path, (values < 0) | (values > top), values, first, said)
        largest = int(values.max()) if len(values) else 0
        found.append(np.ascontiguousarray(values, narrow_dtype(largest + 1)))
    head, relation, tail = found
    return head, relation, tail


def _refuse(path: Path, bad: Column, values: Column, first: int, problem: str) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(f"{path}: row {first + row}: {problem.format(values[row])}")


def _lines_of(path: Path) -> int:
    with path.open("rb") as file:
        text = file.read(_SAMPLE)
    if not text:
        return 0
    return -(-path.stat().st_size * (text.count(b"\n") + 1) // len(text))


def _text_pieces(path: Path, asked: ReadOptions) -> Iterator[Columns]:
    number, rest = 1, b""
    with path.open("rb") as file:
        while read := file.read(_TEXT):
            text = rest + read
            cut = text.rfind(b"\n") + 1
            if not cut and len(text) > _TEXT:
                raise _bad_line(path, number, "the line does not end", text)
            text, rest = text[:cut], text[cut:]
            yield _parsed(path, text, number, asked)
            number += text.count(b"\n")
    if rest:
        yield _parsed(path, rest + b"\n", number, asked)


def _parsed(path: Path, text: bytes, number: int, asked: ReadOptions) -> Columns:
    """Return the ids of whole lines; the first is line `number`."""
    if number == 1:
        text = text.removeprefix(b"\xef\xbb\xbf")
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    rows = _digits(text)
    if rows is None or any(
        size is not None and (rows[:, place] >= size).any()
        for place, size in zip(asked.places, asked.sizes, strict=True)
    ):
        rows = _walked(path, text, number, asked)
    return _checked(path, [rows[:, place] for place in asked.places], number, asked)


def _digits(text: bytes) -> npt.NDArray[np.int64] | None:
    """Return rows of three numbers, int64 ``[n, 3]``; None if other characters occur."""
    characters = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(characters < ord("0"))
    if len(ends) % 3 or (characters > ord("9")).any():
        return None
    between = characters[ends].reshape(-1, 3)
    is_tab_or_space = (between[:, :2] == ord("\t")) | (between[:, :2] == ord(" "))
    if not (is_tab_or_space.all() and (between[:, 2] == ord("\n")).all()):
        return None
    sizes = np.diff(ends, prepend=-1) - 1
    if len(sizes) and not (sizes.min() > 0 and sizes.max() <= _MOST_DIGITS):
        return None
    values = np.zeros(len(ends), np.int64)
    for place in range(int(sizes.max(initial=0))):
        # shorter numbers read any character here
        digits = characters[ends - 1 - place].astype(np.int64)
        digits -= ord("0")
        digits *= sizes > place
        digits *= 10**place
        values += digits
    return values.reshape(-1, 3)


def _walked(path: Path, text: bytes, first: int, asked: ReadOptions) -> npt.NDArray[np.int64]:
    """Read line by line, up to the first wrong line; blank lines are left out."""
    names = [NAMES["hrt".index(letter)] for letter in asked.order]
    sizes = [asked.sizes["hrt".index(letter)] for letter in asked.order]
    sizes = [INT64_MAX + 1 if size is None else size for size in sizes]
    rows = []
    for number, line in enumerate(text.decode(errors="replace").split("\n"), first):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 3:
            said = f"expected 3 ids ({' '.join(names)}), found {len(fields)} fields"
            raise _bad_line(path, number, said, line)
        try:
            rows.append([read_id(*it) for it in zip(fields, sizes, strict=True)])
        except ValueError as error:
            raise _bad_line(path, number, str(error), line) from None
    return np.array(rows, np.int64).reshape(-1, 3)


def _bad_line(path: Path, number: int, problem: str, line: str | bytes) -> ValueError:
    return ValueError(f"{path}:{number}: {problem}: {shown(line, 80)}")
