"""Inspection of triples that were read: warnings of likely mistakes."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kgfast.datasets.data_files import place_of
from kgfast.datasets.dataset import SPLITS
from kgfast.datasets.lines import TRIPLE_COLUMNS, Files
from kgfast.graph import Vocabulary
from kgfast.text import shown

_SURE = 10  # least other triples for a warning of a first line whose names they lack


def mistakes(
    root: Path, entities: Vocabulary, relations: Vocabulary, splits: list[Tensor], files: Files
) -> list[str]:
    """Return warnings of headers, repeats, triples of two splits, new times and empty splits.

    A warning names the file and line of the first such triple.
    """
    notes, num_times = [], relations.num_times or 1
    others = np.concatenate([triples.numpy()[1:] for triples in splits])
    earlier = np.empty(0, np.int64)
    for split, triples, file in zip(SPLITS, splits, files, strict=True):
        hrt = triples.numpy()
        keys = (hrt[:, 0] * len(relations) + hrt[:, 1]) * len(entities) + hrt[:, 2]
        is_header, is_alone, is_repeated = np.zeros((3, len(hrt)), bool)
        for row in hrt[:1]:
            names_of_row = _names(row, entities, relations)
            words = {word.strip().lower() for name in names_of_row for word in name.split(" @ ")}
            words -= {"time", "timestamp", "date"} if num_times > 1 else set()
            is_header[0] = any(words == set(names) for names in TRIPLE_COLUMNS)
            is_alone[0] = not is_header[0] and _is_alone(row, others, num_times)
        is_repeated[:] = True
        is_repeated[np.unique(keys, return_index=True)[1]] = False
        times = splits[0].numpy()[:, 1] % num_times
        is_late = (num_times > 1) & np.isin(hrt[:, 1] % num_times, times, invert=True)
        for wrong, problem in (
            (is_header, "names the columns"),
            (is_alone, "may name the columns: no other triple has these names"),
            (is_repeated, "stands in the split before"),
            (np.isin(keys, earlier), "stands in an earlier split"),
            (is_late, "has a time that train lacks"),
        ):
            if wrong.any() and file is not None:
                row = int(wrong.argmax())
                first = shown(_names(hrt[row], entities, relations))
                count = f"{wrong.sum():,} of {len(hrt):,} triples of {split}"
                notes.append(f"{place_of(file, row, len(hrt))}: {first} {problem} ({count})")
        earlier = np.concatenate([earlier, keys])
    empty = [split for split, triples in zip(SPLITS, splits, strict=True) if not len(triples)]
    return [*notes, *([f"{root}: no triples of {' and '.join(empty)}"] if empty else [])]


def _is_alone(row: NDArray[np.int64], others: NDArray[np.int64], num_times: int) -> bool:
    """Return whether neither the entities nor the relation of a row are in the other triples."""
    are_known = np.isin(row[::2], others[:, ::2]), row[1] // num_times == others[:, 1] // num_times
    return len(others) >= _SURE and not any(known.any() for known in are_known)


def _names(row: NDArray[np.int64], entities: Vocabulary, relations: Vocabulary) -> tuple[str, ...]:
    head, relation, tail = row.tolist()
    return entities.name(head), relations.name(relation), entities.name(tail)
