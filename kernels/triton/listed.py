"""Candidates that each query lists, on a GPU: canonical scores of all pairs.

Cost model: device/canonical.py, a lane per pair. Memory: :mod:`kgfast.kernels.lists`. The host
waits for the lengths of the lists and for numbers that are not finite.
"""

import torch
from torch import Tensor

from .. import lists as shared
from ..checks import Checks
from ..operands import Counts, Known, Lists, Operands
from .device.canonical import Pairs
from .host import launch as launcher
from .host.scan import Crop
from .host.status import Status


def list_counts(
    operands: Operands, lists: Lists, targets: Tensor, known: Known, checks: Checks
) -> Counts:
    """Count; the contract is :meth:`kgfast.kernels.backend.Backend.rank_counts`."""
    with launcher.serving(operands.table.device) as arch:
        pairs = _Pairs(operands, arch, checks)
        counts = shared.list_counts(pairs.score_all, operands, lists, targets, known)
        pairs.status.read(checks).raise_if_bad()
        return counts


def list_topk(
    operands: Operands, lists: Lists, k: int, known: Known | None, checks: Checks
) -> tuple[Tensor, Tensor]:
    """Return the best; the contract is :meth:`kgfast.kernels.backend.Backend.topk`."""
    with launcher.serving(operands.table.device) as arch:
        pairs = _Pairs(operands, arch, checks)
        every = torch.arange(operands.num_queries, dtype=torch.int64, device=lists.indices.device)
        if operands.num_queries and not checks.allows_nan:  # also for queries without candidates
            pairs.score_all(max(operands.crops), every, torch.zeros_like(every))
        best = shared.list_topk(pairs.score_all, operands, lists, k, known)
        pairs.status.read(checks).raise_if_bad()
        return best


class _Pairs(Crop):
    """Scorer of pairs, which notes rows with numbers that are not finite."""

    def __init__(self, operands: Operands, arch: int, checks: Checks) -> None:
        super().__init__(operands, max(operands.crops), arch, allows_nan=checks.allows_nan)
        self.status = Status(1, self.device)

    def score_all(self, dim: int, rows: Tensor, ids: Tensor) -> Tensor:
        """Return canonical scores of pairs, float64 ``[P]``."""
        self.dim = dim
        scores = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
        status = None if self.allows_nan else self.status.rows
        self.decide(Pairs((rows << 32) | ids, None, None, None, scores=scores, status=status))
        return scores
