"""Folders with ids from DGL-KE (``--format raw_udd_{htr}``).

DGL-KE writes ``entities.tsv`` and ``relations.tsv`` (id, delimiter, name) beside the given triples,
and rows of its tables are in the order of these ids. No file says which column of a triple is the
head. But DGL-KE numbers names in order of appearance, line by line, and in each line the head
before the tail. So the ids show the order of columns (``KGDatasetUDDRaw.load_entity_relation``).
"""

import warnings
from typing import NamedTuple

import numpy as np
import torch

from kgfast.datasets.data_files import DataFile, Folder, numbered_lines
from kgfast.datasets.lines import Parts, ids_of_names, read_vocabulary
from kgfast.graph import Vocabulary
from kgfast.graph.stored.inputs import ORDERS
from kgfast.text import shown

_DELIMITERS = "\t|,;"


class _Split(NamedTuple):
    file: DataFile | None
    # three columns in the order of the file, and perhaps a column of importance
    columns: list[list[str]]


def read_raw_udd(folder: Folder, columns: str | None) -> Parts:
    entity_file, relation_file = folder.need("entities.tsv"), folder.need("relations.tsv")
    delimiter = _delimiter(entity_file)
    entities, relations = (
        read_vocabulary(file, lambda line: line.split(delimiter, 1))
        for file in (entity_file, relation_file)
    )
    splits = [
        _Split(file, _columns_of(file, delimiter))
        for file in folder.splits("{}.tsv", "{}.txt", "{}.csv")
    ]
    if len(splits[0].columns) == 4:
        warnings.warn(f"{folder.root}: the importance of edges is not used", stacklevel=3)
    order = columns or _order(splits[0], entities, relations)
    rows = []
    for file, fields in splits:
        head, relation, tail = (fields[order.index(letter)] for letter in "hrt")
        rows.append(ids_of_names(file, (head, relation, tail), entities, relations))
    return entities, relations, rows, [split.file for split in splits]


def _delimiter(file: DataFile) -> str:
    number, line = next(numbered_lines(file.text()), (1, ""))
    after = line.lstrip("0123456789")
    if after == line or after[:1] not in tuple(_DELIMITERS):
        problem = "expected an id, a tab, |, comma or ;, and a name, as DGL-KE writes"
        raise file.bad_line(number, f"{problem} entities.tsv", line)
    return after[0]


def _columns_of(file: DataFile | None, delimiter: str) -> list[list[str]]:
    if file is None:
        return [[], [], []]
    lines = list(numbered_lines(file.text()))
    rows = [line.strip().split(delimiter) for _, line in lines]
    width = len(rows[0]) if rows and len(rows[0]) in (3, 4) else 3
    for (number, line), row in zip(lines, rows, strict=True):
        if len(row) != width:
            what = f"expected {width} fields between {delimiter!r}, found {len(row)}"
            raise file.bad_line(number, what, line)
        if "" in row:
            raise file.bad_line(number, "empty name", line)
        if width == 4 and not _is_number(row[3]):
            problem = f"expected the edge's importance as fourth field, found {shown(row[3])}"
            raise file.bad_line(number, problem, line)
    return [[row[i] for row in rows] for i in range(width)]


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _order(train: _Split, entities: Vocabulary, relations: Vocabulary) -> str:
    """Return the order of columns, such as "hrt": from the ids, else from the names."""
    is_entity = [all(name in entities for name in names) for names in train.columns]
    is_relation = [all(name in relations for name in names) for names in train.columns]
    allowed = [
        order
        for order in ORDERS
        if all((is_relation if letter == "r" else is_entity)[i] for i, letter in enumerate(order))
    ]
    numbered = [
        letter for letter in allowed if _numbered_so(letter, train.columns, entities, relations)
    ]
    if numbered:
        return numbered[0]
    if "hrt" in allowed or not allowed:  # the usual order; errors name unknown names
        return "hrt"
    assert train.file is not None
    raise ValueError(
        f"{train.file.path}: the columns may be {' or '.join(allowed)}, and the ids in "
        "entities.tsv are not in the order of either; pass columns= (dataset.columns of a config)"
    )


def _numbered_so(
    order: str, columns: list[list[str]], entities: Vocabulary, relations: Vocabulary
) -> bool:
    head, relation, tail = (columns[order.index(letter)] for letter in "hrt")
    met = torch.stack([entities.ids(head), entities.ids(tail)], dim=1).flatten().numpy()
    return all(_ascends(ids) for ids in (met, relations.ids(relation).numpy()))


def _ascends(ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> bool:
    before = np.maximum.accumulate(np.append(-1, ids))[:-1]
    return bool((ids <= before + 1).all())
