"""Inspection of triples that were read: likely mistakes become notes, or are left out if asked."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kgfast.datasets.data_files import DataFile, Folder
from kgfast.datasets.dataset import SPLITS
from kgfast.graph import TRIPLE_COLUMNS, Vocabulary
from kgfast.text import shown

# Words of ``clean``; data files leave out the first three themselves.
CLEAN = ("header", "comments", "blanks", "repeats", "overlaps")
_OTHER_NAMES = re.compile(r"(dev|val|validation|testing)\b.*\.(txt|tsv|csv|del|nt|parquet)")
_BLANKS = " \t\r\u00a0\u2003\u3000"

_Names = tuple[Vocabulary, Vocabulary]
_Files = Sequence[DataFile | None]
_Mask = NDArray[np.bool_]


def inspected(folder: Folder, names: _Names, splits: list[Tensor], files: _Files) -> list[Tensor]:
    """Note in the folder what is likely a mistake; return the triples without those to clean."""
    own = _Inspection(folder, names, [it.numpy() for it in splits], files)
    for check in (own.headers, own.comments, own.blanks, own.repeats, own.empty_splits):
        check()
    return [torch.from_numpy(hrt) for hrt in own.splits]


class _Inspection:
    """Triples ``[T, 3]`` of each split, with names and files."""

    def __init__(self, folder: Folder, names: _Names, splits: list[Any], files: _Files) -> None:
        self.folder, self.splits, self.files = folder, splits, files
        self.entities, self.relations = names
        # searching one text is faster than searching many names
        self.text = ["\n".join(["", *it.names, ""]) for it in names]

    def headers(self) -> None:
        for number, hrt in enumerate(self.splits):
            words = {it.strip().lower() for it in self._triple(hrt[0])} if len(hrt) else set()
            if any(words == set(names) for names in TRIPLE_COLUMNS):
                self._note(number, 0, "the first line is read as a triple", "header")

    def comments(self) -> None:
        """Note rows that begin with #, of relations that no other row has."""
        if not ("#" in self.text[0] and "\n#" in self.text[0]):
            return
        marked = [id for id, name in enumerate(self.entities.names) if name.startswith("#")]
        of_split = [np.isin(hrt[:, 0], marked) for hrt in self.splits]
        others = np.concatenate(
            [hrt[~mask, 1] for hrt, mask in zip(self.splits, of_split, strict=True)]
        )
        for number, (hrt, mask) in enumerate(zip(self.splits, of_split, strict=True)):
            rows = np.flatnonzero(mask & ~np.isin(hrt[:, 1], others))
            if len(rows) and len(others) > len(rows):
                what = f"comments are read as triples ({len(rows):,})"
                self._note(number, int(rows[0]), what, "comments")

    def blanks(self) -> None:
        for what, vocabulary, columns, text in (
            ("entities", self.entities, [0, 2], self.text[0]),
            ("relations", self.relations, [1], self.text[1]),
        ):
            blanks = [it for it in _BLANKS if it in text]
            if not any(f"{it}\n" in text or f"\n{it}" in text for it in blanks):
                continue
            bare = Counter(name.strip() for name in vocabulary.names)
            twins = [it for it in vocabulary.names if it != it.strip() and bare[it.strip()] > 1]
            if twins:
                id = vocabulary[twins[0]]
                found = (
                    (number, int(rows[0]))
                    for number, hrt in enumerate(self.splits)
                    if len(rows := (hrt[:, columns] == id).any(1).nonzero()[0])
                )
                said = f"names of {what} differ in blanks alone from other names ({len(twins):,})"
                number, row = next(found, (0, None))
                self._note(number, row, said, "blanks", twins[0])

    def repeats(self) -> None:
        earlier: list[NDArray[np.int64]] = []  # ascending keys of each split
        for number, keys in enumerate(self._keys()):
            ascending = np.sort(keys)
            in_split = np.zeros(len(keys), bool)
            if (ascending[1:] == ascending[:-1]).any():
                order = np.argsort(keys, kind="stable")
                in_split[order[1:][ascending[1:] == ascending[:-1]]] = True
            in_others = np.zeros(len(keys), bool)
            for other in earlier:
                if _among(ascending, other).any():  # ascending numbers are found faster
                    in_others |= _among(keys, other)
            if len(keys):
                earlier.append(ascending)
            where = " or ".join(SPLITS[:number])
            left = self._left(number, in_split, "stand in the split before", "repeats")
            left &= self._left(number, in_others, f"stand in {where}", "overlaps")
            if not left.all():
                self.splits[number] = self.splits[number][left]

    def _left(self, number: int, wrong: _Mask, what: str, word: str) -> _Mask:
        """Return the rows that stay; note wrong rows that stay."""
        count = int(wrong.sum())
        if count and word in self.folder.clean:
            return ~wrong
        if count:
            said = f"{count:,} of {len(wrong):,} triples of {SPLITS[number]} {what}"
            self._note(number, int(wrong.argmax()), said, word)
        return np.ones(len(wrong), bool)

    def empty_splits(self) -> None:
        empty = [SPLITS[number] for number, hrt in enumerate(self.splits) if not len(hrt)]
        if empty:
            root = self.folder.root
            others = sorted(it.name for it in root.iterdir() if _OTHER_NAMES.match(it.name))
            unread = f"; not read: {shown(others)}" if others else ""
            self.folder.notes[f"{root}: no triples of {' and '.join(empty)}{unread}"] = None

    def _keys(self) -> Iterator[NDArray[np.int64]]:
        """Yield a number for each triple; nothing where numbers would need more than 63 bits."""
        entities, relations = len(self.entities), len(self.relations)
        if entities * relations * entities < 1 << 63:
            for hrt in self.splits:
                yield (hrt[:, 0] * relations + hrt[:, 1]) * entities + hrt[:, 2]

    def _triple(self, row: Any) -> tuple[str, str, str]:
        head, relation, tail = row.tolist()
        return self.entities.name(head), self.relations.name(relation), self.entities.name(tail)

    def _note(
        self, number: int, row: int | None, what: str, word: str, name: str | None = None
    ) -> None:
        file, hrt = self.files[number], self.splits[number]
        place, first = str(self.folder.root), shown(name) if name else ""
        if row is not None and file is not None:
            place = file.place(row, len(hrt))
            first = shown(name or self._triple(hrt[row]))
        quoted = f", first {first}" if first else ""
        mends = f"clean=[{word!r}] (dataset.clean of a config) mends it"
        self.folder.notes[f"{place}: {what}{quoted}; {mends}"] = None


def _among(keys: NDArray[np.int64], ascending: NDArray[np.int64]) -> _Mask:
    places = np.searchsorted(ascending, keys).clip(max=len(ascending) - 1)
    found: _Mask = ascending[places] == keys
    return found
