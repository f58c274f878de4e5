"""Folders with ids from DGL-KE (``--format raw_udd_{htr}``).

DGL-KE writes ``entities.tsv`` and ``relations.tsv`` (id, delimiter, name) beside the given triples,
and rows of its tables are in the order of these ids. No file says which column of a triple is the
head. But DGL-KE numbers names in order of appearance, line by line, and in each line the head
before the tail. So the ids show the order of columns (``KGDatasetUDDRaw.load_entity_relation``).
"""

import torch
from torch import Tensor

from kgfast.datasets.data_files import DataFile, Folder, numbered_lines
from kgfast.datasets.lines import ORDERS, Columns, Graph, ids_of_names, read_vocabulary
from kgfast.graph import Vocabulary


def read_raw_udd(folder: Folder, order: str | None = None) -> Graph:
    files = folder.need("entities.tsv"), folder.need("relations.tsv")
    number, line = next(numbered_lines(files[0].text()), (1, ""))
    delimiter = line.lstrip("0123456789")[:1]
    if delimiter not in tuple("\t|,;") or line.startswith(delimiter):
        problem = "expected an id, a tab, |, comma or ;, and a name, as DGL-KE writes entities.tsv"
        raise files[0].bad_line(number, problem, line)
    entities, relations = (
        read_vocabulary(file, lambda line: line.split(delimiter, 1)) for file in files
    )
    splits = folder.splits("{}.tsv", "{}.txt", "{}.csv")
    columns = [_columns_of(file, delimiter) for file in splits]
    if order is None:
        order = next((it for it in ORDERS if _is_order(it, columns[0], entities, relations)), None)
    if order is None:
        ids_of_names(splits[0], columns[0], entities, relations)  # an error names an unknown name
        raise ValueError(
            f"{folder.root}: the ids in entities.tsv show no order of the columns of train; pass "
            "columns= (dataset.columns of a config), such as hrt"
        )
    rows = [
        ids_of_names(file, _ordered(order, names), entities, relations)
        for file, names in zip(splits, columns, strict=True)
    ]
    return entities, relations, rows, splits


def _columns_of(file: DataFile | None, delimiter: str) -> Columns:
    rows = []
    for number, line in () if file is None else numbered_lines(file.text()):
        assert file is not None
        row = line.strip().split(delimiter)
        if len(row) != 3:
            problem = f"expected 3 fields between {delimiter!r}, found {len(row)}"
            raise file.bad_line(number, problem, line)
        if "" in row:
            raise file.bad_line(number, "empty name", line)
        rows.append(row)
    first, second, third = ([row[place] for row in rows] for place in range(3))
    return first, second, third


def _ordered(order: str, columns: Columns) -> Columns:
    head, relation, tail = (columns[order.index(letter)] for letter in "hrt")
    return head, relation, tail


def _is_order(order: str, columns: Columns, entities: Vocabulary, relations: Vocabulary) -> bool:
    """Return whether ids ascend in the order of appearance, if columns have this order."""
    head, relation, tail = _ordered(order, columns)
    try:
        both = torch.stack([entities.ids(head), entities.ids(tail)], dim=1)
        return _ascends(both.flatten()) and _ascends(relations.ids(relation))
    except ValueError:  # unknown names
        return False


def _ascends(ids: Tensor) -> bool:
    before = torch.cat([ids.new_tensor([-1]), ids.cummax(0).values[:-1]])
    return bool((ids <= before + 1).all())
