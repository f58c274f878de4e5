"""Several processes: collective calls within ``processes()``, and ranges for any scheduler."""

from kgfast.processes.ranges import RangeCounts, count_range, merge
from kgfast.processes.shares import processes
from kgfast.processes.steps import LostProcessError, OtherProcessError

__all__ = [
    "LostProcessError",
    "OtherProcessError",
    "RangeCounts",
    "count_range",
    "merge",
    "processes",
]
