"""Fresh entity tables: drawn whole, stored in part or whole, in memory or elsewhere."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_NUMBERS = 1 << 22  # numbers drawn at once if not all rows are stored
_LOT = 16  # torch draws normal numbers in lots of this size

Fill = Callable[[Tensor], object]


def fresh_table(shape: Sequence[int]) -> Tensor:
    """Make an empty fresh table: float32 on the CPU, for any defaults of the process.

    So a seed draws the same numbers everywhere; ``model.to`` moves and casts the table.
    """
    return torch.empty(tuple(shape), dtype=torch.float32, device="cpu")


@dataclass(frozen=True)
class Fresh:
    """Rows ``first, first + step, ...`` of a fresh entity table, stored by ``room``.

    All rows are drawn, a block at a time, so that stored rows, and all later draws, equal those of
    a whole table. ``room`` makes the tensor ``[n, G]``, float32 on the CPU.
    """

    first: int = 0
    step: int = 1
    room: Callable[[Sequence[int]], Tensor] = fresh_table

    def drawn(self, shape: tuple[int, int], fill: Fill) -> Tensor:
        """Return the stored rows of a table ``shape`` that ``fill`` draws in order."""
        count, width = shape
        kept = self.room((len(range(self.first, count, self.step)), width))
        self.draw_into(kept, count, fill)
        return kept

    def draw_into(self, kept: Tensor, count: int, fill: Fill) -> None:
        """Draw a table of ``count`` rows, and write the stored rows to ``kept``."""
        if self.step == 1:
            fill(kept)
            return
        width = kept.shape[1]
        for start, stop in _blocks(count, width):
            block = fresh_table((stop - start, width))
            fill(block)
            before = len(range(self.first, start, self.step))
            rows = block[(self.first - start) % self.step :: self.step]
            kept[before : before + len(rows)] = rows


def _blocks(count: int, width: int) -> list[tuple[int, int]]:
    """Cut rows into ranges that draw the same numbers as one range: whole lots each."""
    step = _LOT * max(1, _NUMBERS // (_LOT * max(1, width)))
    starts = list(range(0, count, step))
    if len(starts) > 1 and (count - starts[-1]) * width < _LOT:
        starts.pop()
    return list(zip(starts, [*starts[1:], count], strict=True))


ALL_ROWS = Fresh()


def uniform(limit: float, generator: torch.Generator | None) -> Fill:
    """Return a function that draws uniformly from +- a limit."""
    return lambda table: table.uniform_(-limit, limit, generator=generator)


def normal(std: float, generator: torch.Generator | None) -> Fill:
    """Return a function that draws normally around 0."""
    return lambda table: table.normal_(0.0, std, generator=generator)


def xavier_normal(shape: tuple[int, int], generator: torch.Generator | None) -> Fill:
    """Return a function that draws a table of that shape as Glorot & Bengio (2010) do."""
    return normal(math.sqrt(2.0 / sum(shape)), generator)
