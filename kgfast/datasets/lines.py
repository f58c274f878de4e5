"""From the lines of a file to vocabularies, rows of ids and rows of names.

Splits are read without a Python loop per line. Only if that fails, the file is read line by line to
find the wrong line.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from kgfast.datasets.data_files import numbered_lines, text_of
from kgfast.graph import TimedRelations, Vocabulary, as_triples_tensor
from kgfast.graph.ids import id_rows, read_id
from kgfast.text import bad_line, shown

# Names of heads, relations and tails in headers, and in Parquet files.
TRIPLE_COLUMNS = (
    ("head", "relation", "tail"),
    ("h", "r", "t"),
    ("subject", "predicate", "object"),
    ("source", "relation", "target"),
)
TIME = re.compile("-?[0-9]{1,18}")  # a whole number that int64 holds
Columns = list[list[str]]  # columns of names: heads, relations, tails, and times of quads
Files = Sequence[Path | None]  # files of train, valid and test
# entities, relations, int64 [T, 3] (h, r, t) of each split, and the files of the splits
Graph = tuple[Vocabulary, Vocabulary, list[Tensor], Files]


def read_vocabulary(file: Path, has_count: bool = False) -> Vocabulary:
    """Read lines of `id<TAB>name`, or, after a count, of `name id`; ids 0..len-1 in any order."""
    lines = list(numbered_lines(text_of(file)))
    if has_count:
        lines = _without_count(file, lines)
    names: dict[int, str] = {}
    numbers: dict[str, int] = {}
    for number, line in lines:
        fields = line.rsplit(maxsplit=1)[::-1] if has_count else line.split("\t", 1)
        if len(fields) != 2 or not all(fields):
            raise bad_line(file, number, "expected an id and a name", line)
        try:
            id = read_id(fields[0], len(lines))
        except ValueError as error:
            raise bad_line(file, number, str(error), line) from None
        name = fields[1]
        if id in names:
            raise bad_line(file, number, f"id {id} was given before", line)
        if name in numbers:
            problem = f"name {shown(name)} was given before, on line {numbers[name]}"
            raise bad_line(file, number, problem, line)
        names[id], numbers[name] = name, number
    return Vocabulary(names[id] for id in range(len(names)))


def _without_count(file: Path, lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Check the count in the first line, and return the other lines."""
    number, line = lines[0] if lines else (1, "")
    try:
        count = read_id(line.strip())
    except ValueError:
        raise bad_line(file, number, "expected a count line", line) from None
    if count != len(lines) - 1:
        problem = f"the count disagrees with {len(lines) - 1} lines that follow"
        raise bad_line(file, number, problem, line)
    return lines[1:]


def read_ids(file: Path | None, columns: dict[str, int], has_count: bool = False) -> Tensor:
    """Read rows of three ids, int64 `[T, 3]`; `columns` maps their names to numbers of ids."""
    if file is None:
        return torch.empty(0, 3, dtype=torch.int64, device="cpu")
    text = text_of(file)
    header = 0
    if has_count:
        lines = list(numbered_lines(text))
        _without_count(file, lines)
        header = lines[0][0]
    body = text.rstrip().split("\n", header)[header:]
    return torch.from_numpy(id_rows(file, "".join(body).encode(), header + 1, columns))


def read_names(file: Path, widths: Sequence[int] = (3,)) -> Columns:
    """Read rows of three names between tabs, as columns; of the first row's width, if allowed."""
    text = text_of(file)
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    fields = "\t".join(lines).split("\t") if lines else []
    first = lines[0].count("\t") + 1 if lines else widths[0]
    width = first if first in widths else widths[0]
    if any(count != width - 1 for count in {line.count("\t") for line in lines}) or "" in fields:
        for number, line in numbered_lines(text):
            fields = line.split("\t")
            if len(fields) != width:
                expected = width if first in widths else " or ".join(map(str, widths))
                problem = f"expected {expected} tab-separated fields, found {len(fields)}"
                raise bad_line(file, number, problem, line)
            if "" in fields:
                raise bad_line(file, number, "empty name", line)
    return [fields[column::width] for column in range(width)]


def numbered_names(
    files: Files,
    vocabularies: tuple[Vocabulary, Vocabulary] | None = None,
) -> Graph:
    """Read the splits of names; without vocabularies, the sorted names become vocabularies.

    Lines without vocabularies may have a fourth name, the time; numbers are sorted as numbers.
    """
    splits: list[Columns] = []
    widths = (3, 4) if vocabularies is None else (3,)
    for file in files:
        splits.append([[]] * widths[0] if file is None else read_names(file, widths))
        widths = (len(splits[0]),)
    if vocabularies is None:
        entities = sorted({name for h, _, t, *_ in splits for names in (h, t) for name in names})
        relations = Vocabulary(sorted({name for split in splits for name in split[1]}))
        if widths == (4,):
            times = sorted({name for split in splits for name in split[3]})
            if all(map(TIME.fullmatch, times)):
                times.sort(key=int)
            relations = TimedRelations(relations, Vocabulary(times))
        vocabularies = Vocabulary(entities), relations
    pairs = zip(files, splits, strict=True)
    return (*vocabularies, [ids_of_names(*pair, *vocabularies) for pair in pairs], files)


def ids_of_names(
    file: Path | None, columns: Columns, entities: Vocabulary, relations: Vocabulary
) -> Tensor:
    """Return the ids of columns of names, int64 `[T, 3]`; errors name the file."""
    vocabularies = [entities, relations.columns[0], entities, *relations.columns[1:]]
    try:
        ids = [of.ids(names) for of, names in zip(vocabularies, columns, strict=True)]
    except ValueError:
        assert file is not None
        lines = numbered_lines(text_of(file))
        for row, (number, line) in zip(zip(*columns, strict=True), lines, strict=True):
            try:
                for name, vocabulary in zip(row, vocabularies, strict=True):
                    vocabulary[name]
            except ValueError as error:
                raise bad_line(file, number, str(error), line) from None
        raise
    return as_triples_tensor(torch.stack(ids, dim=1), num_times=relations.num_times)
