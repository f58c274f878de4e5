"""Predictions for a ranking before it runs: memory, time, bytes moved, and the bottleneck.

Only :mod:`kgfast.extras.planning.calibration`, which measures this machine, loads torch.
"""

from kgfast.extras.planning.plan import Plan, planned
from kgfast.extras.planning.work import Work

__all__ = ["Plan", "Work", "planned"]
