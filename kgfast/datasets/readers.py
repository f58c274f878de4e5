"""Read a dataset folder, whichever library wrote it.

| layout           | found by        | vocabularies                                | triples      |
|------------------|-----------------|---------------------------------------------|--------------|
| official, DGL-KE | `entities.dict` | `id<TAB>name`                               | names, h r t |
| OpenKE           | `train2id.txt`  | `entity2id.txt`: count line, then `name id` | ids, h t r   |
| LibKGE           | `dataset.yaml`  | `entity_ids.del`: `id<TAB>name`             | ids, h r t   |
| plain TSV        | `train.txt`     | names of all splits, sorted                 | names, h r t |

Every file may be gzipped, have CRLF line ends, a byte order mark and blank lines. Splits are read
without a Python loop per line; only when that fails is the file walked for the line to blame.
"""

import gzip
import io
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from kgfast.datasets.base import Dataset
from kgfast.graph import Triples, Vocabulary

_KNOWN_LAYOUTS = (
    "known layouts: official RotatE / DGL-KE (entities.dict, relations.dict, train.txt), "
    "OpenKE (entity2id.txt, relation2id.txt, train2id.txt), "
    "LibKGE (dataset.yaml, entity_ids.del, relation_ids.del, train.del), "
    "plain TSV (train.txt or train.tsv); each file as it is or with .gz"
)

_Parts = tuple[Vocabulary, Vocabulary, list[Tensor]]


def load(root: str | os.PathLike[str], name: str | None = None) -> Dataset:
    r"""Read a dataset folder; its layout is detected from the files in it.

    Parameters
    ----------
    root
        A folder in the layout of official RotatE / DGL-KE, OpenKE, LibKGE, or plain TSV.
    name
        Name of the dataset; that of the folder by default.

    Returns
    -------
    Dataset
        A missing valid or test file is an empty split. Entities that only occur in valid or test
        are kept. Repeated triples are kept.

    Raises
    ------
    FileNotFoundError
        If the folder, its train file or a vocabulary is missing.
    ValueError
        If a line is malformed: the message begins with `file:line`.
    ImportError
        If the folder has a dataset.yaml and PyYAML is not installed.

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
        raise FileNotFoundError(f"{root} is not a folder; {_KNOWN_LAYOUTS}")
    read = next((read for marker, read in _LAYOUTS.items() if _find(root, marker)), None)
    if read is None:
        raise FileNotFoundError(
            f"no dataset in {root}: looked for {', '.join(_LAYOUTS)}; {_KNOWN_LAYOUTS}"
        )
    entities, relations, splits = read(root)
    train, valid, test = (Triples(hrt, entities=entities, relations=relations) for hrt in splits)
    name = root.resolve().name if name is None else name
    return Dataset(name, train, valid, test, entities, relations)


def _read_official(root: Path) -> _Parts:
    entities = _vocabulary(_need(root, "entities.dict"), _id_name)
    relations = _vocabulary(_need(root, "relations.dict"), _id_name)
    splits = [_name_split(path, entities, relations) for path in _split_paths(root, "{}.txt")]
    return entities, relations, splits


def _read_openke(root: Path) -> _Parts:
    entities = _vocabulary(_need(root, "entity2id.txt"), _name_id, has_count=True)
    relations = _vocabulary(_need(root, "relation2id.txt"), _name_id, has_count=True)
    columns = {"head": len(entities), "tail": len(entities), "relation": len(relations)}
    htr = [_id_split(path, columns, True) for path in _split_paths(root, "{}2id.txt")]
    return entities, relations, [rows[:, [0, 2, 1]] for rows in htr]


def _read_libkge(root: Path) -> _Parts:
    config_path = _find(root, "dataset.yaml")
    config = _flat(_yaml(config_path)) if config_path else {}
    names = {
        key: str(config.get(f"dataset.files.{key}.filename", f"{key}.del"))
        for key in ("entity_ids", "relation_ids", "train", "valid", "test")
    }
    entities = _vocabulary(_need(root, names["entity_ids"]), _id_name)
    relations = _vocabulary(_need(root, names["relation_ids"]), _id_name)
    columns = {"head": len(entities), "relation": len(relations), "tail": len(entities)}
    paths = [_need(root, names["train"]), _find(root, names["valid"]), _find(root, names["test"])]
    return entities, relations, [_id_split(path, columns) for path in paths]


def _read_plain(root: Path) -> _Parts:
    parts = [_name_columns(path) for path in _split_paths(root, "{}.txt", "{}.tsv")]
    entities = Vocabulary(sorted({name for h, _, t in parts for names in (h, t) for name in names}))
    relations = Vocabulary(sorted({name for _, names, _ in parts for name in names}))
    splits = [
        torch.stack([entities.ids(h), relations.ids(r), entities.ids(t)], dim=1)
        for h, r, t in parts
    ]
    return entities, relations, splits


# The first marker found decides: the layouts with vocabularies come before the plain one.
_LAYOUTS: dict[str, Callable[[Path], _Parts]] = {
    "entities.dict": _read_official,
    "train2id.txt": _read_openke,
    "entity2id.txt": _read_openke,
    "dataset.yaml": _read_libkge,
    "train.del": _read_libkge,
    "train.txt": _read_plain,
    "train.tsv": _read_plain,
}


def _find(root: Path, *names: str) -> Path | None:
    for name in names:
        for path in (root / name, root / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def _need(root: Path, *names: str) -> Path:
    path = _find(root, *names)
    if path is None:
        looked_for = " or ".join(f"{name}[.gz]" for name in names)
        raise FileNotFoundError(f"{root}: looked for {looked_for}; {_KNOWN_LAYOUTS}")
    return path


def _split_paths(root: Path, *patterns: str) -> list[Path | None]:
    """Return the files of train, valid and test; only train must be there."""
    train, valid, test = (
        [pattern.format(split) for pattern in patterns] for split in ("train", "valid", "test")
    )
    return [_need(root, *train), _find(root, *valid), _find(root, *test)]


def _text(path: Path | None) -> str:
    """Return what a file says, without byte order mark and carriage returns; "" for no file."""
    if path is None:
        return ""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: not a valid gzip file: {error}") from None
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start)
        content = raw.split(b"\n")[line][:200]
        raise ValueError(f"{path}:{line + 1}: not valid UTF-8: {content!r}") from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and content of the lines that are not blank."""
    return ((i, line) for i, line in enumerate(text.split("\n"), 1) if line and not line.isspace())


def _bad_line(path: Path | None, number: int, problem: str, line: str) -> ValueError:
    return ValueError(f"{path}:{number}: {problem}: {line[:200]!r}")


def _id_name(line: str) -> list[str]:
    return line.split("\t", 1)


def _name_id(line: str) -> list[str]:
    return line.rsplit(maxsplit=1)[::-1]


def _vocabulary(
    path: Path, fields_of: Callable[[str], list[str]], has_count: bool = False
) -> Vocabulary:
    """Read a file of (id, name) fields whose ids are 0..len-1 in any order."""
    lines = _lines(_text(path))
    count_line = next(lines, None) if has_count else None
    names: dict[int, str] = {}
    numbered: dict[str, tuple[int, str]] = {}
    for number, line in lines:
        fields = fields_of(line)
        if len(fields) != 2 or not all(fields):
            raise _bad_line(path, number, "expected an id and a name", line)
        problem = _not_an_id(fields[0])
        if problem is None and int(fields[0]) in names:
            problem = f"id {int(fields[0])} was given before"
        if problem is None and fields[1] in numbered:
            problem = f"name {fields[1]!r} was given before, on line {numbered[fields[1]][0]}"
        if problem is not None:
            raise _bad_line(path, number, problem, line)
        names[int(fields[0])] = fields[1]
        numbered[fields[1]] = number, line
    if has_count:
        _check_count(path, count_line, len(names))
    for id, name in names.items():
        if id >= len(names):
            problem = f"id {id} is outside 0..{len(names) - 1} (the file has {len(names)} names)"
            raise _bad_line(path, numbered[name][0], problem, numbered[name][1])
    return Vocabulary(names[id] for id in range(len(names)))


def _check_count(path: Path, count_line: tuple[int, str] | None, found: int) -> None:
    number, line = count_line or (1, "")
    problem = _not_an_id(line.strip())
    if problem is not None:
        raise _bad_line(path, number, "expected a count line", line)
    if int(line) != found:
        raise _bad_line(path, number, f"the count disagrees with {found} lines that follow", line)


def _not_an_id(field: str, size: int | None = None) -> str | None:
    """Return what is wrong with a field that should be an id below `size`, None if nothing."""
    if not (field.isascii() and field.removeprefix("-").isdigit()):
        return f"{field!r} is not an integer"
    if int(field) < 0 or (size is not None and int(field) >= size):
        return f"id {field} is outside 0..{'' if size is None else size - 1}"
    return None


def _id_split(path: Path | None, columns: dict[str, int], has_count: bool = False) -> Tensor:
    """Read rows of three ids, int64 `[T, 3]`; `columns` maps their names to how many ids exist."""
    text = _text(path)
    count_line = next(_lines(text), None) if has_count else None
    rows = _integers(text if count_line is None else _after(text, count_line[0]))
    if rows is None or (rows < 0).any() or (rows >= list(columns.values())).any():
        _blame_id_line(path, text, columns, 0 if count_line is None else count_line[0])
    if has_count and path is not None:
        _check_count(path, count_line, len(rows))
    return torch.from_numpy(rows)


def _after(text: str, number: int) -> str:
    """Return the text after line `number`."""
    return text.split("\n", number)[number] if text.count("\n") >= number else ""


def _integers(text: str) -> np.ndarray[tuple[int, int], np.dtype[np.int64]] | None:
    """Return the integers of lines of three, `[T, 3]`; None if that is not what the text holds."""
    if not text or text.isspace():
        return np.empty((0, 3), np.int64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # older NumPy reads 1.5 as 1, warning
            rows = np.loadtxt(io.StringIO(text), dtype=np.int64, comments=None, ndmin=2)
    except (ValueError, OverflowError, Warning):
        return None
    return rows if rows.shape[1] == 3 else None


def _blame_id_line(
    path: Path | None, text: str, columns: dict[str, int], last_header_line: int
) -> NoReturn:
    for number, line in _lines(text):
        if number <= last_header_line:
            continue
        fields = line.split()
        if len(fields) != 3:
            problem = f"expected 3 fields ({' '.join(columns)}), found {len(fields)}"
            raise _bad_line(path, number, problem, line)
        for field, (column, size) in zip(fields, columns.items(), strict=True):
            problem_or_none = _not_an_id(field, size)
            if problem_or_none is not None:
                raise _bad_line(path, number, f"{column} {problem_or_none}", line)
    raise ValueError(f"{path}: cannot be read as lines of three integers")


def _name_columns(path: Path | None) -> tuple[list[str], list[str], list[str]]:
    """Read rows of three names."""
    text = _text(path)
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    fields = "\t".join(lines).split("\t") if lines else []
    if any(count != 2 for count in {line.count("\t") for line in lines}) or "" in fields:
        for number, line in _lines(text):
            found = line.split("\t")
            if len(found) != 3:
                problem = f"expected 3 tab-separated fields, found {len(found)}"
                raise _bad_line(path, number, problem, line)
            if "" in found:
                raise _bad_line(path, number, "empty name", line)
    return fields[0::3], fields[1::3], fields[2::3]


def _name_split(path: Path | None, entities: Vocabulary, relations: Vocabulary) -> Tensor:
    heads, names, tails = _name_columns(path)
    try:
        columns = [entities.ids(heads), relations.ids(names), entities.ids(tails)]
    except ValueError:
        for number, line in _lines(_text(path)):
            try:
                Triples.from_names([line.split("\t")], entities, relations)
            except ValueError as error:
                raise _bad_line(path, number, str(error), line) from None
        raise
    return torch.stack(columns, dim=1)


def _yaml(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise ImportError(f"{path} needs PyYAML: pip install pyyaml") from None
    try:
        return yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise ValueError(f"{path}:{line}: not valid YAML: {error}") from None


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with dotted keys: LibKGE writes either."""
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat
