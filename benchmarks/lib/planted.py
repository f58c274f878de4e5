"""Tables of any size in a file, whose ranks are known: planted answers among random rows.

Rows are random complex numbers of float16, drawn block by block from a seed, so that every block
can be drawn again without the file. Each query has some rows put close to it, closer than its
target, and the target farther away but far closer than chance puts any other row: its rank is one
more than the number of these rows, and less by those that are known answers.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import kgfast

BLOCK_ROWS = 1 << 16  # rows that are drawn together
RELATIONS = 16
# Mean distance of one complex number from the query's: of a target and, below it, of closer rows.
# By chance it is 1.06, of the sum of 64 of them 68 with a deviation of 4.
TARGET, CLOSER = 0.3, 0.15
_KEPT_FREE = 1 << 30  # bytes of the disk


@dataclass(frozen=True)
class Planted:
    """A table of RotatE, halves of float16, with triples whose ranks are known."""

    entities: int
    dim: int  # complex numbers of a row
    queries: int  # triples whose tails are ranked
    most: int = 3  # query i has i % (most + 1) closer rows than its target; half are known
    seed: int = 0

    @property
    def bytes(self) -> int:
        """Return the bytes of the rows."""
        return self.entities * self.dim * 4

    @property
    def name(self) -> str:
        """Return the name of the file."""
        return f"planted-{self.entities}x{self.dim}-q{self.queries}-m{self.most}-s{self.seed}.npy"

    @cached_property
    def closer(self) -> npt.NDArray[np.int64]:
        """Count the rows that are closer than the target of each query."""
        return np.arange(self.queries, dtype=np.int64) % (self.most + 1)

    @cached_property
    def triples(self) -> Tensor:
        """Return the triples, int64 ``[queries, 3]``."""
        heads, tails, _ = self._places
        relations = np.arange(self.queries, dtype=np.int64) % RELATIONS
        return torch.from_numpy(np.stack([heads, relations, tails], 1))

    @cached_property
    def phase(self) -> Tensor:
        """Return the phases, float32 ``[RELATIONS, dim]``."""
        drawn = self._random(0).random((RELATIONS, self.dim), dtype=np.float32)
        return torch.from_numpy(drawn * np.float32(2 * np.pi))

    @cached_property
    def known(self) -> kgfast.KnownTriples:
        """Return the triples, and every other row that is closer, as known."""
        hrt = self.triples
        answers = [
            torch.stack([hrt[query, 0], hrt[query, 1], torch.tensor(int(row))])
            for query, rows in enumerate(self._places[2])
            for row in rows[::2]
        ]
        return kgfast.KnownTriples(hrt, torch.stack(answers) if answers else hrt[:0])

    def wrong(self, ranks: kgfast.Ranks) -> int:
        """Count the ranks, raw or filtered, that differ from the planted ones."""
        left = torch.from_numpy(self.closer // 2)  # without the known ones
        raw = torch.from_numpy(self.closer)
        own = ranks.greater[:, 0] != left, ranks.raw.greater[:, 0] != raw
        ties = (ranks.equal[:, 0] != 0) | (ranks.raw.equal[:, 0] != 0)
        return int((own[0] | own[1] | ties).sum())

    def write(self, folder: Path) -> Path:
        """Write the file block by block, unless it is there or the disk has no room."""
        path = folder / self.name
        if path.exists():
            return path
        free = shutil.disk_usage(folder).free
        if free < self.bytes + _KEPT_FREE:
            raise OSError(
                f"{folder}: the table takes {self.bytes:,} bytes; the disk has {free:,} left"
            )
        beside = path.with_suffix(".part")
        rows = np.lib.format.open_memmap(beside, "w+", np.float16, (self.entities, 2 * self.dim))
        for place, block in enumerate(self.blocks()):
            rows[place * BLOCK_ROWS :][: len(block)] = block
        rows.flush()  # pages that are not written out cannot be given back
        beside.replace(path)
        return path

    def table(self) -> Tensor:
        """Return all rows in memory, float16 ``[entities, 2 dim]``."""
        return self.rows(0, self.entities)

    def rows(self, first: int, last: int) -> Tensor:
        """Draw rows ``first .. last - 1`` anew."""
        parts = []
        for place, block in enumerate(self.blocks(first // BLOCK_ROWS)):
            start = (first // BLOCK_ROWS + place) * BLOCK_ROWS
            if start >= last:
                break
            parts.append(block[max(0, first - start) : last - start])
        return torch.from_numpy(np.concatenate(parts))

    def model(self, entity: object) -> kgfast.RotatE:
        """Return the model of rows in a file or in memory."""
        return kgfast.RotatE(entity, self.phase, relation_format="phase")

    def blocks(self, number: int = 0) -> Iterator[npt.NDArray[np.float16]]:
        """Yield the rows, a block at a time, from block ``number`` on."""
        ids, rows = self._planted
        for first in range(number * BLOCK_ROWS, self.entities, BLOCK_ROWS):
            block = self._drawn(first // BLOCK_ROWS)
            start, stop = np.searchsorted(ids, (first, first + BLOCK_ROWS))
            block[ids[start:stop] - first] = rows[start:stop]
            yield block

    def _drawn(self, number: int) -> npt.NDArray[np.float16]:
        """Draw the random rows of a block, uniform in [-1, 1)."""
        count = min(BLOCK_ROWS, self.entities - number * BLOCK_ROWS)
        bits = np.frombuffer(self._random(2 + number).bytes(count * self.dim * 4), np.int16)
        drawn = torch.from_numpy(bits.copy()).to(torch.float16).mul_(2.0**-15)
        return drawn.view(count, 2 * self.dim).numpy()

    def _random(self, stream: int) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64([self.seed, stream]))

    @cached_property
    def _places(
        self,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[npt.NDArray[np.int64]]]:
        """Draw heads, targets, and the rows closer than each target: all distinct."""
        count = 2 * self.queries + int(self.closer.sum())
        if count > self.entities:
            raise ValueError(f"{count} rows are planted; the table has {self.entities}")
        found = self._random(1).choice(self.entities, count, replace=False)
        heads, tails = found[: self.queries], found[self.queries : 2 * self.queries]
        rest = found[2 * self.queries :]
        return heads, tails, np.split(rest, np.cumsum(self.closer)[:-1])

    @cached_property
    def _planted(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float16]]:
        """Return ids, ascending, and rows that are planted."""
        heads, tails, closer = self._places
        random = self._random(1)
        ids, rows = [], []
        for query in range(self.queries):
            relation = self.phase[query % RELATIONS].numpy().astype(np.float64)
            head = random.uniform(-1, 1, 2 * self.dim).astype(np.float16)
            re, im = head.astype(np.float64).reshape(2, self.dim)
            there = (re + 1j * im) * np.exp(1j * relation)
            ids.append(heads[query])
            rows.append(head)
            for row, distance in [(tails[query], TARGET), *((it, CLOSER) for it in closer[query])]:
                moved = there + distance * np.exp(2j * np.pi * random.random(self.dim))
                ids.append(row)
                rows.append(np.concatenate([moved.real, moved.imag]).astype(np.float16))
        order = np.argsort(ids)
        return np.array(ids)[order], np.array(rows)[order]
