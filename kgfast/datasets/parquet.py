"""Folders of Parquet files: ``train.parquet``, and ``valid.parquet`` and ``test.parquet`` if any.

A file has columns of heads, relations and tails, named as in ``TRIPLE_COLUMNS`` of lines.py;
other columns are not read. Text is names. Whole numbers are ids from 0, and their digits are the
names.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kgfast.datasets.data_files import split_files
from kgfast.datasets.lines import TRIPLE_COLUMNS, Graph
from kgfast.frames import EXTRA, needed
from kgfast.graph import Vocabulary
from kgfast.text import reading, shown

# the largest id may be 64 times the number of ids, or 2^20
_SPARSE, _ALWAYS = 64, 1 << 20

_Column = NDArray[Any]


def read_parquet(folder: Path) -> Graph:
    files = split_files(folder, "{}.parquet")
    nothing = [np.empty(0, np.int64)] * 3
    splits = [nothing if file is None else _columns(file) for file in files]
    entities = _vocabulary(
        folder, "entities", [column for split in splits for column in split[::2]]
    )
    relations = _vocabulary(folder, "relations", [split[1] for split in splits])
    rows = [
        torch.stack([entities.ids(h), relations.ids(r), entities.ids(t)], dim=1)
        for h, r, t in ([list(map(str, column)) for column in split] for split in splits)
    ]
    return entities, relations, rows, files


def _columns(file: Path) -> list[_Column]:
    """Return the columns of triples, of int64 or of strings."""
    parquet = needed("pyarrow.parquet", f"{file}: reading Parquet", EXTRA)
    with reading(file, "no valid Parquet file"):
        table = parquet.read_table(file)
        columns_here = table.column_names  # raises if they are not UTF-8
    names = next((names for names in TRIPLE_COLUMNS if set(names) <= set(columns_here)), None)
    if names is None:
        known = " or ".join(", ".join(names) for names in TRIPLE_COLUMNS)
        raise ValueError(f"{file}: expected columns {known}; got {shown(columns_here)}")
    columns = []
    for name in names:
        with reading(file, f"column {name}"):
            if table.column(name).null_count:
                row = table.column(name).is_null().to_pylist().index(True)
                raise ValueError(f"{file}: row {row} has no {name}")
            values = table.column(name).to_numpy(zero_copy_only=False)
        if values.dtype.kind in "iu":
            values = values.astype(np.int64)
            if (values < 0).any():
                row = int((values < 0).argmax())
                raise ValueError(f"{file}: row {row}: {name} {values[row]} is below 0")
        elif not all(isinstance(value, str) for value in values):
            kind = table.column(name).type
            raise ValueError(f"{file}: column {name} must hold text or ids; got {kind}")
        columns.append(values)
    return columns


def _vocabulary(folder: Path, what: str, columns: list[_Column]) -> Vocabulary:
    """Return the sorted names in columns; for ids, all ids up to the largest."""
    filled = [column for column in columns if len(column)]
    if any(column.dtype.kind != "i" for column in filled):
        return Vocabulary(sorted({str(name) for column in filled for name in column}))
    largest = max((int(column.max()) for column in filled), default=-1)
    count = sum(map(len, filled))
    if largest >= max(_ALWAYS, _SPARSE * count):
        raise ValueError(
            f"{folder}: the ids of {what} must be about as many as the largest, {largest:,}; "
            f"the files hold {count:,}: number ids from 0"
        )
    return Vocabulary(map(str, range(largest + 1)))
