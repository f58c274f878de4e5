"""A small graph as every library writes its folder."""

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


def official(splits: Splits = SPLITS, names: Names = NAMES, suffix: str = "dict") -> Files:
    files = zip((f"entities.{suffix}", f"relations.{suffix}"), map(_numbered, names), strict=True)
    return dict(files) | plain(splits, names)


def dglke(splits: Splits = SPLITS, names: Names = NAMES) -> Files:
    return official(splits, names, "tsv")


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
    "dglke": dglke,
    "openke": openke,
    "libkge": libkge,
    "plain": plain,
    "plain tsv": lambda *of: plain(*of, suffix="tsv"),
}


def write(root: Path, files: Files, disguise: Callable[[str], bytes] = str.encode) -> Path:
    for name, text in files.items():
        (root / name).write_bytes(disguise(text))
    return root
