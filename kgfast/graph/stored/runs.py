"""Triples in sorted runs, each a file, and their merge a range at a time.

A run holds distinct rows in the order of the columns. Every s-th row of each run is a sample;
ranges end at every g-th sample of all runs. A range then holds at most ``(g + 2 m) s`` rows of m
runs. The reason: each run has fewer than s rows before its first sample in the range, and equal
samples belong to different runs.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from kgfast.graph.pair_index import IntArray, narrow_dtype, sorted_unique
from kgfast.graph.stored.inputs import Column, Columns
from kgfast.text import reading
from kgfast.whole_files import write_whole

_Key = tuple[int, ...]


def sorted_columns(columns: Columns) -> Columns:
    """Return the distinct rows, by first, second and third column."""
    first, second, third = columns
    if not len(first):
        return columns
    others = int(second.max()) + 1
    pairs = _packed(first, second, others)
    pairs, ids = sorted_unique(pairs, third, int(third.max()) + 1)
    first = pairs // others
    pairs -= first * others
    return first, pairs, ids


def save_run(path: Path, columns: Columns) -> None:
    """Write a run of sorted columns and sync, since the marker may outlive a loss of power."""
    dtype = np.dtype(narrow_dtype(1 + max(int(column.max(initial=0)) for column in columns)))
    header = {"descr": dtype.str, "fortran_order": False, "shape": (3, len(columns[0]))}

    def write(beside: Path) -> None:
        with beside.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for column in columns:
                file.write(np.ascontiguousarray(column, dtype).data)

    write_whole(path, write, lasting=True)


def load_run(path: Path) -> Columns:
    """Map the columns of a run."""
    with reading(path, f"damaged: delete {path.parent}, and build again"):
        first, second, third = np.load(path, mmap_mode="r", allow_pickle=False)
    return first, second, third


def merged(
    paths: Sequence[Path], most: int, num_others: int, num_ids: int
) -> Iterator[tuple[int, IntArray, Column]]:
    """Yield the distinct rows of runs, in order, about ``most`` at a time.

    Each item is the number of rows read, pairs (int64, first column times ``num_others`` plus
    second) and ids (the third column, ascending within a pair). ``num_ids`` is one past the largest
    id.
    """
    runs = [load_run(path) for path in paths]
    keys = _splitters(runs, most)
    bounds = [[0, *(_place(run, key) for key in keys), len(run[0])] for run in runs]
    for number in range(len(keys) + 1):
        parts = [
            [column[own[number] : own[number + 1]] for column in run]
            for own, run in zip(bounds, runs, strict=True)
        ]
        count = sum(len(first) for first, _, _ in parts)
        if not count:
            continue
        pairs, ids = np.empty(count, np.int64), np.empty(count, narrow_dtype(num_ids))
        done = 0
        for first, second, third in parts:
            here = slice(done, done + len(first))
            pairs[here] = _packed(first, second, num_others)
            ids[here] = third
            done += len(first)
        yield (count, *sorted_unique(pairs, ids, num_ids))


def _packed(first: Column, second: Column, num_others: int) -> IntArray:
    pairs: IntArray = first.astype(np.int64)
    pairs *= num_others
    pairs += second
    return pairs


def _splitters(runs: Sequence[Columns], most: int) -> list[_Key]:
    """Return rows at which ranges of at most ``most`` rows begin."""
    if sum(len(run[0]) for run in runs) <= most:
        return []
    step = max(1, most // (4 * len(runs)))
    columns = [np.concatenate([run[column][step::step] for run in runs]) for column in range(3)]
    order = np.lexsort(columns[::-1])[2 * len(runs) :: 2 * len(runs)]
    return [tuple(int(column[row]) for column in columns) for row in order]


def _place(run: Columns, key: _Key) -> int:
    low, high = 0, len(run[0])
    for column, value in zip(run, key, strict=True):
        if value > np.iinfo(column.dtype).max:
            return high
        # A value of another dtype would convert the whole column.
        part, one = column[low:high], np.asarray(value, column.dtype)
        before, through = np.searchsorted(part, one), np.searchsorted(part, one, "right")
        low, high = low + int(before), low + int(through)
    return low
