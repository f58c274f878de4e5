"""Files of queries and of names, TSV or Parquet; errors name file, line and near names.

A row of queries has two of head, relation and tail; the third is predicted. A first line with two
of these words names the columns. Without such a line, two columns are head and relation; three
columns are head, relation and tail, and each row leaves one empty.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgfast.datasets.data_files import DataFile, numbered_lines
from kgfast.datasets.parquet import read_table
from kgfast.graph import Names, Side, Vocabulary
from kgfast.graph.ids import read_id
from kgfast.text import shown

_ROLES: tuple[Side, ...] = ("head", "relation", "tail")
_Blame = Callable[[int, str], ValueError]  # makes the error of a row
_Cells = tuple[dict[str, Sequence[str]], _Blame]
Queries = dict[Side, tuple[Tensor, dict[str, Tensor]]]


def read_queries(path: Path, names: Names, sizes: tuple[int, int]) -> Queries:
    """Return queries by predicted side: places in the file, int64, and ids by role.

    ``names`` and ``sizes`` are those of entities and relations; without names, cells are ids. Roles
    are called ``heads``, ``relations``, ``tails``, as in :func:`kgfast.topk`. A ValueError names
    file, line and problem.
    """
    file = _file(path)
    columns, blame = (_of_parquet if path.suffix == ".parquet" else _of_text)(file)
    count = len(next(iter(columns.values())))
    cells = [columns.get(role) or [""] * count for role in _ROLES]
    is_missing = np.array([[not cell for cell in own] for own in cells])
    wrong = np.flatnonzero(is_missing.sum(0) != 1)
    if len(wrong):
        filled = 3 - int(is_missing[:, wrong[0]].sum())
        problem = (
            f"a query has two of head, relation and tail, and predicts the third; got {filled}"
        )
        raise blame(int(wrong[0]), problem)
    found: Queries = {}
    for side, missing in zip(_ROLES, is_missing, strict=True):
        rows = np.flatnonzero(missing).tolist()
        if rows:
            places = torch.tensor(rows, dtype=torch.int64, device="cpu")
            found[side] = (
                places,
                {
                    f"{role}s": _ids(own, rows, blame, *_space(role, names, sizes))
                    for role, own in zip(_ROLES, cells, strict=True)
                    if role != side
                },
            )
    return found


def read_candidates(path: Path, side: Side, names: Names, sizes: tuple[int, int]) -> Tensor:
    """Return the distinct ids of a file of names, one per line: entities, or relations."""
    file = _file(path)
    lines = list(numbered_lines(file.text()))
    if not lines:
        raise ValueError(f"{path}: holds no names")
    cells = [line for _, line in lines]
    space = _space(side, names, sizes)
    ids: Tensor = _ids(cells, range(len(cells)), _blames(file, lines), *space).unique()
    return ids


def _file(path: Path) -> DataFile:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    return DataFile(path)


def _space(role: str, names: Names, sizes: tuple[int, int]) -> tuple[Vocabulary | None, int]:
    place = int(role == "relation")
    return names[place], sizes[place]


def _ids(
    cells: Sequence[str], rows: Sequence[int], blame: _Blame, names: Vocabulary | None, size: int
) -> Tensor:
    def id_of(cell: str) -> int:
        return read_id(cell, size) if names is None else names[cell]

    found = []
    for row in rows:
        try:
            found.append(id_of(cells[row]))
        except ValueError as error:
            raise blame(row, str(error)) from None
    return torch.tensor(found, dtype=torch.int64, device="cpu")


def _of_text(file: DataFile) -> _Cells:
    lines = list(numbered_lines(file.text()))
    rows = [line.split("\t") for _, line in lines]
    header = rows[0] if rows else []
    if len(set(header) & set(_ROLES)) >= 2:
        lines, rows = lines[1:], rows[1:]
    elif len(header) in (2, 3):
        header = list(_ROLES[: len(header)])
    elif rows:
        problem = (
            f"expected 2 tab-separated fields, head and relation, or a header that names the "
            f"columns head, relation, tail; found {len(header)} fields"
        )
        raise file.bad_line(lines[0][0], problem, lines[0][1])
    if not rows:
        raise ValueError(f"{file.path}: holds no queries")
    blame = _blames(file, lines)
    for row, fields in enumerate(rows):
        if len(fields) != len(header):
            problem = f"expected {len(header)} tab-separated fields, found {len(fields)}"
            raise blame(row, problem)
    return dict(zip(header, zip(*rows, strict=True), strict=True)), blame


def _blames(file: DataFile, lines: Sequence[tuple[int, str]]) -> _Blame:
    return lambda row, problem: file.bad_line(lines[row][0], problem, lines[row][1])


def _of_parquet(file: DataFile) -> _Cells:
    table = read_table(file)
    named = [role for role in _ROLES if role in table.column_names]
    if len(named) < 2:
        raise ValueError(
            f"{file.path}: expected two of the columns head, relation, tail; got "
            f"{shown(table.column_names)}"
        )
    if not table.num_rows:
        raise ValueError(f"{file.path}: holds no queries")

    def blame(row: int, problem: str) -> ValueError:
        return ValueError(f"{file.path}: row {row}: {problem}")

    def text(row: int, value: Any) -> str:
        if value is not None and type(value) not in (int, str):
            raise blame(row, f"names are text or ids; got {shown(value)}")
        return "" if value is None else str(value)

    columns = {role: table.column(role).to_pylist() for role in named}
    return {
        role: [text(row, value) for row, value in enumerate(own)] for role, own in columns.items()
    }, blame
