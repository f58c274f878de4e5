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
from .host.scan import check_rows, score_pairs
from .host.status import Status


def list_counts(
    operands: Operands, lists: Lists, targets: Tensor, known: Known, checks: Checks
) -> Counts:
    """Count; the contract is :meth:`kgfast.kernels.backend.Backend.rank_counts`."""
    with launcher.serving(operands.table.device):
        pairs = _Pairs(operands, checks)
        counts = shared.list_counts(pairs.score_all, operands, lists, targets, known)
        pairs.status.read(checks)
        return counts


def list_topk(
    operands: Operands, lists: Lists, k: int, known: Known | None, checks: Checks
) -> tuple[Tensor, Tensor]:
    """Return the best; the contract is :meth:`kgfast.kernels.backend.Backend.topk`."""
    with launcher.serving(operands.table.device):
        pairs = _Pairs(operands, checks)
        every = torch.arange(operands.num_queries, dtype=torch.int64, device=lists.indices.device)
        if operands.num_queries and not checks.allows_nan:  # also for queries without candidates
            pairs.score_all(max(operands.crops), every, torch.zeros_like(every))
        best = shared.list_topk(pairs.score_all, operands, lists, k, known)
        pairs.status.read(checks)
        return best


class _Pairs:
    """Scorer of pairs, which notes rows with numbers that are not finite."""

    def __init__(self, operands: Operands, checks: Checks) -> None:
        check_rows(operands)
        self.operands, self.status = operands, Status(1, operands.table.device)
        self._rows = None if checks.allows_nan else self.status.rows

    def score_all(self, dim: int, rows: Tensor, ids: Tensor) -> Tensor:
        """Return canonical scores of pairs, float64 ``[P]``."""
        scores = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
        pairs = Pairs((rows << 32) | ids, None, None, scores=scores, status=self._rows)
        score_pairs(self.operands, dim, pairs)
        return scores
