"""Candidates that each query lists, by definition: canonical scores of all pairs.

The cost model is that of :mod:`.rank` for each pair, and a gather of the pair's row.
"""

from torch import Tensor

from .. import lists as shared
from ..checks import Checks
from ..ieee import ieee_arithmetic
from ..operands import Counts, Known, Lists, Operands
from .tiles import Tiles


def list_counts(
    operands: Operands, lists: Lists, targets: Tensor, known: Known, checks: Checks
) -> Counts:
    """Count; the specification of :meth:`kgfast.kernels.backend.Backend.rank_counts`."""
    with ieee_arithmetic():
        score = _scorer(operands, checks)
        return shared.list_counts(score, operands, lists, targets, known)


def list_topk(
    operands: Operands, lists: Lists, k: int, known: Known | None, checks: Checks
) -> tuple[Tensor, Tensor]:
    """Return the best; the specification of :meth:`kgfast.kernels.backend.Backend.topk`."""
    with ieee_arithmetic():
        return shared.list_topk(_scorer(operands, checks), operands, lists, k, known)


def _scorer(operands: Operands, checks: Checks) -> shared.Score:
    tiles = {dim: Tiles(operands, dim, checks) for dim in set(operands.crops)}

    def score(dim: int, rows: Tensor, ids: Tensor) -> Tensor:
        return tiles[dim].pairs(rows, ids)

    return score
