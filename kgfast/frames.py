"""Tables for other programs: columns written to files, and the packages that this needs."""

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kgfast.whole_files import write_whole

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

Columns = Mapping[str, Sequence[Any] | np.ndarray]
EXTRA = '"kgfast[data]"'  # argument of pip install for all formats of data
_SUFFIXES = ".csv", ".tsv", ".jsonl", ".parquet"
# Spreadsheets compute cells that begin with these signs, wide ones too, also after characters that
# they do not show.
_FORMULA = re.compile(r"[\s\0-\x1f]*[=+@\uff1d\uff0b\uff20\uff0d-]")


def needed(package: str, what: str, install: str = "") -> Any:
    """Import a package; an ImportError says that ``what`` needs it, and how to install it.

    Examples
    --------
    >>> needed("no_such_package", "Ranks.to_frame()")
    Traceback (most recent call last):
    ...
    ImportError: Ranks.to_frame() needs no_such_package: pip install no_such_package
    """
    name = package.partition(".")[0]
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # the package is installed, and lacks a module itself
            raise
        raise ImportError(f"{what} needs {name}: pip install {install or name}") from None
    return import_module(package)


def score_column(scores: "Tensor") -> np.ndarray:
    """Return scores as a column; a zero has no sign."""
    column: np.ndarray = scores.cpu().numpy() + 0.0
    return column


def write_parquet(frame: "DataFrame", path: str | os.PathLike[str], what: str) -> Path:
    """Write a table with its index to a Parquet file, whole or not at all."""
    needed("pyarrow", what)
    return write_whole(path, lambda beside: frame.to_parquet(beside, engine="pyarrow"))


def write_lines(lines: Iterable[str], path: Path) -> None:
    """Write lines as UTF-8, whatever the encoding of the machine."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.writelines(lines)


def write_columns(
    columns: Columns, path: str | os.PathLike[str], *, safe_cells: bool = False
) -> Path:
    """Write columns of one length as ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``.

    Names with a tab are quoted in ``.tsv``; ``.jsonl`` holds an object a line. ``safe_cells``: see
    :meth:`kgfast.Facts.to_csv`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_columns({"head": ["ann"], "score": np.float32([0.1])}, f"{folder}/a.csv")
    ...     path.read_text().splitlines()
    ['head,score', 'ann,0.1']
    """
    write = _writer(Path(path), safe_cells)
    return write_whole(path, lambda beside: write(columns, beside))


def check_suffix(path: str | os.PathLike[str], *, safe_cells: bool = False) -> None:
    """Check, before the work, that :func:`write_columns` can write such a file."""
    _writer(Path(path), safe_cells)


def _writer(path: Path, safe_cells: bool) -> Callable[[Columns, Path], None]:
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise ValueError(f"{path}: must end in {', '.join(_SUFFIXES)}; got {suffix or 'no suffix'}")
    if suffix in (".jsonl", ".parquet"):
        if safe_cells:
            holds = "JSON holds" if suffix == ".jsonl" else "Parquet holds"
            raise ValueError(f"{path}: safe cells are of .csv and .tsv; {holds} no formulas")
        if suffix == ".jsonl":
            return _write_json
        needed("pyarrow", f"{path} (unlike .csv and .tsv)")
        return _write_parquet
    return partial(_write_text, "," if suffix == ".csv" else "\t", safe_cells)


def _write_text(delimiter: str, safe_cells: bool, columns: Columns, path: Path) -> None:
    # Another separator than ours splits no text that is quoted.
    quoting: Any = csv.QUOTE_NONNUMERIC if safe_cells else csv.QUOTE_MINIMAL
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=quoting)
        writer.writerow(columns)
        # Numbers of an array are as short as their type allows.
        rows = zip(*(list(column) for column in columns.values()), strict=True)
        writer.writerows(map(_safe, rows) if safe_cells else rows)


def _safe(row: Sequence[Any]) -> list[Any]:
    """Mark text that a spreadsheet would compute as text."""
    return [f"'{it}" if isinstance(it, str) and _FORMULA.match(it) else it for it in row]


def _write_json(columns: Columns, path: Path) -> None:
    write_lines((json.dumps(row, ensure_ascii=False) + "\n" for row in rows_of(columns)), path)


def rows_of(columns: Columns) -> Iterator[dict[str, Any]]:
    """Yield the rows of columns as objects for JSON.

    Examples
    --------
    >>> list(rows_of({"head": ["ann"], "score": np.float32([0.5])}))
    [{'head': 'ann', 'score': 0.5}]
    """
    values = [it.tolist() if isinstance(it, np.ndarray) else it for it in columns.values()]
    return (dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True))


def _write_parquet(columns: Columns, path: Path) -> None:
    table = import_module("pyarrow").table(dict(columns))
    import_module("pyarrow.parquet").write_table(table, path)
