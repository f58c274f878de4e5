"""Tables for other programs: columns written to files, and the packages that this needs."""

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from kgfast.whole_files import write_whole

if TYPE_CHECKING:
    from torch import Tensor

Columns = Mapping[str, Sequence[Any] | np.ndarray]
# Arguments of pip install: for all formats of data, and for frames.
EXTRA, FRAMES = '"kgfast[data]"', '"kgfast[frames]"'
_SUFFIXES = ".csv", ".tsv", ".jsonl", ".parquet"


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
        clone = f" (in a clone: {install.replace('kgfast', '.')})" if install else ""
        raise ImportError(f"{what} needs {name}: pip install {install or name}{clone}") from None
    return import_module(package)


def score_column(scores: "Tensor") -> np.ndarray:
    """Return scores as a column; a zero has no sign."""
    column: np.ndarray = scores.cpu().numpy() + 0.0
    return column


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Check, before the work, that :func:`write_columns` can write such a file."""
    suffix = Path(path).suffix
    if suffix not in _SUFFIXES:
        raise ValueError(f"{path}: must end in {', '.join(_SUFFIXES)}; got {suffix or 'no suffix'}")
    if suffix == ".parquet":
        needed("pyarrow", f"{path} (unlike .csv and .tsv)")


def write_columns(columns: Columns, path: str | os.PathLike[str]) -> Path:
    """Write columns of one length as ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``.

    Names with a tab are quoted in ``.tsv``; ``.jsonl`` holds an object a line.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_columns({"head": ["ann"], "score": np.float32([0.1])}, f"{folder}/a.csv")
    ...     path.read_text().splitlines()
    ['head,score', 'ann,0.1']
    """
    check_suffix(path)
    return write_whole(path, lambda beside: _write(columns, beside))


def _write(columns: Columns, path: Path) -> None:
    if path.suffix == ".parquet":
        table = import_module("pyarrow").table(dict(columns))
        import_module("pyarrow.parquet").write_table(table, path)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows_of(columns))
            file.writelines(lines)
            return
        delimiter = "," if path.suffix == ".csv" else "\t"
        # With this end of a line the writer quotes a cell that holds either character.
        lines = SimpleNamespace(write=lambda line: file.write(line.removesuffix("\r\n") + "\n"))
        writer = csv.writer(lines, delimiter=delimiter, lineterminator="\r\n")
        writer.writerow(columns)
        # Numbers of an array are as short as their type allows.
        writer.writerows(zip(*(list(column) for column in columns.values()), strict=True))


def rows_of(columns: Columns) -> Iterator[dict[str, Any]]:
    """Yield the rows of columns as objects for JSON.

    Examples
    --------
    >>> list(rows_of({"head": ["ann"], "score": np.float32([0.5])}))
    [{'head': 'ann', 'score': 0.5}]
    """
    values = [
        column.tolist() if isinstance(column, np.ndarray) else column for column in columns.values()
    ]
    return (dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True))
