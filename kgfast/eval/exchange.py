"""Exchange of results between processes; the base class serves a single process."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from kgfast.eval.accumulators import Accumulator
from kgfast.kernels.operands import Above

Result = TypeVar("Result")


class Exchange:
    """Communication of the processes of one call, for a single process."""

    num_shares: int = 1

    def share_of(self, batches: list[Any]) -> list[Any]:
        """Return the batches of this share; all shares have equally many, the last may be empty."""
        return batches

    def all_say(self, claim: bool) -> bool:
        """Return True if a claim holds in all processes that serve these queries."""
        return claim

    def prepare(self, parts: Sequence[Accumulator]) -> None:
        """Make queries and score targets, each in a process that has the rows."""
        for part in parts:
            part.source.prepare(part.queries)

    def together(self, work: Callable[[], Result]) -> Result:
        """Return the result of work that all processes do at once, each on its own rows."""
        return work()

    def join(self, part: Accumulator) -> None:
        """Merge the answers of other processes to the queries of a pass."""

    def fill_in(self, values: Tensor) -> None:
        """Replace zeros by the results of other shares, in place."""

    def total(self, count: int) -> int:
        """Return the sum of a number over all processes."""
        return count

    def fill_in_rows(self, found: Above) -> Above:
        """Add the rows of other shares, which are empty in this process."""
        return found


NOBODY = Exchange()  # also for a range: merge() adds the other ranges later
