"""CPU backend: C++ kernels by the protocol :class:`kgfast.kernels.backend.Backend`.

A loss costs the scores of all pairs, and gradients cost scores and gradients of scores; both add
one walk over the scores (engine/loss_row.h). Scores of cross entropy that fit 48 MiB are made once.
They are stored for the gradients or, for a mean, made block by block together with the gradients.
"""

import sys

import torch
from torch import Tensor

from ..backend import Into, LossPlan
from ..losses import Losses
from ..negatives import NegativeLosses
from ..operands import PRECISIONS, Gradients, NamedRows, Need, Operands
from . import updates
from .above import above as above
from .backward import indexed_backward, pairwise_backward
from .panels import PACKING
from .passes import ADVERSARIAL, PASSES
from .rank import list_counts as list_counts
from .rank import rank_counts as rank_counts
from .scores import scores as scores
from .topk import list_topk as list_topk
from .topk import topk as topk

_LOSS_SCRATCH = 1 << 21  # scores: 8 MiB
_LOSS_KEPT = 12 << 20  # scores: 48 MiB
_LOSS_QUERIES = 4096  # queries that are swept together, so that chunks of candidates stay wide

name = "cpu"
defers_checks = False
losses = Losses(sys.modules[__name__])
passes = PASSES
adversarial = ADVERSARIAL
negatives = NegativeLosses(sys.modules[__name__])
row_updates = updates
packing = PACKING
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


def loss_plan(operands: Operands) -> LossPlan:
    """Return the sizes in which losses over all candidates are cut."""
    in_blocks = operands.table.dtype == torch.float32
    queries = _LOSS_QUERIES if in_blocks else None
    return LossPlan(_LOSS_SCRATCH, torch.float32, queries, kept=_LOSS_KEPT)
