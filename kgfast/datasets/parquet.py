"""Folders of Parquet files: ``train.parquet``, and ``valid.parquet`` and ``test.parquet`` if any.

A file has columns of heads, relations and tails, named as in :data:`kgfast.graph.TRIPLE_COLUMNS`;
other columns are not read. Text is names. Whole numbers are ids from 0, and their digits are the
names. Files ``entities.parquet`` and ``relations.parquet``, with columns ``id`` and ``name``, give
names to ids.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgfast.datasets.data_files import DataFile, Folder
from kgfast.datasets.lines import Parts
from kgfast.frames import EXTRA, needed
from kgfast.graph import Vocabulary
from kgfast.graph.stored.inputs import arrow_values, triple_columns
from kgfast.text import reading, shown

# unnamed ids: the largest may be 64 times the number of ids, or 2^20
_SPARSE, _ALWAYS = 64, 1 << 20

_Triple = tuple[Any, Any, Any]


def read_parquet(folder: Folder, _: str | None) -> Parts:
    files = folder.splits("{}.parquet")
    splits = [None if file is None else _triples(file) for file in files]
    vocabularies = []
    for name, places in (("entities", (0, 2)), ("relations", (1,))):
        columns = [split[place] for split in splits if split is not None for place in places]
        own = folder.find(f"{name}.parquet")
        vocabularies.append(_named(own) if own else _vocabulary(columns, folder, name))
    entities, relations = vocabularies
    rows = [
        _ids(file, split, entities, relations) for file, split in zip(files, splits, strict=True)
    ]
    return entities, relations, rows, files


def read_table(file: DataFile) -> Any:
    parquet = needed("pyarrow.parquet", f"{file.path}: reading Parquet", EXTRA)
    if file.path.suffix == ".gz":
        raise ValueError(f"{file.path}: Parquet files compress themselves; unpack the file")
    with reading(file.path, "no valid Parquet file"):
        table = parquet.read_table(file.path)
        _ = table.column_names  # raises if names are not UTF-8
        return table


def _column(file: DataFile, table: Any, name: str) -> Any:
    """Return a column as an array of int64 or of strings."""
    with reading(file.path, f"column {name}"):
        column = table.column(name)
        values = arrow_values(file.path, column, name)
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    if len(values) and not all(isinstance(value, str) for value in values):
        raise ValueError(f"{file.path}: column {name} must hold text or ids; got {column.type}")
    return np.array([it.strip() for it in values], object) if "blanks" in file.clean else values


def _triples(file: DataFile) -> _Triple:
    table = read_table(file)
    names = triple_columns(file.path, table.column_names)
    head, relation, tail = (_column(file, table, name) for name in names)
    return head, relation, tail


def _vocabulary(columns: list[Any], folder: Folder, what: str) -> Vocabulary:
    """Return the sorted names in columns; for ids, all ids up to the largest."""
    filled = [column for column in columns if len(column)]
    if all(column.dtype.kind == "i" for column in filled):
        largest = max((int(column.max()) for column in filled), default=-1)
        count = sum(map(len, filled))
        if largest >= max(_ALWAYS, _SPARSE * count):
            raise ValueError(
                f"{folder.root}: the ids of {what} must be about as many as the largest, "
                f"{largest:,}; the files hold {count:,}: number ids from 0, or name ids in "
                f"{what}.parquet"
            )
        return Vocabulary(map(str, range(largest + 1)))
    return Vocabulary(sorted({str(name) for column in filled for name in column}))


def _named(file: DataFile) -> Vocabulary:
    table = read_table(file)
    if not {"id", "name"} <= set(table.column_names):
        raise ValueError(
            f"{file.path}: expected columns id and name; got {shown(table.column_names)}"
        )
    ids, names = (_column(file, table, name) for name in ("id", "name"))
    order = np.argsort(ids, kind="stable")
    if ids.dtype.kind != "i" or not np.array_equal(ids[order], np.arange(len(ids))):
        raise ValueError(f"{file.path}: ids must be 0..{len(ids) - 1}, each once")
    with reading(file.path, "names"):
        return Vocabulary(map(str, names[order]))


def _ids(
    file: DataFile | None, split: _Triple | None, entities: Vocabulary, relations: Vocabulary
) -> Tensor:
    """Return rows of ids, int64 ``[T, 3]``."""
    if file is None or split is None:
        return torch.empty(0, 3, dtype=torch.int64, device="cpu")
    columns = []
    for name, values in zip(("head", "relation", "tail"), split, strict=True):
        names = relations if name == "relation" else entities
        if values.dtype.kind == "i":
            outside = np.flatnonzero((values < 0) | (values >= len(names)))
            if len(outside):
                row = int(outside[0])
                raise ValueError(
                    f"{file.path}: row {row}: {name} {values[row]} is outside 0..{len(names) - 1}"
                )
            columns.append(torch.from_numpy(values))
            continue
        unknown = next((row for row, value in enumerate(values) if value not in names), None)
        if unknown is not None:
            said = shown(values[unknown])
            raise ValueError(f"{file.path}: row {unknown}: {name} {said} is not a known name")
        columns.append(names.ids(list(values)))
    return torch.stack(columns, 1)
