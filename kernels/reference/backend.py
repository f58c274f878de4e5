"""Reference backend: plain PyTorch in float64, the specification of all others."""

import sys

import torch
from torch import Tensor

from ..backend import Into
from ..losses import Losses, LossPlan
from ..operands import PRECISIONS, Gradients, NamedRows, Need, Operands
from ..passes import TORCH_PASSES
from .above import above as above
from .rank import rank_counts as rank_counts
from .scores import all_gradients, all_scores, indexed_gradients, indexed_scores
from .topk import topk as topk

name = "reference"
defers_checks = False
losses = Losses(sys.modules[__name__], LossPlan(1 << 16, torch.float64))
passes = TORCH_PASSES
precisions: tuple[str, ...] = PRECISIONS


def scores(operands: Operands, index: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """Return the scores of all pairs, or of the pairs of an index."""
    return all_scores(operands, out) if index is None else indexed_scores(operands, index)


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
        return all_gradients(operands, grad, need, into)
    gradients = indexed_gradients(operands, grad, index, need)
    return gradients.spread(operands, need) if rows is None else gradients.of_rows(rows)
