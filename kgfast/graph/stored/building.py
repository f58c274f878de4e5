"""An index of known triples built out of core: sorted runs, merged for each side.

The rows of the files are sorted a block at a time, each block into a run, and the runs are merged
into the arrays of the side "tail". The rows of these arrays make the other sides in the same way.
All files lie in a folder beside the new one until the index is whole.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kgfast.graph.pair_index import check_sizes, differs_from_previous, narrow_dtype
from kgfast.graph.stored.folder import PARTS, ArrayFile, mapped_index, write_manifest
from kgfast.graph.stored.inputs import Columns, IdFile
from kgfast.graph.stored.runs import merged, save_run
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
