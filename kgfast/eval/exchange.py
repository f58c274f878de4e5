"""Who else works on a call: here nobody; kgfast.distributed has other processes."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor

from kgfast.eval.accumulators import Accumulator

Result = TypeVar("Result")


class Exchange(Protocol):
    """What those who work on one call tell each other."""

    @property
    def num_shares(self) -> int:
        """Among how many queries are divided."""

    def share_of(self, batches: list[Any]) -> list[Any]:
        """Return the batches of this share: as many as every share has, the last may be empty."""

    def prepare(self, parts: Sequence[Accumulator]) -> None:
        """Make queries and score targets, by whoever holds their rows."""

    def together(self, work: Callable[[], Result]) -> Result:
        """Return the result of work that all do at once, each on the rows that it holds."""

    def join(self, part: Accumulator) -> None:
        """Merge what others found for the same queries in a pass, where it is not added later."""

    def fill_in(self, values: Tensor) -> None:
        """Fill in, in place, what other shares found; where they did, this one has zeros."""


class Nobody:
    """One process, or one that leaves the rest to whoever calls merge()."""

    num_shares = 1

    def share_of(self, batches: list[Any]) -> list[Any]:
        """Return all batches."""
        return batches

    def prepare(self, parts: Sequence[Accumulator]) -> None:
        """Make queries and score targets."""
        for part in parts:
            part.source.prepare(part.queries)

    def together(self, work: Callable[[], Result]) -> Result:
        """Do the work."""
        return work()

    def join(self, part: Accumulator) -> None:
        """Leave everything as it is."""

    def fill_in(self, values: Tensor) -> None:
        """Leave everything as it is."""


NOBODY = Nobody()
