"""Who else works on a call: nobody, or the processes of :mod:`kgfast.eval.team`."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from kgfast.eval.accumulators import Accumulator

Result = TypeVar("Result")


class Exchange:
    """What those who work on one call tell each other: nothing, where nobody else does.

    Attributes
    ----------
    num_shares : int
        Among how many queries are divided.
    """

    num_shares: int = 1

    def share_of(self, batches: list[Any]) -> list[Any]:
        """Return the batches of this share: as many as every share has, the last may be empty."""
        return batches

    def all_say(self, claim: bool) -> bool:
        """Return whether a claim is true for everybody who works on the same queries."""
        return claim

    def prepare(self, parts: Sequence[Accumulator]) -> None:
        """Make queries and score targets, by whoever holds their rows."""
        for part in parts:
            part.source.prepare(part.queries)

    def together(self, work: Callable[[], Result]) -> Result:
        """Return the result of work that all do at once, each on the rows that it holds."""
        return work()

    def join(self, part: Accumulator) -> None:
        """Merge what others found for the same queries in a pass, where it is not added later."""

    def fill_in(self, values: Tensor) -> None:
        """Fill in, in place, what other shares found; where they did, this one has zeros."""


NOBODY = Exchange()  # also where others leave the rest to whoever calls merge()
