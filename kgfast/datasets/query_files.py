"""Files of queries and of names, one a line; errors name file, line and near names.

A line of queries has two of head, relation and tail, between tabs; the third is predicted. A first
line with two of these words names the columns, else the columns are head and relation. With
three columns, each line leaves one empty.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from kgfast.datasets.data_files import DataFile, numbered_lines
from kgfast.graph import Names, Side
from kgfast.graph.ids import read_id

_ROLES: tuple[Side, ...] = ("head", "relation", "tail")
Queries = dict[Side, tuple[Tensor, dict[str, Tensor]]]


def read_queries(path: Path, names: Names, sizes: tuple[int, int]) -> Queries:
    """Return queries by predicted side: places in the file, int64, and ids by role.

    ``names`` and ``sizes`` are those of entities and relations; without names, cells are ids. Roles
    are called ``heads``, ``relations``, ``tails``, as in :func:`kgfast.topk`. A ValueError names
    file, line and problem.
    """
    file, lines = _read(path)
    header = lines[0][1].split("\t")
    if len(set(header) & set(_ROLES)) >= 2:
        lines = lines[1:]
        if not lines:
            raise ValueError(f"{path}: holds no queries")
    else:
        header = list(_ROLES[:2])
    columns: dict[Side, dict[str, list[int]]] = {}
    for place, (number, line) in enumerate(lines):
        fields = line.split("\t")
        if len(fields) != len(header):
            problem = f"expected {len(header)} tab-separated fields, found {len(fields)}"
            raise file.bad_line(number, problem, line)
        cells = dict(zip(header, fields, strict=True))
        missing = [role for role in _ROLES if not cells.get(role)]
        if len(missing) != 1:
            problem = "a query has two of head, relation and tail, and predicts the third; got"
            raise file.bad_line(number, f"{problem} {3 - len(missing)}", line)
        ids = columns.setdefault(missing[0], {})
        ids.setdefault("place", []).append(place)
        for role in _ROLES:
            if role not in missing:
                id = _id(file, number, line, cells[role], role, names, sizes)
                ids.setdefault(f"{role}s", []).append(id)
    queries: Queries = {}
    for side in (role for role in _ROLES if role in columns):
        tensors = {
            role: torch.tensor(values, dtype=torch.int64, device="cpu")
            for role, values in columns[side].items()
        }
        places = tensors.pop("place")
        queries[side] = places, tensors
    return queries


def read_candidates(path: Path, side: Side, names: Names, sizes: tuple[int, int]) -> Tensor:
    """Return the distinct ids of a file of names, one per line: entities, or relations."""
    file, lines = _read(path)
    ids = [_id(file, number, line, line, side, names, sizes) for number, line in lines]
    return torch.tensor(sorted(set(ids)), dtype=torch.int64, device="cpu")


def _read(path: Path) -> tuple[DataFile, Sequence[tuple[int, str]]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    lines = list(numbered_lines(DataFile(path).text()))
    if not lines:
        raise ValueError(f"{path}: holds no names")
    return DataFile(path), lines


def _id(
    file: DataFile,
    number: int,
    line: str,
    cell: str,
    role: str,
    names: Names,
    sizes: tuple[int, int],
) -> int:
    place = int(role == "relation")
    vocabulary = names[place]
    try:
        return read_id(cell, sizes[place]) if vocabulary is None else vocabulary[cell]
    except ValueError as error:
        raise file.bad_line(number, str(error), line) from None
