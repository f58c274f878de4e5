"""Triples in sorted runs, each a file, and their merge a range at a time.

A run holds distinct rows in the order of the columns. Every s-th row of each run is a sample;
ranges end at every g-th sample of all runs. A range then holds at most ``(g + 2 m) s`` rows of m
runs. The reason: each run has fewer than s rows before its first sample in the range, and equal
samples belong to different runs.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from kgfast.graph.pair_index import IntArray, narrow_dtype, packed, sorted_unique
from kgfast.graph.stored.inputs import Column, Columns


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
