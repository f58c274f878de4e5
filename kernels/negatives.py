"""Arguments and results of losses of sampled negatives, whatever backend makes them."""

from typing import Literal, NamedTuple

from torch import Tensor

from .operands import Gradients

Formula = Literal["nssa", "margin", "logistic"]
Reduction = Literal["mean", "sum", "none"]


class NegativeLoss(NamedTuple):
    """Loss of rows, each of a positive ``s`` and its negatives ``x_i``, and what becomes of them.

    ``nssa``: ``1/2 (softplus(-s) + sum_i p_i softplus(x_i))``, ``p = softmax(parameter x)`` without
    gradient; ``margin``: ``sum_i max(0, parameter - s + x_i)``; ``logistic``: ``softplus(-s) +
    sum_i softplus(x_i)``. A mean is over the positives, the pairs, or all scores, in this order;
    of ``nssa`` with weights it is over their sum.
    """

    formula: Formula
    parameter: float = 0.0  # alpha, or the margin
    mask: Tensor | None = None  # bool [B, K]: False where a negative takes no part
    reduction: Reduction = "none"
    weights: Tensor | None = None  # float32 [B], of nssa: factors of the rows


class Sampled(NamedTuple):
    """Scores of the positives for a shared pool; target and negative ids otherwise."""

    positive: Tensor | None = None  # [B]; None: lists
    targets: Tensor | None = None  # int64 [B]
    negatives: Tensor | None = None  # int64 [B, K]


class NegativeRows(NamedTuple):
    """A loss, and results for its backward; float32 ``[B]`` each."""

    loss: Tensor  # of each row; [] if they are reduced
    positive: Tensor  # scores of the positives
    masses: Tensor  # negatives that take part; of nssa the sums of weights relative to the peak
    peaks: Tensor  # highest scores; of a margin the number of negatives over it
    scale: Tensor  # [1] factor of the sum of the rows; empty if they are not reduced
    raw: Tensor  # [B, K], [B, 1 + K] of lists: scores before the bias; empty if not kept
    ids: Tensor  # int64 [B, 1 + K] of lists: rows of the table; else empty


class NegativeGradients(NamedTuple):
    """Gradients of a loss of sampled negatives."""

    operands: Gradients
    bias: Tensor | None  # float32 [K], of a pool if asked for
    positive: Tensor  # float32 [B] of a pool; empty of lists
