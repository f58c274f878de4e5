"""An index of known triples built out of core: sorted runs of the files, merged once for each side.

All files lie in ``<folder>.building`` until the index is whole; then that folder is renamed. A
killed run resumes after the last finished file and the last finished side. A marker, written last,
records the input of each.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOSPC
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kgfast.graph.pair_index import check_sizes, differs_from_previous, narrow_dtype
from kgfast.graph.stored.folder import PARTS, GrowingArray, write_json, write_manifest
from kgfast.graph.stored.inputs import Column, Columns, IdFile, ReadOptions, open_files
from kgfast.graph.stored.runs import load_run, merged, save_run, sorted_columns
from kgfast.locks import NAME as LOCK
from kgfast.locks import locked
from kgfast.progress import progress_bar
from kgfast.storage import check_room
from kgfast.text import reading

# Columns of anchor, other and id. Runs are read in the first order.
_SIDES = {"tail": (0, 1, 2), "head": (2, 1, 0), "relation": (0, 2, 1)}
_INDEX = "index"  # folder of finished files
_ROW_BYTES = 56  # bytes of memory per row while rows are sorted
_RUN_BYTES, _SIDE_BYTES = 12, 16  # bytes of disk per row with ids of 32 bits
_SPARE = 1 << 20  # bytes of disk for all other files

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Options:
    """Options of :meth:`kgfast.KnownTriples.build`."""

    asked: ReadOptions
    max_memory: int  # bytes
    relations: bool  # also index the relations of (h, t)
    progress: bool

    @property
    def rows(self) -> int:
        """Return the number of rows that are sorted at once."""
        return max(1, self.max_memory // _ROW_BYTES)

    @property
    def sides(self) -> tuple[str, ...]:
        """Return the sides to index, in the order of building."""
        return tuple(_SIDES) if self.relations else ("tail", "head")


def build(files: Any, folder: str | os.PathLike[str], options: Options) -> None:
    """Build a folder; see :meth:`kgfast.KnownTriples.build`."""
    path = Path(folder)
    if path.exists():
        raise FileExistsError(f"{path} is there already: choose another folder, or delete this one")
    found = open_files(files, options.asked)
    rows = sum(file.rows for file in found)
    total = rows * 2 * len(options.sides)
    with _working(path) as work, progress_bar(options.progress, "indexing", total) as advance:
        builder = _Builder(work, found, options, advance)
        builder.check_disk(rows)
        try:
            builder.run()
        except OSError as error:
            if error.errno != ENOSPC:
                raise
            raise OSError(
                f"{work}: its disk is full; finished work is saved: make room and call again"
            ) from None
        os.replace(work / _INDEX, path)
    shutil.rmtree(work)


@contextmanager
def _working(path: Path) -> Iterator[Path]:
    """Hold the lock of ``<folder>.building``, in which one process at a time builds."""
    work = path.with_name(f"{path.name}.building")
    is_ours = any((work / name).exists() for name in (LOCK, _INDEX, "file-0.json"))
    if work.is_dir() and any(work.iterdir()) and not is_ours:
        raise ValueError(f"{work} holds other files: move these files, or choose another folder")
    work.mkdir(parents=True, exist_ok=True)
    with locked(work, instead="choose another folder"):
        yield work


class _Builder:
    """State that the steps of one call share."""

    def __init__(
        self, work: Path, files: Sequence[IdFile], options: Options, advance: Advance
    ) -> None:
        self.work, self.files, self.options, self.advance = work, files, options, advance
        self.index = work / _INDEX
        self.index.mkdir(exist_ok=True)
        for path in work.rglob(".*-*"):  # half-written by a killed process
            path.unlink()

    def check_disk(self, rows: int) -> None:
        limit = self.options.asked.num_entities
        wide = 2 if limit is not None and limit > 2**31 else 1
        held = sum(it.stat().st_size for it in self.work.rglob("*.npy"))
        needed = _SPARE + rows * wide * (_RUN_BYTES + _SIDE_BYTES * len(self.options.sides))
        needed += self.options.rows * _RUN_BYTES * wide  # beside the run that is replaced
        check_room(self.work, needed - held, f"{self.work}: {rows:,} triples need up to")

    def run(self) -> None:
        """Run all steps that are not finished."""
        read = [self._read(number, file) for number, file in enumerate(self.files)]
        runs = [name for facts in read for name in facts["runs"]]
        self._remove_others(runs)
        num_entities = max((facts["num_entities"] for facts in read), default=0)
        num_relations = max((facts["num_relations"] for facts in read), default=0)
        check_sizes(num_entities, num_relations, has_relations=self.options.relations)
        made_of = {"files": [facts["file"] for facts in read]}
        sides = {}
        for side in self.options.sides:
            make = partial(self._side, side, runs, (num_entities, num_relations))
            sides[side] = self._marked(f"side-{side}.json", made_of, make)["arrays"]
        ours = {f"{side}.{part}.npy" for side in sides for part in PARTS}
        for path in [it for it in self.index.iterdir() if it.name not in ours]:
            path.unlink()  # a side that an earlier call needed
        facts = {"num_entities": num_entities, "num_relations": num_relations, "sides": sides}
        write_manifest(self.index, facts)
        for side in sides:  # the arrays go with the folder
            (self.work / f"side-{side}.json").unlink()

    def _marked(
        self, name: str, made_of: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the result of a step, from a marker if the step is finished."""
        path = self.work / name
        made_of = json.loads(json.dumps(made_of))  # with the types that a marker has when read
        if path.exists():
            with reading(path, f"damaged: delete {self.work}, and build again"):
                found: dict[str, Any] = dict(json.loads(path.read_text()))
                if {key: found.get(key) for key in made_of} == made_of:
                    self.advance(int(found["steps"]))
                    return found
            path.unlink()
        facts = {**made_of, **make()}
        write_json(path, facts)
        return facts

    def _read(self, number: int, file: IdFile) -> dict[str, Any]:
        asked = self.options.asked
        facts = [*_state_of(file.path), asked.order, asked.num_entities, asked.num_relations]
        facts.append(self.options.rows)
        make = partial(self._runs_of, number, file)
        return self._marked(f"file-{number}.json", {"file": facts}, make)

    def _runs_of(self, number: int, file: IdFile) -> dict[str, Any]:
        for path in self.work.glob(f"run-{number}-*"):
            path.unlink()
        before = _state_of(file.path)
        runs: list[str] = []
        sizes, steps = [0, 0], 0
        for columns in _blocks(file, self.options.rows):
            head, relation, tail = columns
            steps += len(head)
            sizes[0] = max(sizes[0], int(head.max()) + 1, int(tail.max()) + 1)
            sizes[1] = max(sizes[1], int(relation.max()) + 1)
            with reading(file.path, "its ids"):
                check_sizes(*sizes)
            runs.append(f"run-{number}-{len(runs)}")
            save_run(self._path(runs[-1], "tail"), sorted_columns(columns))
            self.advance(len(head))
        if _state_of(file.path) != before:
            raise ValueError(f"{file.path} changed during reading: build again")
        return {"runs": runs, "num_entities": sizes[0], "num_relations": sizes[1], "steps": steps}

    def _remove_others(self, names: Sequence[str]) -> None:
        """Remove runs and markers of files that are not among this call's."""
        kept = {f"{name}.{side}.npy" for name in names for side in _SIDES}
        kept |= {f"file-{number}.json" for number in range(len(self.files))}
        for path in [*self.work.glob("run-*"), *self.work.glob("file-*")]:
            if path.name not in kept:
                path.unlink()

    def _path(self, run: str, side: str) -> Path:
        return self.work / f"{run}.{side}.npy"

    def _side(self, side: str, runs: Sequence[str], sizes: tuple[int, int]) -> dict[str, Any]:
        steps = sum(self._sort(run, side) for run in runs)
        num_entities, num_relations = sizes
        if side == "relation":
            num_others, num_ids = num_entities, num_relations
        else:
            num_others, num_ids = num_relations, num_entities
        paths = [self._path(run, side) for run in runs]
        most = sum(len(load_run(path)[0]) for path in paths)
        arrays = _Arrays(self.index, side, num_ids, most)
        for rows, pairs, ids in merged(paths, self.options.rows, num_others, num_ids):
            arrays.append(pairs, ids)
            self.advance(rows)
            steps += rows
        return {"arrays": arrays.finish(), "steps": steps}

    def _sort(self, run: str, side: str) -> int:
        """Put a run into the order of a side; return the number of rows that were sorted."""
        path = self._path(run, side)
        others = [self._path(run, other) for other in _SIDES if other != side]
        old = next((it for it in others if it.exists()), None)
        if old is None:
            return 0
        where = next(it for it in _SIDES if self._path(run, it) == old)
        columns = load_run(old)
        of_triple = [columns[_SIDES[where].index(place)] for place in range(3)]
        first, second, third = (np.array(of_triple[place]) for place in _SIDES[side])
        save_run(path, sorted_columns((first, second, third)))
        old.unlink()
        self.advance(len(first))
        return len(first)


class _Arrays:
    """Arrays of a side, as far as merged."""

    def __init__(self, folder: Path, side: str, num_ids: int, most: int) -> None:
        dtypes = np.int64, narrow_dtype(most + 1), narrow_dtype(num_ids)
        self._parts = [
            GrowingArray(folder / f"{side}.{name}.npy", dtype)
            for name, dtype in zip(PARTS, dtypes, strict=True)
        ]
        self._last: int | None = None

    def append(self, pairs: Column, ids: Column) -> None:
        """Add the next rows in order; the first pair may equal the last earlier pair."""
        keys, indptr, indices = self._parts
        new = differs_from_previous(pairs)
        new[0] = self._last != int(pairs[0])
        starts = np.flatnonzero(new)
        keys.append(pairs[starts])
        starts += indices.count
        indptr.append(starts)
        indices.append(ids)
        self._last = int(pairs[-1])

    def finish(self) -> dict[str, Any]:
        _, indptr, indices = self._parts
        indptr.append(np.array([indices.count]))
        return {name: part.finish() for name, part in zip(PARTS, self._parts, strict=True)}


def _state_of(path: Path) -> list[Any]:
    found = path.stat()
    return [str(path.resolve()), found.st_size, found.st_mtime_ns]


def _blocks(file: IdFile, rows: int) -> Iterator[Columns]:
    held: list[Columns] = []
    count = 0
    for piece in file.pieces():
        while len(piece[0]):
            room = rows - count
            held.append(_slice(piece, 0, room))
            count += len(held[-1][0])
            piece = _slice(piece, room, None)
            if count == rows:
                yield _joined(held)
                held, count = [], 0
    if held:
        yield _joined(held)


def _slice(columns: Columns, start: int, stop: int | None) -> Columns:
    first, second, third = columns
    return first[start:stop], second[start:stop], third[start:stop]


def _joined(parts: list[Columns]) -> Columns:
    first, second, third = (np.concatenate([part[place] for part in parts]) for place in range(3))
    parts.clear()
    return first, second, third
