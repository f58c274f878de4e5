"""What losses of sampled negatives take and give, whatever backend makes them."""

from typing import Literal, NamedTuple

from torch import Tensor

Formula = Literal["nssa", "margin", "logistic"]


class NegativeLoss(NamedTuple):
    """What the negatives ``x_i`` of a row, whose positive is ``s``, add to its loss.

    ============ ===================================================================
    ``nssa``     ``sum_i p_i softplus(x_i)``, ``p = softmax(parameter * x)``, through
                 which no gradient flows
    ``margin``   ``sum_i max(0, parameter - s + x_i)``
    ``logistic`` ``sum_i softplus(x_i)``
    ============ ===================================================================
    """

    formula: Formula
    parameter: float = 0.0  # alpha, or the margin
    mask: Tensor | None = None  # bool [B, K]: False where a negative takes no part


class Sampled(NamedTuple):
    """What negatives go with: the positives' scores, if they are a pool; or their own ids."""

    positive: Tensor | None = None  # [B]; None: lists
    targets: Tensor | None = None  # int64 [B]
    negatives: Tensor | None = None  # int64 [B, K]


class NegativeRows(NamedTuple):
    """What the negatives of rows add to a loss, and what a backward needs; float32 ``[B]`` each."""

    rows: Tensor
    positive: Tensor  # of lists: their scores; else as given, or empty
    masses: Tensor  # negatives that take part; of nssa the sums of weights relative to the peak
    peaks: Tensor  # highest scores; of a margin the number of negatives over it
    raw: Tensor  # [B, K], [B, 1 + K] of lists: scores before the bias; empty if not kept
    ids: Tensor  # int64 [B, 1 + K] of lists: rows of the table; else empty
