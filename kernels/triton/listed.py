"""Candidates that each query lists, on a GPU: canonical scores of all pairs.

Cost model: device/canonical.py, a lane per pair. Memory: :mod:`kgfast.kernels.lists`. The host
waits for the lengths of the lists and for numbers that are not finite.
"""

import torch
from torch import Tensor

from .. import lists as shared
from ..checks import Checks
from ..operands import Counts, Known, Lists, Operands
from .device.canonical import CANONICAL_LANES, Survivors, score_survivors
from .host import launch as launcher
from .host.batch import SharedOperands
from .host.status import Status
from .host.views import form_of, views_of


def list_counts(
    operands: Operands, lists: Lists, targets: Tensor, known: Known, checks: Checks
) -> Counts:
    """Count; the contract is :meth:`kgfast.kernels.backend.Backend.list_counts`."""
    with launcher.serving(operands.table.device) as arch:
        pairs = _Pairs(operands, arch, checks)
        counts = shared.list_counts(pairs.score, operands, lists, targets, known)
        pairs.status.read(checks).raise_if_bad()
        return counts


def list_topk(
    operands: Operands, lists: Lists, k: int, known: Known | None, checks: Checks
) -> tuple[Tensor, Tensor]:
    """Return the best; the contract is :meth:`kgfast.kernels.backend.Backend.list_topk`."""
    with launcher.serving(operands.table.device) as arch:
        pairs = _Pairs(operands, arch, checks)
        every = torch.arange(operands.num_queries, dtype=torch.int64, device=lists.indices.device)
        if operands.num_queries and not checks.allows_nan:  # also for queries without candidates
            pairs.score(max(operands.crops), every, torch.zeros_like(every))
        best = shared.list_topk(pairs.score, operands, lists, k, known)
        pairs.status.read(checks).raise_if_bad()
        return best


class _Pairs:
    """Scorer of pairs, which notes rows with numbers that are not finite."""

    def __init__(self, operands: Operands, arch: int, checks: Checks) -> None:
        none = torch.empty(0, dtype=torch.int64, device=operands.table.device)
        self.batch = SharedOperands.of(operands, none, arch, allows_nan=checks.allows_nan)
        self.status = Status(1, self.batch.device)
        self.order = torch.arange(operands.num_queries, dtype=torch.int64, device=none.device)
        self.limits = torch.full(
            self.order.shape, torch.nan, dtype=torch.float64, device=none.device
        )

    def score(self, dim: int, rows: Tensor, ids: Tensor) -> Tensor:
        """Return canonical scores of pairs, float64 ``[P]``."""
        operands = self.batch.operands
        scores = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
        pairs = (rows << 32) | ids
        launcher.launch(
            score_survivors,
            (-(-len(rows) // CANONICAL_LANES),),
            {
                "views": views_of(operands),
                "survivors": Survivors(pairs, None, self.order, None, self.limits, scores),
                "p_status": None if self.batch.allows_nan else self.status.rows,
                "count": len(rows),
                "num_features": dim,
                "FORM": form_of(operands),
            },
            num_warps=1,
            enable_fp_fusion=False,
        )
        return scores
