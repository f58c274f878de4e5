"""Files of queries, names and types; errors name file, line and near names.

A line of queries has two of head, relation and tail, between tabs; the third is predicted. A first
line with two of these words names the columns, else the columns are head and relation. With
three columns, each line leaves one empty.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kgfast.datasets.data_files import numbered_lines, text_of
from kgfast.graph import Names, Side, Triples, TypeConstraints
from kgfast.graph.ids import read_id
from kgfast.text import bad_line, each_key_once

_ROLES: tuple[Side, ...] = ("head", "relation", "tail")
Sizes = tuple[int, int]
Queries = dict[Side, tuple[Tensor, dict[str, Tensor]]]


def read_queries(path: Path, names: Names, sizes: Sizes) -> Queries:
    """Return queries by predicted side: places in the file, int64, and ids by role.

    ``names`` and ``sizes`` are those of entities and relations; without names, cells are ids. Roles
    are called ``heads``, ``relations``, ``tails``, as in :func:`kgfast.topk`. A ValueError names
    file, line and problem.
    """
    lines = _read(path)
    header: list[str] = list(_ROLES[:2])
    if len(set(lines[0][1].split("\t")) & set(_ROLES)) >= 2:
        first = lines.pop(0)
        header = first[1].split("\t")
        if len(set(header)) < len(header):
            raise bad_line(path, first[0], "a column stands twice", first[1])
    rows: dict[Side, list[list[int]]] = {}
    for place, (number, line) in enumerate(lines):
        fields = line.split("\t")
        if len(fields) != len(header):
            problem = f"expected {len(header)} tab-separated fields, found {len(fields)}"
            raise bad_line(path, number, problem, line)
        cells = dict(zip(header, fields, strict=True))
        roles = [role for role in _ROLES if cells.get(role)]
        if len(roles) != 2:
            problem = "a query has two of head, relation and tail, and predicts the third; got"
            raise bad_line(path, number, f"{problem} {len(roles)}", line)
        ids = [_id(path, (number, line), cells[role], role, names, sizes) for role in roles]
        (side,) = set(_ROLES).difference(roles)
        rows.setdefault(side, []).append([place, *ids])
    if not rows:
        raise ValueError(f"{path}: holds no queries")
    queries: Queries = {}
    for side in (role for role in _ROLES if role in rows):
        places, *columns = torch.tensor(rows[side], dtype=torch.int64, device="cpu").T.contiguous()
        names_of_columns = [f"{role}s" for role in _ROLES if role != side]
        queries[side] = places, dict(zip(names_of_columns, columns, strict=True))
    return queries


def read_candidates(path: Path, side: Side, names: Names, sizes: Sizes) -> Tensor:
    """Return the distinct ids of a file of names, one per line: entities, or relations."""
    lines = _read(path)
    ids = {_id(path, line, line[1], side, names, sizes) for line in lines}
    return torch.tensor(sorted(ids), dtype=torch.int64, device="cpu")


def read_types(path: Path, names: Names, train: Callable[[], Triples]) -> TypeConstraints:
    """Return the candidates of each relation, by a file of relations or of types of entities.

    The formats are those of :meth:`kgfast.training.LoadedRun.type_constraints`. Types of entities
    need the triples of ``train``.
    """
    if path.suffix == ".json":
        content = dict(json.loads(text_of(path), object_pairs_hook=each_key_once))
    else:
        content = {}
        for number, line in numbered_lines(text_of(path)):
            entity, *kinds = line.split("\t")
            if len(kinds) != 1:
                raise bad_line(path, number, "expected an entity, a tab and a type", line)
            content.setdefault(entity, []).extend(kinds)
    if not content:
        raise ValueError(f"{path}: holds no types")
    lists = [value for value in content.values() if isinstance(value, list)]
    if any(lists) and all(isinstance(kind, str) for kinds in lists for kind in kinds):
        pairs = [(entity, kind) for entity in content for kind in content[entity]]
        return TypeConstraints.from_types(train(), pairs)
    keys = content if names[1] is not None else map(read_id, content)
    return TypeConstraints(dict(zip(keys, content.values(), strict=True)), vocabulary=names)


def _read(path: Path) -> list[tuple[int, str]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    lines = list(numbered_lines(text_of(path)))
    if not lines:
        raise ValueError(f"{path}: holds no names")
    return lines


def _id(
    path: Path, line: tuple[int, str], cell: str, role: Side, names: Names, sizes: Sizes
) -> int:
    place = int(role == "relation")
    vocabulary = names[place]
    try:
        return read_id(cell, sizes[place]) if vocabulary is None else vocabulary[cell]
    except ValueError as error:
        raise bad_line(path, line[0], str(error), line[1]) from None
