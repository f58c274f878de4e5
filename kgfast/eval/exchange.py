"""Who else works on a call: here nobody; kgfast.distributed has other processes."""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from torch import Tensor

from kgfast.eval.accumulators import Accumulator, BestSoFar

Result = TypeVar("Result")


class Exchange(Protocol):
    """What those who work on one call tell each other."""

    num_shares: int  # among which queries are divided

    def share_of(self, batches: list[Tensor]) -> Iterator[Tensor]:
        """Return the batches of this share."""

    def prepare(self, part: Accumulator) -> None:
        """Make queries and score targets, by whoever holds their rows."""

    def together(self, work: Callable[[], Result]) -> Result:
        """Return the result of work that all do at once, each on the rows that it holds."""

    def join_best(self, part: BestSoFar) -> None:
        """Merge the answers that others found for the same queries."""

    def join_counts(self, counts: Tensor) -> None:
        """Add the counts of all others, of all queries, in place."""


class Nobody:
    """One process, or one that leaves the rest to whoever calls merge()."""

    num_shares = 1

    def share_of(self, batches: list[Tensor]) -> Iterator[Tensor]:
        """Return all batches."""
        return iter(batches)

    def prepare(self, part: Accumulator) -> None:
        """Make queries and score targets."""
        part.prepare()

    def together(self, work: Callable[[], Result]) -> Result:
        """Do the work."""
        return work()

    def join_best(self, part: BestSoFar) -> None:
        """Leave the answers as they are."""

    def join_counts(self, counts: Tensor) -> None:
        """Leave the counts as they are."""


NOBODY = Nobody()
