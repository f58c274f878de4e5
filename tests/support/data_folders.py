"""A small graph as every library writes its folder, and what accidents make of files.

`number_as_dglke` is what DGL-KE does (awslabs/dgl-ke, KGDatasetUDDRaw.load_entity_relation).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SCREEN = 600  # characters that fit a message
ENTITIES = ["ann", "bob", "eve é", "zoe"]  # zoe only occurs in test
RELATIONS = ["knows", "likes"]
NAMES = ENTITIES, RELATIONS
Names = tuple[Sequence[str], Sequence[str]]
SPLITS = {
    "train": [(0, 0, 1), (1, 1, 2), (0, 0, 1)],  # a repeated triple is kept
    "valid": [(2, 0, 0)],
    "test": [(0, 1, 3), (3, 0, 3)],
}

Files = dict[str, str]
Splits = dict[str, list[tuple[int, int, int]]]
Layout = Callable[..., Files]
Triples = dict[str, list[tuple[str, str, str]]]


def official(splits: Splits = SPLITS, names: Names = NAMES) -> Files:
    numbered = zip(("entities.dict", "relations.dict"), map(_numbered, names), strict=True)
    return dict(numbered) | plain(splits, names)


def openke(splits: Splits = SPLITS, names: Names = NAMES) -> Files:
    files = {
        f"{kind}2id.txt": lines([len(own), *(f"{name}\t{i}" for i, name in enumerate(own))])
        for kind, own in zip(("entity", "relation"), names, strict=True)
    }
    for split, triples in splits.items():
        files[f"{split}2id.txt"] = lines([len(triples), *(f"{h} {t} {r}" for h, r, t in triples)])
    return files


def libkge(splits: Splits = SPLITS, names: Names = NAMES) -> Files:
    files = zip(("entity_ids.del", "relation_ids.del"), map(_numbered, names), strict=True)
    return dict(files) | {f"{split}.del": lines(map(_tabs, rows)) for split, rows in splits.items()}


def plain(splits: Splits = SPLITS, names: Names = NAMES, suffix: str = "txt") -> Files:
    entities, relations = names
    return {
        f"{split}.{suffix}": lines(
            _tabs((entities[h], relations[r], entities[t])) for h, r, t in rows
        )
        for split, rows in splits.items()
    }


def _numbered(names: Sequence[str]) -> str:
    return lines(f"{i}\t{name}" for i, name in enumerate(names))


def _tabs(fields: Any) -> str:
    return "\t".join(map(str, fields))


def lines(rows: Any) -> str:
    return "".join(f"{row}\n" for row in rows)


LAYOUTS: dict[str, Layout] = {
    "official": official,
    "openke": openke,
    "libkge": libkge,
    "plain": plain,
    "plain tsv": lambda *of: plain(*of, suffix="tsv"),
}


def write(root: Path, files: Files, disguise: Callable[[str], bytes] = str.encode) -> Path:
    for name, text in files.items():
        (root / name).write_bytes(disguise(text))
    return root


DGLKE_TRIPLES = {
    "train": [("zoe", "likes", "ann"), ("ann", "knows", "bob é"), ("zoe", "likes", "ann")],
    "valid": [("bob é", "likes", "zoe")],
    "test": [("ann", "likes", "new"), ("yan", "knows", "ann")],
}
ORDERS = ("hrt", "htr", "rht", "rth", "thr", "trh")


def _row(triple: tuple[str, ...], order: str, delimiter: str) -> str:
    return delimiter.join(triple["hrt".index(letter)] for letter in order) + "\n"


def number_as_dglke(
    root: Path, delimiter: str, triples: dict[str, list[tuple[str, str, str]]]
) -> None:
    """Write entities.tsv and relations.tsv as DGL-KE does: in the order of the first mention."""
    entities: dict[str, int] = {}
    relations: dict[str, int] = {}
    for rows in triples.values():
        for head, relation, tail in rows:
            entities.setdefault(head, len(entities))
            entities.setdefault(tail, len(entities))
            relations.setdefault(relation, len(relations))
    for name, ids in (("entities.tsv", entities), ("relations.tsv", relations)):
        (root / name).write_text("".join(f"{id}{delimiter}{it}\n" for it, id in ids.items()))


def write_dglke(
    root: Path,
    order: str = "hrt",
    delimiter: str = "\t",
    suffix: str = "tsv",
    triples: Triples = DGLKE_TRIPLES,
) -> Path:
    for split, rows in triples.items():
        text = "".join(_row(it, order, delimiter) for it in rows)
        (root / f"{split}.{suffix}").write_text(text)
    number_as_dglke(root, delimiter, triples)
    return root
