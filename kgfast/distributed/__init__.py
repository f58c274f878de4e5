"""Ranking and prediction by several processes: torch.distributed, or any scheduler of ranges."""

from kgfast.distributed.meeting import LostProcessError, OtherProcessError
from kgfast.distributed.prediction import topk
from kgfast.distributed.ranges import RangeCounts, count_range, merge
from kgfast.distributed.ranking import rank

__all__ = [
    "LostProcessError",
    "OtherProcessError",
    "RangeCounts",
    "count_range",
    "merge",
    "rank",
    "topk",
]
