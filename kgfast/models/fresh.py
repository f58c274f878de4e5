"""Fresh tables: their memory, and the functions that draw them."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Fill = Callable[[Tensor], object]
Room = Callable[[Sequence[int]], Tensor]


def fresh_table(shape: Sequence[int]) -> Tensor:
    """Make an empty fresh table: float32 on the CPU, for any defaults of the process.

    So a seed draws the same numbers everywhere; ``model.to`` moves and casts the table.
    """
    return torch.empty(tuple(shape), dtype=torch.float32, device="cpu")


def uniform(limit: float, generator: torch.Generator | None) -> Fill:
    """Return a function that draws uniformly from +- a limit."""
    return lambda table: table.uniform_(-limit, limit, generator=generator)


def normal(std: float, generator: torch.Generator | None) -> Fill:
    """Return a function that draws normally around 0."""
    return lambda table: table.normal_(0.0, std, generator=generator)


def xavier_normal(shape: tuple[int, int], generator: torch.Generator | None) -> Fill:
    """Return a function that draws a table of that shape as Glorot & Bengio (2010) do."""
    return normal(math.sqrt(2.0 / sum(shape)), generator)
