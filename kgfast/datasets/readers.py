"""Read a dataset folder of many libraries.

| layout           | found by        | vocabularies                                | triples      |
|------------------|-----------------|---------------------------------------------|--------------|
| official, DGL-KE | `entities.dict` | `id<TAB>name`                               | names, h r t |
| DGL-KE raw_udd   | `entities.tsv`  | id, delimiter, name                         | names        |
| OpenKE           | `train2id.txt`  | `entity2id.txt`: count line, then `name id` | ids, h t r   |
| LibKGE           | `dataset.yaml`  | `entity_ids.del`: `id<TAB>name`             | ids, h r t   |
| plain TSV        | `train.txt`     | names of all splits, sorted                 | names, h r t |
| Parquet          | `train.parquet` | its names, or `entities.parquet`            | names or ids |
| N-Triples        | `train.nt`      | addresses of all splits, sorted             | names, h r t |

``labels.tsv`` may stand beside any layout: see :mod:`kgfast.datasets.labelled`. Every file may be
gzipped, have CRLF line ends, a byte order mark and blank lines.
"""

import os
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from kgfast.datasets.data_files import KNOWN_LAYOUTS, Folder, checked_limit
from kgfast.datasets.dataset import Dataset
from kgfast.datasets.dglke import read_raw_udd
from kgfast.datasets.inspection import CLEAN, inspected
from kgfast.datasets.labelled import with_labels
from kgfast.datasets.lines import (
    Parts,
    id_name,
    ids_of_names,
    name_id,
    numbered_names,
    read_ids,
    read_names,
    read_vocabulary,
)
from kgfast.datasets.ntriples import read_ntriples
from kgfast.datasets.parquet import read_parquet
from kgfast.graph import Triples, VocabularyLike, names_of
from kgfast.graph.stored.inputs import ORDERS
from kgfast.text import shown


def load(
    root: str | os.PathLike[str],
    name: str | None = None,
    *,
    columns: str | None = None,
    max_bytes: int | None = None,
    clean: Collection[str] = (),
) -> Dataset:
    r"""Read a dataset folder; the files in the folder tell the layout.

    Parameters
    ----------
    root
        A folder in the layout of official RotatE / DGL-KE, DGL-KE's raw_udd, OpenKE, LibKGE, plain
        TSV, Parquet (with pyarrow) or N-Triples (with pyoxigraph).
    name
        Name of the dataset; by default the name of the folder.
    columns
        The order of columns of a raw_udd folder's triples: "hrt", "htr", "rht", "rth", "thr"
        or "trh". By default the order in which DGL-KE gave out the ids, or hrt.
    max_bytes
        Most bytes that a gzipped file may unpack to. By default KGFAST_MAX_BYTES of the
        environment, else 64 times the size of the file and at least 64 MiB.
    clean
        Words of ``"header"``: leave out the first line of train, valid and test; ``"comments"``:
        leave out lines that begin with ``#``; ``"blanks"``: leave out blanks around names;
        ``"repeats"``: leave out triples that their split has before; ``"overlaps"``: leave out
        triples of valid that train has, and of test that train or valid has. By default nothing is
        left out, and a warning names file and line of what looks like a mistake.

    Returns
    -------
    Dataset
        A missing valid or test file is an empty split. Entities that only occur in valid or test
        are kept.

    Warns
    -----
    UserWarning
        For a first line that names columns, comments, names that differ in blanks alone, repeated
        triples, triples of two splits, splits without triples, and files beside those that are
        read.

    Raises
    ------
    FileNotFoundError
        If the folder, its train file or a vocabulary is missing.
    ValueError
        If a line is malformed: the message begins with `file:line`. If a gzipped file unpacks to
        more than allowed, or a dataset.yaml names a file outside the folder.

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
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is not a folder; {KNOWN_LAYOUTS}")
    if columns is not None and columns not in ORDERS:
        raise ValueError(f"columns must be one of {', '.join(ORDERS)}, got {shown(columns)}")
    if isinstance(clean, str) or not set(clean) <= set(CLEAN):
        raise ValueError(f"clean must be a list of {', '.join(CLEAN)}; got {shown(clean)}")
    folder = Folder(root, checked_limit(max_bytes), frozenset(clean))
    read = next((read for marker, read in _LAYOUTS.items() if folder.find(marker)), None)
    if read is None:
        raise FileNotFoundError(
            f"no dataset in {root}: looked for {', '.join(_LAYOUTS)}; {KNOWN_LAYOUTS}"
        )
    if columns is not None and read is not read_raw_udd:
        raise ValueError(f"columns: {root} is not a raw_udd folder of DGL-KE; leave columns out")
    if read in _WITHOUT_VOCABULARIES:
        folder.find(*(marker for marker, it in _LAYOUTS.items() if it in _WITHOUT_VOCABULARIES))
    *names, splits, files = read(folder, columns)
    splits = inspected(folder, (names[0], names[1]), splits, files)
    entities, relations = with_labels(folder, (names[0], names[1]))
    for note in folder.notes:
        warnings.warn(note, stacklevel=2)
    train, valid, test = (Triples(hrt, entities=entities, relations=relations) for hrt in splits)
    name = root.resolve().name if name is None else name
    return Dataset(name, train, valid, test, entities, relations)


def load_negatives(
    root: str | os.PathLike[str], vocabulary: VocabularyLike
) -> tuple[Triples, Triples]:
    r"""Read the false triples of a dataset folder: ``valid_negatives.txt``, ``test_negatives.txt``.

    CoDEx has such hard negatives (Safavi and Koutra 2020): plausible triples that people judged to
    be false, for :func:`kgfast.classify`. A line is ``head<TAB>relation<TAB>tail``, of names.

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

    Examples
    --------
    >>> import tempfile
    >>> from kgfast import Vocabulary
    >>> people = Vocabulary(["ann", "bob"]), Vocabulary(["knows"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for split in ("valid", "test"):
    ...         _ = Path(folder, f"{split}_negatives.txt").write_text("bob\tknows\tbob\n")
    ...     valid, test = load_negatives(folder, people)
    >>> valid.hrt.tolist()
    [[1, 0, 1]]
    """
    entities, relations = names_of(vocabulary)
    if entities is None or relations is None:
        raise TypeError("vocabulary must have names of entities and of relations")
    folder = Folder(Path(root), checked_limit(None))
    splits = []
    for split in ("valid", "test"):
        file = folder.find(f"{split}_negatives.txt")
        if file is None:
            raise FileNotFoundError(
                f"{root}: no {split}_negatives.txt[.gz], with false triples of the {split} split"
            )
        ids = ids_of_names(file, read_names(file), entities, relations)
        splits.append(Triples(ids, entities=entities, relations=relations))
    return splits[0], splits[1]


def _read_official(folder: Folder, _: str | None) -> Parts:
    entities = read_vocabulary(folder.need("entities.dict"), id_name)
    relations = read_vocabulary(folder.need("relations.dict"), id_name)
    return numbered_names(folder.splits("{}.txt"), vocabularies=(entities, relations))


def _read_openke(folder: Folder, _: str | None) -> Parts:
    entities = read_vocabulary(folder.need("entity2id.txt"), name_id, has_count=True)
    relations = read_vocabulary(folder.need("relation2id.txt"), name_id, has_count=True)
    columns = {"head": len(entities), "tail": len(entities), "relation": len(relations)}
    files = folder.splits("{}2id.txt")
    htr = [read_ids(file, columns, has_count=True) for file in files]
    return entities, relations, [rows[:, [0, 2, 1]] for rows in htr], files


def _read_libkge(folder: Folder, _: str | None) -> Parts:
    names = _libkge_files(folder)
    entities = read_vocabulary(folder.need(names["entity_ids"]), id_name)
    relations = read_vocabulary(folder.need(names["relation_ids"]), id_name)
    columns = {"head": len(entities), "relation": len(relations), "tail": len(entities)}
    files = [
        folder.need(names["train"]),
        folder.find(names["valid"]),
        folder.find(names["test"]),
    ]
    return entities, relations, [read_ids(file, columns) for file in files], files


def _libkge_files(folder: Folder) -> dict[str, str]:
    names = {key: f"{key}.del" for key in ("entity_ids", "relation_ids", "train", "valid", "test")}
    from kgfast import safe_yaml  # needs PyYAML, unlike other layouts

    file = folder.find("dataset.yaml")
    values = None if file is None else safe_yaml.parse(file.text(), file.path)
    if file is None or values is None:
        return names
    if not isinstance(values, dict):
        raise ValueError(f"{file.path}: expected keys such as 'dataset:'; got {shown(values)}")
    config = _flat(values)
    for key in names:
        dotted = f"dataset.files.{key}.filename"
        name = config.get(dotted, names[key])
        if not isinstance(name, str) or not _is_plain(name):
            raise ValueError(
                f"{file.path}: {dotted} must be the plain name of a file in the folder; "
                f"got {shown(name)}"
            )
        names[key] = name
    return names


def _is_plain(name: str) -> bool:
    """Return whether a name can only lead to a file in the folder itself."""
    return name not in ("", ".", "..") and len(name) < 256 and not set(name) & set("/\\:\0")


def _read_plain(folder: Folder, _: str | None) -> Parts:
    return numbered_names(folder.splits("{}.txt", "{}.tsv"))


# The first marker found decides: layouts with vocabularies come before the plain layout.
_LAYOUTS: dict[str, Callable[[Folder, str | None], Parts]] = {
    "entities.dict": _read_official,
    "train2id.txt": _read_openke,
    "entity2id.txt": _read_openke,
    "dataset.yaml": _read_libkge,
    "train.del": _read_libkge,
    "entities.tsv": read_raw_udd,
    "train.txt": _read_plain,
    "train.tsv": _read_plain,
    "train.parquet": read_parquet,
    "train.nt": read_ntriples,
}
_WITHOUT_VOCABULARIES = (_read_plain, read_parquet, read_ntriples)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with dotted keys: LibKGE writes both."""
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat
