"""Candidates that each query lists, on a GPU: canonical scores of all pairs.

Cost model: device/canonical.py, a lane per pair. Memory: :mod:`kgfast.kernels.lists`. The host
waits for the lengths of the lists and for numbers that are not finite.
"""

from collections.abc import Iterator
from contextlib import contextmanager

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
    with _scoring(operands, checks) as score_all:
        return shared.list_counts(score_all, operands, lists, targets, known)


def list_topk(
    operands: Operands, lists: Lists, k: int, known: Known | None, checks: Checks
) -> tuple[Tensor, Tensor]:
    """Return the best; the contract is :meth:`kgfast.kernels.backend.Backend.topk`."""
    with _scoring(operands, checks) as score_all:
        every = torch.arange(operands.num_queries, dtype=torch.int64, device=lists.indices.device)
        if operands.num_queries and not checks.allows_nan:  # also for queries without candidates
            score_all(max(operands.crops), every, torch.zeros_like(every))
        return shared.list_topk(score_all, operands, lists, k, known)


@contextmanager
def _scoring(operands: Operands, checks: Checks) -> Iterator[shared.Score]:
    """Yield a function of canonical scores; raise at the end if a row that it read is bad."""
    with launcher.serving(operands.table.device):
        check_rows(operands)
        status = Status(1, operands.table.device)
        bad_rows = None if checks.allows_nan else status.rows

        def score_all(dim: int, rows: Tensor, ids: Tensor) -> Tensor:
            """Return canonical scores of pairs, float64 ``[P]``."""
            scores = torch.empty(rows.shape, dtype=torch.float64, device=rows.device)
            pairs = Pairs((rows << 32) | ids, None, None, scores=scores, status=bad_rows)
            score_pairs(operands, dim, pairs)
            return scores

        yield score_all
        status.read(checks)
