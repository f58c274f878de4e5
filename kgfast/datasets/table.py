"""Tables of facts: CSV, TSV or Parquet with named columns, and splits of one table.

Cost model: one pass of :mod:`csv` over the file, gzipped or not, in blocks of rows. Memory holds 8
bytes for each cell of a fact, and each name, label and type once.
"""

import csv
import gzip
import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kgfast.datasets.data_files import (
    most_unpacked,
    need_file,
    split_files,
    unpacks_to_more,
)
from kgfast.datasets.lines import TIME, TRIPLE_COLUMNS, Files, Graph, ids_of_names
from kgfast.frames import EXTRA, needed
from kgfast.graph import TimedRelations, Vocabulary, did_you_mean
from kgfast.rng import mix, scrambled
from kgfast.text import bad_line, reading, shown

_ROLES = TRIPLE_COLUMNS[0]
_COUNTS = {"columns": 3, "labels": 2, "types": 2}
TABLES = (".csv", ".tsv", ".txt", ".parquet")
_ROWS = 1 << 13  # rows of a block
_LONGEST = 1 << 20  # bytes of a line
# the largest id of Parquet may be 64 times the number of ids, or 2^20
_SPARSE, _ALWAYS = 64, 1 << 20
EDGE_LISTS = tuple(
    f"tkgl-{name}_edgelist.csv" for name in ("icews", "polecat", "smallpedia", "wikidata", "yago")
)


class FactTable:
    """Tables of facts with the same columns, and what their rows say of entities.

    Parameters
    ----------
    columns
        Columns of heads, relations and tails: names of a header, or positions from 0 in a file
        without a header. By default a header has the names of ``TRIPLE_COLUMNS``.
    labels, types
        Columns of the labels, and of the types, of heads and of tails.

    Attributes
    ----------
    labels, types : dict
        The label, and the type, of names of entities; cells may be empty.
    """

    def __init__(self, columns: Any = None, labels: Any = None, types: Any = None) -> None:
        options = {"columns": columns, "labels": labels, "types": types}
        lists = {name: value for name, value in options.items() if value is not None}
        fits = all(
            isinstance(value, list | tuple) and len(value) == _COUNTS[name]
            for name, value in lists.items()
        )
        kinds = {type(column) for value in lists.values() for column in value} if fits else set()
        if (kinds or {str}) not in ({str}, {int}) or not fits or (columns is None and int in kinds):
            raise ValueError(
                "columns, labels and types must be 3 (no time), 2 and 2 names of a header, or "
                f"positions in a file without a header; got {shown(lists, 200)}"
            )
        self._columns, self._others = columns, [*(labels or ()), *(types or ())]
        self.is_default = columns is None and not self._others
        self._has_header = int not in kinds
        self.labels: dict[str, str] = {}
        self.types: dict[str, str] = {}
        self._kinds = [("label", self.labels)] * 2 * bool(labels)
        self._kinds += [("type", self.types)] * 2 * bool(types)
        self.roles_of_text: set[str] = set()  # roles that a Parquet file has as text

    def read(self, files: Files) -> Graph:
        """Read a file per split; sorted names are the vocabularies, numbers sorted as numbers."""
        entities: defaultdict[str, int] = defaultdict()
        relations: defaultdict[str, int] = defaultdict()
        entities.default_factory, relations.default_factory = entities.__len__, relations.__len__
        splits = []
        for file in files:
            blocks = [np.empty((3, 0), np.int64)]
            for start, (heads, names, tails, *others) in self._blocks(file) if file else ():
                for role, cells in zip(_ROLES, (heads, names, tails), strict=True):
                    if "" in cells:
                        raise self._bad(file, start + cells.index(""), f"the {role} is empty")
                self._note(file, start, [heads, tails] * 2, others)
                coded = (entities, heads), (relations, names), (entities, tails)
                blocks.append(np.array([[codes[cell] for cell in cells] for codes, cells in coded]))
            splits.append(np.concatenate(blocks, axis=1))
        vocabularies, places = zip(*map(_in_order, (entities, relations)), strict=True)
        rows = [np.stack([places[0][h], places[1][r], places[0][t]], 1) for h, r, t in splits]
        return (*vocabularies, [torch.from_numpy(row) for row in rows], files)

    def _note(self, file: Any, start: int, ends: list[Any], others: list[Any]) -> None:
        """Add a block's labels and types; an error if an entity has two."""
        for names, values, (kind, known) in zip(ends, others, self._kinds, strict=False):
            if list(map(known.get, names)) == list(values):
                continue
            for name, value in dict.fromkeys(zip(names, values, strict=True)):
                if value and known.setdefault(name, value) != value:
                    row = list(zip(names, values, strict=True)).index((name, value))
                    says = f"{shown(name)} has the {kind} {shown(value)}, elsewhere"
                    raise self._bad(file, start + row, f"{says} {shown(known[name])}")

    def _positions(self, file: Path, header: Sequence[str]) -> list[int]:
        """Return the positions of the columns among names, or among the cells of a first row."""
        columns = self._columns
        if columns is None:
            columns = next((names for names in TRIPLE_COLUMNS if set(names) <= set(header)), None)
        if columns is None:
            expected = " or ".join(", ".join(names) for names in TRIPLE_COLUMNS)
            raise ValueError(
                f"{file}: expected columns {expected}; else name head, relation and tail by "
                "columns=, without a header by positions, columns=(0, 1, 2); the first row is "
                f"{shown(list(header), 200)}"
            )
        columns = [*columns, *self._others]
        for column in columns:
            if not self._has_header and not 0 <= column < len(header):
                raise ValueError(f"{file}: columns must be in 0..{len(header) - 1}; got {column}")
            if self._has_header and header.count(column) != 1:
                which = "two columns" if column in header else "no column"
                hint = did_you_mean(column, header)
                says = f"{which} {shown(column)}{hint}; the header is {shown(list(header), 200)}"
                raise ValueError(f"{file}: {says}")
        if self._has_header:
            return [header.index(column) for column in columns]
        cells = [header[column] for column in columns[:3]]
        are_names = any({cell.lower() for cell in cells} == set(names) for names in TRIPLE_COLUMNS)
        if are_names and file.suffix != ".parquet":
            says = f"read as a fact; columns={tuple(cells)} skips it"
            warnings.warn(f"{file}: the first row names the columns, and is {says}", stacklevel=2)
        return list(columns)

    def _blocks(self, file: Path) -> Iterator[tuple[int, list[Any]]]:
        """Yield the first row of each block, from 0, and its columns."""
        with reading(file, "no readable table"):
            if file.suffix == ".parquet":
                yield from self._parquet(file)
                return
            with _reader(file) as reader:
                rows = filter(None, reader)
                first = next(rows, None)
                if first is None:
                    raise ValueError(f"{file}: holds no rows")
                positions = self._positions(file, first)
                start, block = 0, [] if self._has_header else [first]
                while block := [*block, *islice(rows, _ROWS)]:
                    widths = list(map(len, block))
                    if set(widths) != {len(first)}:
                        row = next(i for i, width in enumerate(widths) if width != len(first))
                        says = f"expected {len(first)} cells, found {widths[row]}"
                        raise self._bad(file, start + row, says)
                    yield start, list(zip(*map(itemgetter(*positions), block), strict=True))
                    start, block = start + len(block), []

    def _parquet(self, file: Path) -> Iterator[tuple[int, list[Any]]]:
        parquet = needed("pyarrow.parquet", f"{file}: reading Parquet", EXTRA).ParquetFile(file)
        header = parquet.schema_arrow.names
        names = [header[position] for position in self._positions(file, header)]
        start = 0
        for batch in parquet.iter_batches(_ROWS, columns=list(dict.fromkeys(names))):
            kinds = {name: str(batch[name].type) for name in names}
            for name, kind in kinds.items():
                if "float" in kind or "double" in kind:
                    raise ValueError(f"{file}: column {name} must hold text or ids; got {kind}")
            of_roles = zip(_ROLES, names, strict=False)
            self.roles_of_text |= {role for role, name in of_roles if "int" not in kinds[name][:4]}
            columns = {name: batch[name].cast("string").to_pylist() for name in set(names)}
            yield start, [[cell or "" for cell in columns[name]] for name in names]
            start += len(batch)

    def _bad(self, file: Any, row: int, problem: str) -> ValueError:
        if file.suffix == ".parquet":
            return ValueError(f"{file}: row {row}: {problem}")
        with _reader(file) as reader:
            cells = next(islice(filter(None, reader), row + self._has_header, None))
            return bad_line(file, reader.line_num, problem, "\t".join(cells))


@contextmanager
def _reader(file: Path) -> Iterator[Any]:
    """Open a table as rows; a tab in the first line separates cells, else a comma."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
        lines = _lines(file, opened)
        first = next(lines, "").removeprefix("\ufeff")
        delimiter = "\t" if "\t" in first else ","
        reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
        try:
            yield reader
        except csv.Error as error:
            says = f"{error}: a quoted cell ends with a quote, and has two for one"
            raise ValueError(f"{file}:{reader.line_num}: {says}") from None


def _lines(file: Path, opened: Any) -> Iterator[str]:
    left = most_unpacked(file) if file.suffix == ".gz" else math.inf
    for number, line in enumerate(iter(partial(opened.readline, _LONGEST), b""), 1):
        left -= len(line)
        if left < 0:
            raise unpacks_to_more(file)
        if len(line) == _LONGEST:
            raise bad_line(file, number, f"a line has more than {_LONGEST - 1:,} bytes", line)
        try:
            yield line.decode()
        except UnicodeDecodeError:
            raise bad_line(file, number, "not valid UTF-8", line) from None


def _in_order(codes: dict[str, int]) -> tuple[Vocabulary, np.ndarray]:
    """Return the sorted names, and the id of each code."""
    names = sorted(codes)
    if all(name.isdecimal() and len(name) < 20 for name in names):
        names.sort(key=int)
    ids = np.empty(len(names), np.int64)
    ids[[codes[name] for name in names]] = np.arange(len(names))
    return Vocabulary(names), ids


def read_table(file: Path, table: FactTable, sizes: Any, seed: int) -> Graph:
    """Read one table as a graph, each fact once; without sizes, all facts are train.

    Train has every entity and relation, the rule of PyKEEN's ``CoverageSplitter``: the first fact
    of each, in random order, goes to train. Facts (h, r, t) and (t, r, h) stay together, so a
    split may miss its size by one fact. The order is a hash of seed and place, equal everywhere.
    """
    if sizes is not None:
        fits = isinstance(sizes, list | tuple) and len(sizes) == 3
        fits = fits and all(isinstance(size, int | float) and 0 <= size <= 1 for size in sizes)
        if not fits or abs(sum(sizes) - 1) > 1e-9:
            says = "split must be 3 fractions that sum to 1, as (0.8, 0.1, 0.1)"
            raise ValueError(f"{says}; got {shown(sizes)}")
    entities, relations, (rows, *_), _ = table.read([file])
    keys = _keys(rows, entities, relations)
    facts = rows[torch.from_numpy(np.unique(keys, return_index=True)[1])]
    if not len(facts):
        raise ValueError(f"{file}: holds no facts")
    side = np.zeros(len(facts), np.int64)
    if sizes is not None:
        places = torch.arange(len(facts), dtype=torch.int64, device="cpu")
        facts = facts[scrambled(places + mix(seed)).argsort()]
        low, high = facts[:, ::2].aminmax(dim=1)
        edges = _keys(torch.stack([low, facts[:, 1], high], dim=1), entities, relations)
        side = _sides(facts, edges, sizes)
    splits = [facts[torch.from_numpy(side == split)] for split in range(3)]
    return entities, relations, splits, [None] * 3


def read_parquet(folder: Path) -> Graph:
    """Read Parquet files, text as names; whole numbers are ids from 0, whose digits are names."""
    files, table = split_files(folder, "{}.parquet"), FactTable()
    entities, relations, splits, _ = table.read(files)
    vocabularies = []
    for start, what, names in ((0, "entities", entities), (1, "relations", relations)):
        columns, in_order = slice(start, 3, 2), sorted(names)
        if table.roles_of_text.isdisjoint(_ROLES[columns]):
            largest = max(map(int, names), default=-1)
            count = sum(rows[:, columns].numel() for rows in splits)
            if largest >= max(_ALWAYS, _SPARSE * count):
                raise ValueError(
                    f"{folder}: the ids of {what} must be about as many as the largest, "
                    f"{largest:,}; the files hold {count:,}: number ids from 0"
                )
            ids = np.array(list(map(int, names)), np.int64)
            for file, rows in zip(files, splits, strict=True):
                for row, column in np.argwhere(ids[rows[:, columns]] < 0)[:1]:
                    role, id = _ROLES[columns][column], ids[rows[row, columns][column]]
                    raise ValueError(f"{file}: row {row}: {role} {id} is below 0")
            in_order = list(map(str, range(largest + 1)))
        vocabularies.append(Vocabulary(in_order))
        places = vocabularies[-1].ids(names)
        for rows in splits:
            rows[:, columns] = places[rows[:, columns]]
    return vocabularies[0], vocabularies[1], splits, files


def read_tkgl(folder: Path) -> Graph:
    """Read a tkgl-* data set of the Temporal Graph Benchmark: one CSV file of quads.

    A line holds timestamp, head, tail and relation_type; the first names the columns. Ids and
    splits are those of py-tgb: train has the first 70 % of quads by time, valid 15 % (tkgl-yago: 80
    and 10).
    """
    file, quads = need_file(folder, *EDGE_LISTS), []
    with reading(file, "no readable table"), _reader(file) as reader:
        for row in islice(filter(None, reader), 1, None):
            if len(row) != 4 or "" in row or not TIME.fullmatch(row[0]):
                expected = "expected timestamp, head, tail and relation_type"
                raise bad_line(file, reader.line_num, expected, ",".join(row))
            quads.append(row)
    if not quads:
        raise ValueError(f"{file}: holds no quads")
    stamps, heads, tails, relations = zip(*quads, strict=True)
    entities = Vocabulary(dict.fromkeys(chain.from_iterable(zip(heads, tails, strict=True))))
    names = list(dict.fromkeys(relations))
    names = sorted(names, key=int) if all(map(str.isdecimal, names)) else names
    times = Vocabulary(sorted(set(stamps), key=int))
    vocabularies = entities, TimedRelations(Vocabulary(names), times)
    hrt = ids_of_names(file, [[*heads], [*relations], [*tails], [*stamps]], *vocabularies)
    ends = [0.8, 0.9] if "yago" in file.name else [0.7, 0.85]
    values = np.array(stamps, np.int64)
    place = np.searchsorted(np.quantile(values.repeat(2), ends), values)  # with the inverses
    return *vocabularies, [hrt[place == split] for split in range(3)], [None] * 3


def _keys(rows: Tensor, entities: Vocabulary, relations: Vocabulary) -> np.ndarray:
    """Return a number of each fact."""
    heads, names, tails = rows.numpy().T
    keys: np.ndarray = (names * len(entities) + heads) * len(entities) + tails
    return keys


def _sides(facts: Tensor, edges: np.ndarray, sizes: Any) -> np.ndarray:
    """Return 0, 1 or 2 of each fact in random order: train, valid or test; an edge has one side."""
    count = len(facts)
    wanted = [round(size * count) for size in sizes[1:]]
    heads, relations, tails = facts.numpy().T
    ends = np.stack([heads, tails], axis=1).reshape(-1)
    in_train = np.zeros(count, bool)
    in_train[np.unique(ends, return_index=True)[1] // 2] = True
    in_train[np.unique(relations, return_index=True)[1]] = True
    _, first, edge = np.unique(edges, return_index=True, return_inverse=True)
    in_train = np.bincount(edge, in_train, len(first))[edge] > 0
    free = np.flatnonzero(~in_train)
    if len(free) < sum(wanted):
        raise ValueError(
            f"split: train needs {count - len(free):,} of {count:,} facts, so that it has every "
            f"entity and relation; valid and test may have {len(free):,}, not {sum(wanted):,}"
        )
    # edges in the order of their first fact
    free = free[np.argsort(first[edge[free]], kind="stable")]
    begins = np.diff(first[edge[free]], prepend=-1) != 0
    place = np.maximum.accumulate(np.where(begins, np.arange(len(free)), 0))
    side = np.zeros(count, np.int64)
    side[free] = np.select([place < wanted[0], place < sum(wanted)], [1, 2], 0)
    for name, size, number in zip(("train", "valid", "test"), sizes, range(3), strict=True):
        if size and not (side == number).any():
            raise ValueError(f"split: {size:g} of {count:,} facts leaves nothing for {name}")
    return side
