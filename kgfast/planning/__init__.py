"""What a ranking would take, before it is run: memory, time, bytes moved, and what binds.

Nothing here loads torch but :mod:`kgfast.planning.calibration`, which measures this machine.
"""

from kgfast.planning.plan import Plan, planned
from kgfast.planning.work import Work

__all__ = ["Plan", "Work", "planned"]
