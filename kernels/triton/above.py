"""Candidates with scores that reach a threshold, on a GPU: counted, then the best of each query.

Cost model: the sweeps of ranks and of the best k (rank.py, topk.py). Memory: that of these sweeps,
and results of :data:`kgfast.kernels.above.RESULTS`. The host waits for the counts, and for each
part of results.
"""

from torch import Tensor

from .. import above as shared
from ..checks import Checks
from ..operands import Above, Known, Operands
from .rank import rank_counts
from .topk import topk


def above(
    operands: Operands, lowest: Tensor, known: Known | None, checks: Checks, most: int
) -> Above | int:
    """Find all candidates; the contract is :meth:`kgfast.kernels.backend.Backend.above`."""
    return shared.above(rank_counts, topk, operands, lowest, known, checks, most)
