"""The tkgl-* data sets of the Temporal Graph Benchmark: one CSV file of quads.

A line holds timestamp, head, tail and relation_type; the first names the columns. Ids and splits
are those of py-tgb: train has the first 70 % of quads by time, valid 15 % (tkgl-yago: 80 and 10).
"""

import csv
from pathlib import Path

import numpy as np

from kgfast.datasets.data_files import find_file, text_of
from kgfast.datasets.lines import Graph, ids_of_names
from kgfast.graph import TimedRelations, Vocabulary
from kgfast.text import bad_line

_NAMES = ("icews", "polecat", "smallpedia", "wikidata", "yago")
EDGE_LISTS = tuple(f"tkgl-{name}_edgelist.csv" for name in _NAMES)


def read_tkgl(folder: Path) -> Graph:
    file = find_file(folder, *EDGE_LISTS)
    assert file is not None
    lines = text_of(file).split("\n")
    rows = list(csv.reader(lines))[1:]
    for number, row in enumerate(rows, 2):
        if row and (len(row) != 4 or "" in row or not row[0].lstrip("-").isdecimal()):
            expected = "expected timestamp, head, tail and relation_type"
            raise bad_line(file, number, expected, lines[number - 1])
    stamps, heads, tails, relations = zip(*filter(None, rows), strict=True)
    entities = Vocabulary(
        dict.fromkeys(name for ends in zip(heads, tails, strict=True) for name in ends)
    )
    names = list(dict.fromkeys(relations))
    names = sorted(names, key=int) if all(map(str.isdecimal, names)) else names
    times = Vocabulary(sorted(set(stamps), key=int))
    vocabularies = entities, TimedRelations(Vocabulary(names), times)
    hrt = ids_of_names(file, [[*heads], [*relations], [*tails], [*stamps]], *vocabularies)
    ends = [0.8, 0.9] if "yago" in file.name else [0.7, 0.85]
    values = np.array(stamps, np.int64)
    place = np.searchsorted(np.quantile(values.repeat(2), ends), values)  # with the inverses
    return *vocabularies, [hrt[place == split] for split in range(3)], [None] * 3
