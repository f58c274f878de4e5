"""Rank counts by a bare loop over packed rows in float32, compiled here: lib/bare_loop.cpp.

Peers differ by machine and by what their wheels were compiled for; the loop does not.
"""

import ctypes
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lib.native import compiled
from lib.peers import Missing, building, rotate_scores
from lib.peers.ranks import Counts, Work

SCORES = ("dot", "l1", "l2", "rotate")


@cache
def _library() -> Any:
    with building(), tempfile.TemporaryDirectory() as folder:
        return ctypes.CDLL(str(compiled("bare_loop.cpp", folder)))


def panels_of(table: Tensor, score: str) -> Tensor:
    """Pack rows: panels ``[P, D, planes, L]``, rows of NaN at the end, which no score exceeds."""
    lanes, planes = _library().lanes(), 2 if score == "rotate" else 1
    rows, width = table.shape
    padded = torch.full((-(-rows // lanes) * lanes, width), torch.nan)
    padded[:rows] = table
    panels = padded.view(-1, lanes, planes, width // planes).permute(0, 3, 2, 1)
    room = torch.empty(panels.numel() + 16)  # room to start at a cache line
    aligned = room[-room.data_ptr() % 64 // 4 :][: panels.numel()].view(panels.shape)
    return aligned.copy_(panels)


def scores_of(work: Work, score: str) -> Tensor:
    """Return the float32 scores of the targets, ``[B]``."""
    rows = work.table[work.targets]
    if score == "rotate":
        return rotate_scores(work.queries, rows)
    if score == "dot":
        return (work.queries * rows).sum(1)
    difference = work.queries - rows
    return -(difference.abs() if score == "l1" else difference.square()).sum(1)


class Loop:
    """Counts of greater and of equal scores, the targets' own among neither."""

    def __init__(self, work: Work, score: str, panels: Tensor | None = None) -> None:
        if work.device != "cpu":
            raise Missing("it is compiled for CPUs")
        self._count = getattr(_library(), score)
        self._work, self._own = work, scores_of(work, score)
        self.panels = panels_of(work.table, score) if panels is None else panels
        self._pool = ThreadPoolExecutor(torch.get_num_threads())

    def __call__(self) -> Counts:
        """Count by as many threads as torch has."""
        parts = self.panels.chunk(torch.get_num_threads())
        run: Callable[..., Any] = map if len(parts) == 1 else self._pool.map
        greater, equal = sum(run(self._counts, parts))
        return greater, (equal - 1).clamp(min=0)

    def _counts(self, panels: Tensor) -> Tensor:
        queries, counts = self._work.queries, torch.zeros(2, len(self._own), dtype=torch.int64)
        pointers = [it.data_ptr() for it in (queries, panels, self._own, *counts)]
        given, rows, own, greater, equal = map(ctypes.c_void_p, pointers)
        sizes = [ctypes.c_int64(it) for it in (len(queries), len(panels), panels.shape[1])]
        self._count(given, sizes[0], rows, *sizes[1:], own, greater, equal)
        return counts
