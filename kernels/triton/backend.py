"""The Triton backend: kernels for NVIDIA and AMD GPUs.

This module has the protocol :class:`kgfast.kernels.backend.Backend`.
"""

import torch
from torch import Tensor

from ..losses import Losses
from ..operands import PRECISIONS, Gradients, NamedRows, Need, Operands
from . import compose, filters, pairwise
from . import updates as row_updates
from .above import above
from .host import launch as launcher
from .indexed import fill_indexed, indexed_gradients
from .losses import FusedLosses
from .negatives import FusedNegatives
from .rank import rank_counts
from .topk import topk

__all__ = [
    "above",
    "backward",
    "compose",
    "defers_checks",
    "filters",
    "losses",
    "name",
    "negatives",
    "precisions",
    "rank_counts",
    "row_sums",
    "row_updates",
    "scores",
    "topk",
]

name = "triton"
defers_checks = True
losses: Losses = FusedLosses()
negatives = FusedNegatives()
row_sums = row_updates.sum_rows
precisions: tuple[str, ...] = PRECISIONS


def scores(operands: Operands, index: Tensor | None = None) -> Tensor:
    """Return float32 scores of all pairs, or of the pairs of an index ``[B, K]``."""
    pairs = (operands.num_queries, operands.candidates.num_rows) if index is None else index.shape
    out = operands.queries.new_empty(len(operands.crops), *pairs, dtype=torch.float32)
    with launcher.serving(operands.table.device) as arch:
        if index is None:
            pairwise.fill_scores(out, operands, arch)
        else:
            fill_indexed(out, operands, index, arch)
    return out[0] if operands.dims is None else out


def backward(
    operands: Operands,
    grad: Tensor,
    index: Tensor | None = None,
    *,
    need: Need,
    rows: NamedRows | None = None,
) -> Gradients:
    """Return gradients from float32 sums, each in the operand's dtype; two runs give equal bits."""
    if index is None:
        return pairwise.all_gradients(operands, grad, need)
    gradients = indexed_gradients(operands, grad, index, need, rows_only=rows is not None)
    return gradients if rows is None else gradients.of_rows(rows)
