"""Read a dataset folder of many libraries.

| layout           | found by        | vocabularies                                | triples      |
|------------------|-----------------|---------------------------------------------|--------------|
| official, DGL-KE | `entities.dict` | `id<TAB>name`                               | names, h r t |
| DGL-KE raw_udd   | `entities.tsv`  | `id<TAB>name`                               | names, h r t |
| OpenKE           | `train2id.txt`  | `entity2id.txt`: count line, then `name id` | ids, h t r   |
| LibKGE           | `train.del`     | `entity_ids.del`: `id<TAB>name`             | ids, h r t   |
| plain TSV        | `train.txt`     | names of all splits, sorted                 | names, h r t |
| quads in TSV     | `train.txt`     | the same, and times, sorted                 | h r t time   |
| tkgl-* of TGB    | the CSV file    | names of all lines                          | t h tail r   |
| Parquet          | `train.parquet` | names of all splits, sorted                 | names or ids |

``labels.tsv`` may stand beside any layout: see :mod:`kgfast.datasets.labelled`. Every file may be
gzipped, have CRLF line ends, a byte order mark and blank lines.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from kgfast.datasets.data_files import KNOWN_LAYOUTS, find_file, need_file, split_files
from kgfast.datasets.dataset import Dataset
from kgfast.datasets.inspection import mistakes
from kgfast.datasets.labelled import with_labels
from kgfast.datasets.lines import (
    Graph,
    ids_of_names,
    numbered_names,
    read_ids,
    read_names,
    read_vocabulary,
)
from kgfast.datasets.table import (
    EDGE_LISTS,
    TABLES,
    FactTable,
    read_parquet,
    read_table,
    read_tkgl,
)
from kgfast.graph import Triples, VocabularyLike, names_of


def load(
    root: str | os.PathLike[str],
    name: str | None = None,
    *,
    columns: Sequence[str | int] | None = None,
    labels: Sequence[str | int] | None = None,
    types: Sequence[str | int] | str | None = None,
    split: Sequence[float] | None = None,
    seed: int = 0,
) -> Dataset:
    r"""Read a dataset folder, whose files tell the layout, or one table of facts.

    A table is CSV, TSV (a first line with a tab) or Parquet, may be gzipped, and is split here:
    train has every entity and relation, and (h, r, t) and (t, r, h) are in one split. Repeated
    facts are read once. With ``columns``, a folder may hold a table per split: ``train.csv``.

    Parameters
    ----------
    root
        A folder in the layout of official RotatE, DGL-KE, OpenKE, LibKGE, plain TSV or Parquet
        (with pyarrow), or the file of a table.
    name
        Name of the dataset; by default the name of the folder or file.
    columns
        Columns of heads, relations and tails of a table: names of the header, or positions from 0
        in a file without a header. By default the header says head, relation, tail or the like.
    labels
        Columns of the labels of heads and of tails.
    types
        Columns of the types of heads and of tails; or the text that ends the type in each name,
        as ``"::"`` in ``Gene::9021``, for any layout.
    split
        Fractions of train, valid and test, which sum to 1, of one table; by default all is train.
    seed
        Another seed makes another split.

    Returns
    -------
    Dataset
        A missing valid or test file is an empty split.

    Warns
    -----
    UserWarning
        For a first line that names columns, repeated triples, triples of two splits, times that
        train lacks, and splits without triples.

    Raises
    ------
    FileNotFoundError
        If the folder, its train file or a vocabulary is missing.
    ValueError
        If a line is malformed: the message begins with `file:line`. If a gzipped file unpacks to
        more than 64 times its size, and more than 64 MiB. For a column that a table lacks, an empty
        cell, an entity with two labels or types, and a split that leaves nothing.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "train.tsv").write_text("ann\tknows\tbob\nbob\tknows\teve\n")
    ...     load(folder, name="people")
    Dataset people: 3 entities, 1 relations
    split     triples   entities  relations
    train           2          3          1
    valid           0          0          0
    test            0          0          0
    """
    root = Path(root)
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist; {KNOWN_LAYOUTS}")
    table = FactTable(columns, labels, None if isinstance(types, str) else types)
    if root.is_file():
        graph = read_table(root, table, split, seed)
    elif split is not None:
        raise ValueError(f"split is for the file of one table; {root} is none")
    elif table.is_default:
        graph = _read_folder(root)
    else:
        graph = table.read(split_files(root, *(f"{{}}{end}" for end in TABLES)))
    for note in mistakes(root, *graph):
        warnings.warn(note, stacklevel=2)
    entities, relations = with_labels(root, graph[:2])
    if table.labels:
        of_entities = {name: " ".join(label.split()) for name, label in table.labels.items()}
        in_table = {name: label for name, label in of_entities.items() if label}
        entities = entities.labelled({**entities.labels, **in_table})
    type_of = table.types
    if isinstance(types, str):
        type_of = {entity: entity.split(types)[0] for entity in entities if types in entity}
    train, valid, test = (Triples(hrt, entities=entities, relations=relations) for hrt in graph[2])
    name = root.resolve().name if name is None else name
    return Dataset(name, train, valid, test, entities, relations, types=type_of)


def _read_folder(root: Path) -> Graph:
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is not a folder; {KNOWN_LAYOUTS}")
    read = next((read for marker, read in _LAYOUTS.items() if find_file(root, marker)), None)
    if read is None:
        looked_for = ", ".join(_LAYOUTS)
        raise FileNotFoundError(f"no dataset in {root}: looked for {looked_for}; {KNOWN_LAYOUTS}")
    return read(root)


def load_negatives(
    root: str | os.PathLike[str], vocabulary: VocabularyLike
) -> tuple[Triples, Triples]:
    """Read the false triples of a dataset folder: ``valid_negatives.txt``, ``test_negatives.txt``.

    CoDEx has such hard negatives (Safavi and Koutra 2020), for :func:`kgfast.classify`. A line is
    ``head<TAB>relation<TAB>tail``, of names.

    Parameters
    ----------
    root
        The folder; each file may be gzipped.
    vocabulary : pair of Vocabulary, Dataset or Triples
        The ids of the names.

    Returns
    -------
    valid, test : Triples
        Triples with the labels of ``vocabulary``.

    Raises
    ------
    FileNotFoundError
        If one of the files is missing.
    ValueError
        If a line is malformed or has an unknown name: the message begins with `file:line`.
    """
    entities, relations = names_of(vocabulary)
    if entities is None or relations is None:
        raise TypeError("vocabulary must have names of entities and of relations")
    splits, widths = [], (2 + len(relations.columns),)
    for split in ("valid", "test"):
        file = find_file(Path(root), f"{split}_negatives.txt")
        if file is None:
            raise FileNotFoundError(
                f"{root}: no {split}_negatives.txt[.gz], with false triples of the {split} split"
            )
        ids = ids_of_names(file, read_names(file, widths), entities, relations)
        splits.append(Triples(ids, entities=entities, relations=relations))
    return splits[0], splits[1]


def _read_official(folder: Path) -> Graph:
    entities = read_vocabulary(need_file(folder, "entities.dict", "entities.tsv"))
    relations = read_vocabulary(need_file(folder, "relations.dict", "relations.tsv"))
    return numbered_names(split_files(folder, "{}.txt", "{}.tsv"), (entities, relations))


def _read_openke(folder: Path) -> Graph:
    entities = read_vocabulary(need_file(folder, "entity2id.txt"), has_count=True)
    relations = read_vocabulary(need_file(folder, "relation2id.txt"), has_count=True)
    columns = {"head": len(entities), "tail": len(entities), "relation": len(relations)}
    files = split_files(folder, "{}2id.txt")
    htr = [read_ids(file, columns, has_count=True) for file in files]
    return entities, relations, [rows[:, [0, 2, 1]] for rows in htr], files


def _read_libkge(folder: Path) -> Graph:
    entities = read_vocabulary(need_file(folder, "entity_ids.del"))
    relations = read_vocabulary(need_file(folder, "relation_ids.del"))
    columns = {"head": len(entities), "relation": len(relations), "tail": len(entities)}
    files = split_files(folder, "{}.del")
    return entities, relations, [read_ids(file, columns) for file in files], files


def _read_plain(folder: Path) -> Graph:
    return numbered_names(split_files(folder, "{}.txt", "{}.tsv"))


# The first marker found decides: layouts with vocabularies come before the plain layout.
_LAYOUTS: dict[str, Callable[[Path], Graph]] = {
    "entities.dict": _read_official,
    "train2id.txt": _read_openke,
    "entity2id.txt": _read_openke,
    "dataset.yaml": _read_libkge,
    "train.del": _read_libkge,
    "entities.tsv": _read_official,
    "train.txt": _read_plain,
    "train.tsv": _read_plain,
    "train.parquet": read_parquet,
    **dict.fromkeys(EDGE_LISTS, read_tkgl),
}
