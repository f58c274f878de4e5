"""What a ranking would take, before it is run: memory, time, bytes moved, and what binds.

Nothing here loads torch but :mod:`kgfast.extras.planning.calibration`, which measures this machine.
"""

from kgfast.extras.planning.plan import Plan, planned
from kgfast.extras.planning.work import Work

__all__ = ["Plan", "Work", "planned"]
