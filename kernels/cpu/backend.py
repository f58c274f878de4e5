"""CPU backend: C++ kernels by the protocol :class:`kgfast.kernels.backend.Backend`.

A loss costs the scores of all pairs, and gradients cost scores and gradients of scores; both add
one walk over the scores (engine/training_rows.h). Scores of cross entropy that fit 48 MiB are made
once. They are stored for the gradients or, for a mean, made block by block together with these.
"""

import sys

import torch
from torch import Tensor

from ..backend import Into
from ..losses import Losses, LossPlan
from ..operands import PRECISIONS, Gradients, NamedRows, Need, Operands
from . import panels, updates
from .above import above as above
from .backward import indexed_backward, pairwise_backward
from .negatives import AdversarialLosses
from .passes import PASSES
from .rank import rank_counts as rank_counts
from .scores import scores as scores
from .topk import topk as topk

# Scores of 8 MiB, and of 48 MiB that are kept; chunks of 4,096 queries stay wide.
_PLAN = LossPlan(scratch=1 << 21, dtype=torch.float32, queries=4096, kept=12 << 20)

name = "cpu"
defers_checks = False
losses = Losses(sys.modules[__name__], _PLAN)
passes = PASSES
negatives = AdversarialLosses(sys.modules[__name__])
row_updates = updates
packing = panels
precisions: tuple[str, ...] = PRECISIONS[:1]


def backward(
    operands: Operands,
    grad: Tensor,
    index: Tensor | None = None,
    *,
    need: Need,
    rows: NamedRows | None = None,
    into: Into | None = None,
) -> Gradients:
    """Return the gradients of all pairs, or of the pairs of an index."""
    if index is None:
        return pairwise_backward(operands, grad, need, into)
    return indexed_backward(operands, grad, index, need, rows)
