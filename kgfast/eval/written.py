"""Columns as files for other programs: CSV, TSV, Parquet. Each is written whole or not at all."""

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from kgfast.frames import needed, write_whole

Columns = Mapping[str, Sequence[Any] | np.ndarray]


class Written:
    """A result that has columns, which it writes."""

    def columns(self, vocabulary: Any = None) -> Columns:
        """Its columns, by the names of ``vocabulary`` or its own."""
        raise NotImplementedError

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the columns of :meth:`to_frame` as CSV, or TSV by its suffix; needs no pandas."""
        return write_columns(self.columns(), path)

    def to_parquet(self, path: str | os.PathLike[str]) -> Path:
        """Write the columns of :meth:`to_frame` as Parquet.

        Raises
        ------
        ImportError
            If pyarrow is not installed.
        """
        return write_columns(self.columns(), path)


def write_columns(columns: Columns, path: str | os.PathLike[str]) -> Path:
    """Write columns of one length in the format of the file's suffix.

    Parameters
    ----------
    columns : mapping of str to sequence or array
    path
        ``.csv``, ``.tsv`` (names with a tab are quoted) or ``.parquet``.

    Returns
    -------
    Path

    Raises
    ------
    ValueError
        For another suffix.
    ImportError
        For Parquet, if pyarrow is not installed.
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = write_columns({"head": ["ann"], "score": np.float32([0.1])}, f"{folder}/a.csv")
    ...     path.read_text().splitlines()
    ['head,score', 'ann,0.1']
    """
    write = _writer(Path(path))
    return write_whole(path, lambda beside: write(columns, beside))


def check_suffix(path: str | os.PathLike[str]) -> None:
    """That :func:`write_columns` knows the format, and has what it needs: before the work."""
    _writer(Path(path))


def _writer(path: Path) -> Callable[[Columns, Path], None]:
    suffix = path.suffix.lower()
    if suffix not in _WRITERS:
        raise ValueError(f"{path}: must end in {', '.join(_WRITERS)}; got {suffix or 'no suffix'}")
    if suffix == ".parquet":
        needed("pyarrow", f"{path} (unlike .csv and .tsv)")
    return _WRITERS[suffix]


def _write_text(delimiter: str) -> Callable[[Columns, Path], None]:
    def write(columns: Columns, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
            writer.writerow(columns)
            # Numbers of an array are as short as their type allows.
            writer.writerows(zip(*(list(column) for column in columns.values()), strict=True))

    return write


def _write_parquet(columns: Columns, path: Path) -> None:
    table = import_module("pyarrow").table(dict(columns))
    import_module("pyarrow.parquet").write_table(table, path)


_WRITERS = {".csv": _write_text(","), ".tsv": _write_text("\t"), ".parquet": _write_parquet}
