"""Files of triples of ids, read in pieces: ``.npy``, Parquet, and text."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kgfast.frames import EXTRA, needed
from kgfast.graph.ids import INT64_MAX, id_rows
from kgfast.graph.pair_index import narrow_dtype
from kgfast.text import bad_line, reading, shown

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


def open_files(sources: Any, options: ReadOptions) -> list[IdFile]:
    """Open files, or folders of files; only headers are read."""
    is_one = isinstance(sources, str | os.PathLike)
    if not is_one and not isinstance(sources, Sequence):
        raise TypeError(f"files must be a path or a list of paths; got {shown(sources)}")
    paths = []
    for source in [sources] if is_one else sources:
        path = Path(source)
        inside = [path]
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix.lower() in _ENDINGS)
            if not inside:
                raise FileNotFoundError(f"{path}: holds no files that end in {', '.join(_ENDINGS)}")
        elif not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")
        paths += inside
    return [_open(path, options) for path in paths]


def _open(path: Path, options: ReadOptions) -> IdFile:
    ending = path.suffix.lower()
    if ending == ".npy":
        return _npy(path, options)
    if ending == ".parquet":
        return _parquet(path, options)
    if ending in _TEXT_ENDINGS:
        return IdFile(path, _lines_of(path), partial(_text_pieces, path, options))
    raise ValueError(f"{path}: must end in {', '.join(_ENDINGS)}; got {ending or 'no ending'}")


def _npy(path: Path, options: ReadOptions) -> IdFile:
    with reading(path, "truncated, or not an array of numpy"):
        rows = np.load(path, mmap_mode="r")
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise ValueError(f"{path}: triples must have shape [T, 3]; got {list(rows.shape)}")
    if rows.dtype.kind not in "iuf":
        raise TypeError(f"{path}: triples must be ids; got {rows.dtype}")
    return IdFile(path, len(rows), partial(_npy_pieces, path, rows, options))


def _npy_pieces(path: Path, rows: Column, options: ReadOptions) -> Iterator[Columns]:
    for first in range(0, len(rows), _PIECE):
        piece = rows[first : first + _PIECE]
        yield _checked(path, [piece[:, place] for place in options.places], first, options)


def _parquet(path: Path, options: ReadOptions) -> IdFile:
    parquet = needed("pyarrow.parquet", f"{path}: reading Parquet", EXTRA)
    with (
        reading(path, "no valid Parquet file, or truncated"),
        parquet.ParquetFile(path, buffer_size=_PIECE, pre_buffer=False) as file,
    ):
        columns, rows = file.schema_arrow.names, file.metadata.num_rows
    names = triple_columns(path, columns)
    return IdFile(path, rows, partial(_parquet_pieces, path, names, options))


def triple_columns(path: Path, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of heads, relations and tails of a Parquet file."""
    for names in TRIPLE_COLUMNS:
        if set(names) <= set(columns):
            return names
    known = " or ".join(", ".join(names) for names in TRIPLE_COLUMNS)
    raise ValueError(f"{path}: expected columns {known}; got {shown(columns)}")


def _parquet_pieces(path: Path, names: tuple[str, ...], options: ReadOptions) -> Iterator[Columns]:
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
            yield _checked(path, columns, first, options)
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


def _checked(path: Path, columns: list[Column], first: int, options: ReadOptions) -> Columns:
    """Check that values are whole numbers within the sizes; return the narrowest dtype."""
    found = []
    for name, values, size in zip(NAMES, columns, options.sizes, strict=True):
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


def _text_pieces(path: Path, options: ReadOptions) -> Iterator[Columns]:
    columns = {NAMES["hrt".index(it)]: options.sizes["hrt".index(it)] for it in options.order}
    number = 1
    with path.open("rb") as file:
        while text := file.read(_TEXT):
            text += file.readline(_TEXT)
            if len(text) >= 2 * _TEXT and not text.endswith(b"\n"):
                raise bad_line(path, number + text.count(b"\n"), "the line does not end", b"")
            rows = id_rows(path, text, number, columns)
            yield _checked(path, [rows[:, place] for place in options.places], number, options)
            number += text.count(b"\n")
