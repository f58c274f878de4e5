"""An index of known triples built out of core: sorted runs, merged for each side.

The rows of the files are sorted a block at a time, each block into a run, and the runs are merged
into the arrays of the side "tail". The rows of these arrays make the other sides in the same way.
All files lie in a folder beside the new one until the index is whole.

A run holds distinct rows in the order of the columns. Runs are merged a range at a time: every s-th
row of each run is a sample; ranges end at every g-th sample of all runs. A range then holds at most
``(g + 2 m) s`` rows of m runs. The reason: each run has fewer than s rows before its first sample
in the range, and equal samples belong to different runs.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kgfast.graph.pair_index import (
    IntArray,
    check_sizes,
    differs_from_previous,
    narrow_dtype,
    packed,
    sorted_unique,
)
from kgfast.graph.stored.folder import PARTS, ArrayFile, mapped_index, write_manifest
from kgfast.graph.stored.inputs import Column, Columns, IdFile
from kgfast.progress import progress_bar
from kgfast.storage import check_room
from kgfast.text import reading

# Columns of anchor, other and id.
_SIDES = {"tail": (0, 1, 2), "head": (2, 1, 0), "relation": (0, 2, 1)}
_ROW_BYTES = 56  # bytes of memory per row while rows are sorted
_RUN_BYTES, _SIDE_BYTES = 12, 16  # bytes of disk per row with ids of 32 bits
_SPARE = 1 << 20  # bytes of disk for all other files


@dataclass(frozen=True)
class Build:
    """Files to index, and options of :meth:`kgfast.KnownTriples.build`."""

    files: list[IdFile]
    max_memory: int  # bytes
    relations: bool  # also index the relations of (h, t)
    progress: bool

    def run(self, folder: Path) -> None:
        """Write the index into an empty folder."""
        sides = tuple(_SIDES) if self.relations else ("tail", "head")
        rows = sum(file.rows for file in self.files)
        needed = _SPARE + rows * (_RUN_BYTES + _SIDE_BYTES * len(sides))
        check_room(folder, needed, f"{folder}: {rows:,} triples need up to")
        most, runs = max(1, self.max_memory // _ROW_BYTES), folder / "runs"
        facts: dict[str, Any] = {}
        for side in sides:
            runs.mkdir()
            with progress_bar(self.progress, f"indexing {side}s", 2 * rows) as advance:
                if side == "tail":
                    sizes = _read(self.files, most, runs, advance)
                    check_sizes(*sizes, has_relations=self.relations)
                else:
                    tails = mapped_index(folder / "tail", sizes, facts["tail"])
                    _sort(tails.columns(most), side, runs, advance)
                facts[side] = _merge(folder, side, sizes, most, advance)
            shutil.rmtree(runs)
            rows = facts["tail"]["indices"]["count"]
        write_manifest(folder, sizes, facts)


def _read(
    files: list[IdFile], most: int, runs: Path, advance: Callable[[int], None]
) -> tuple[int, int]:
    """Sort the rows of files; return the numbers of entities and relations."""
    sizes = 0, 0

    def checked(file: IdFile) -> Iterator[Columns]:
        nonlocal sizes
        before = file.path.stat()
        for head, relation, tail in file.pieces():
            if not len(head):
                continue
            entities = max(sizes[0], int(head.max()) + 1, int(tail.max()) + 1)
            sizes = entities, max(sizes[1], int(relation.max()) + 1)
            with reading(file.path, "its ids"):
                check_sizes(*sizes)
            yield head, relation, tail
        after = file.path.stat()
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise ValueError(f"{file.path} changed during reading: build again")

    pieces = (piece for file in files for piece in checked(file))
    _sort(_blocks(pieces, most), "tail", runs, advance)
    return sizes


def _sort(blocks: Iterable[Columns], side: str, runs: Path, advance: Callable[[int], None]) -> None:
    """Write each block of heads, relations and tails as a run, in the order of a side."""
    for number, block in enumerate(blocks):
        first, second, third = (block[place] for place in _SIDES[side])
        save_run(runs / f"{number}.npy", (first, second, third))
        advance(len(first))


def _merge(
    folder: Path, side: str, sizes: tuple[int, int], most: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Merge the runs of a side into its arrays; return the facts of the arrays."""
    of_column = sizes[0], sizes[1], sizes[0]
    _, num_others, num_ids = (of_column[place] for place in _SIDES[side])
    runs = sorted((folder / "runs").iterdir())
    total = sum(np.load(run, mmap_mode="r").shape[1] for run in runs)
    dtypes = np.int64, narrow_dtype(total + 1), narrow_dtype(num_ids)
    keys, indptr, indices = arrays = [
        ArrayFile(folder / f"{side}.{name}.npy", dtype)
        for name, dtype in zip(PARTS, dtypes, strict=True)
    ]
    last = None
    for rows, pairs, ids in merged(runs, most, num_others, num_ids):
        new = differs_from_previous(pairs)
        new[0] = last != int(pairs[0])  # a pair may go on from the range before
        starts = np.flatnonzero(new)
        keys.append(pairs[starts])
        indptr.append(starts + indices.count)
        indices.append(ids)
        last = int(pairs[-1])
        advance(rows)
    indptr.append(np.array([indices.count]))
    return {name: array.finish() for name, array in zip(PARTS, arrays, strict=True)}


def _blocks(pieces: Iterable[Columns], rows: int) -> Iterator[Columns]:
    """Join and cut pieces to blocks of a number of rows; the last may have fewer."""
    held: list[Columns] = []
    count = 0
    for piece in pieces:
        while len(piece[0]):
            room = rows - count
            held.append(_slice(piece, 0, room))
            count += len(held[-1][0])
            piece = _slice(piece, room, None)
            if count == rows:
                yield _joined(held)
                count = 0
    if held:
        yield _joined(held)


def _slice(columns: Columns, start: int, stop: int | None) -> Columns:
    first, second, third = columns
    return first[start:stop], second[start:stop], third[start:stop]


def _joined(held: list[Columns]) -> Columns:
    """Join pieces, and forget them: a block is as large as all of them."""
    first, second, third = (np.concatenate(columns) for columns in zip(*held, strict=True))
    held.clear()
    return first, second, third


def save_run(path: Path, columns: Columns) -> None:
    """Write the distinct rows by first, second and third column."""
    first, second, third = columns
    others = int(second.max()) + 1
    pairs, ids = sorted_unique(packed(first, second, others), third, int(third.max()) + 1)
    anchors = pairs // others
    pairs -= anchors * others
    dtype = np.dtype(narrow_dtype(1 + max(int(column.max()) for column in (anchors, pairs, ids))))
    header = {"descr": dtype.str, "fortran_order": False, "shape": (3, len(ids))}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for column in (anchors, pairs, ids):
            file.write(np.ascontiguousarray(column, dtype).data)


def merged(
    paths: Sequence[Path], most: int, num_others: int, num_ids: int
) -> Iterator[tuple[int, IntArray, Column]]:
    """Yield the distinct rows of runs, in order, about ``most`` at a time.

    Each item is the number of rows read, pairs (int64, first column times ``num_others`` plus
    second) and ids (the third column, ascending within a pair). ``num_ids`` is one past the largest
    id.
    """
    runs = [np.load(path, mmap_mode="r") for path in paths]
    keys = _splitters(runs, most)
    bounds = [[0, *(_place(run, key) for key in keys), run.shape[1]] for run in runs]
    for number in range(len(keys) + 1):
        parts = [
            run[:, places[number] : places[number + 1]]
            for places, run in zip(bounds, runs, strict=True)
        ]
        count = sum(part.shape[1] for part in parts)
        if not count:
            continue
        pairs, ids = np.empty(count, np.int64), np.empty(count, narrow_dtype(num_ids))
        done = 0
        for part in parts:
            here = slice(done, done + part.shape[1])
            pairs[here], ids[here] = packed(part[0], part[1], num_others), part[2]
            done = here.stop
        yield (count, *sorted_unique(pairs, ids, num_ids))


def _splitters(runs: Sequence[Column], most: int) -> list[tuple[int, ...]]:
    """Return rows at which ranges of at most ``most`` rows begin."""
    if sum(run.shape[1] for run in runs) <= most:
        return []
    step = max(1, most // (4 * len(runs)))
    samples = np.concatenate([run[:, step::step] for run in runs], axis=1)
    order = np.lexsort(samples[::-1])[2 * len(runs) :: 2 * len(runs)]
    return [tuple(row) for row in samples[:, order].T.tolist()]


def _place(run: Column, key: tuple[int, ...]) -> int:
    """Return the first place of a run whose row is not before a key."""
    low, high = 0, int(run.shape[1])
    for column, value in zip(run, key, strict=True):
        if value > np.iinfo(run.dtype).max:
            return high
        # A value of another dtype would convert the whole column.
        part, one = column[low:high], np.asarray(value, run.dtype)
        before, through = np.searchsorted(part, one), np.searchsorted(part, one, "right")
        low, high = low + int(before), low + int(through)
    return low
