"""Arguments and results of losses of sampled negatives, for any backend."""

from typing import Literal, NamedTuple

from torch import Tensor

from .operands import Gradients

Formula = Literal["nssa", "margin", "logistic"]
Reduction = Literal["mean", "sum", "none"]


class NegativeLoss(NamedTuple):
    """Loss of rows, each with a positive ``s`` and negatives ``x_i``, and the reduction of rows.

    ``nssa``: ``1/2 (softplus(-s) + sum_i p_i softplus(x_i))``, ``p = softmax(parameter x)`` without
    gradient; ``margin``: ``sum_i max(0, parameter - s + x_i)``; ``logistic``: ``softplus(-s) +
    sum_i softplus(x_i)``. The mean is over the positives, the pairs, or all scores, in this order;
    for ``nssa`` with weights, over the sum of weights.
    """

    formula: Formula
    parameter: float = 0.0  # alpha, or the margin
    mask: Tensor | None = None  # bool [B, K]: False where a negative takes no part
    reduction: Reduction = "none"
    weights: Tensor | None = None  # float32 [B], for nssa: factors of the rows


class Sampled(NamedTuple):
    """Scores of the positives for a shared pool; target and negative ids otherwise."""

    positive: Tensor | None = None  # [B]; None for lists
    targets: Tensor | None = None  # int64 [B]
    negatives: Tensor | None = None  # int64 [B, K]
    sparse: bool = False  # for lists: the gradient of the table has only the rows in use
    besides: Tensor | None = None  # int64 [*]: more rows of a sparse gradient


class NegativeRows(NamedTuple):
    """Loss, and results for the backward; float32 ``[B]`` each."""

    loss: Tensor  # loss of each row; [] if reduced
    positive: Tensor  # scores of the positives
    masses: Tensor  # negatives that take part; for nssa the sums of weights relative to the peak
    peaks: Tensor  # highest scores; for a margin the number of negatives over it
    scale: Tensor  # [1] factor of the sum of the rows; empty if not reduced
    raw: Tensor  # [B, K], or [B, 1 + K] for lists: scores before the bias
    ids: Tensor  # int64 [B, 1 + K] for lists: rows of the table; else empty


class NegativeGradients(NamedTuple):
    """Gradients of a loss of sampled negatives."""

    operands: Gradients
    bias: Tensor | None  # float32 [K], for a pool if needed
    positive: Tensor  # float32 [B] for a pool; empty for lists
