"""A limit to the time of a call that works in parts."""

import math
import time

from kgfast.text import shown


class TimeLimit:
    """Limit of a call in minutes from now on; None sets no limit.

    Raises ValueError for minutes that are not a number above 0.
    """

    def __init__(self, minutes: float | None) -> None:
        is_number = isinstance(minutes, int | float) and not isinstance(minutes, bool)
        if minutes is not None and not (is_number and minutes > 0):
            raise ValueError(f"minutes must be a number above 0; got {shown(minutes)}")
        self._last = time.monotonic()
        self._end = math.inf if minutes is None else self._last + 60 * minutes

    def parts_left(self) -> float:
        """End a part; return the number of equally long parts that fit into the time left."""
        now = time.monotonic()
        took, self._last = now - self._last, now
        return (self._end - now) / max(took, 1e-9)
