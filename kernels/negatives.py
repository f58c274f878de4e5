"""Arguments and results of losses of sampled negatives, whatever backend makes them."""

from typing import Literal, NamedTuple

from torch import Tensor

Formula = Literal["nssa", "margin", "logistic"]


class NegativeLoss(NamedTuple):
    """Share of the negatives ``x_i`` in the loss of a row, whose positive is ``s``.

    ``nssa`` adds ``sum_i p_i softplus(x_i)``, ``p = softmax(parameter x)`` without gradient;
    ``margin`` adds ``sum_i max(0, parameter - s + x_i)``; ``logistic`` adds ``sum_i
    softplus(x_i)``.
    """

    formula: Formula
    parameter: float = 0.0  # alpha, or the margin
    mask: Tensor | None = None  # bool [B, K]: False where a negative takes no part


class Sampled(NamedTuple):
    """Scores of the positives for a shared pool; target and negative ids otherwise."""

    positive: Tensor | None = None  # [B]; None: lists
    targets: Tensor | None = None  # int64 [B]
    negatives: Tensor | None = None  # int64 [B, K]


class NegativeRows(NamedTuple):
    """Shares of negatives in row losses, and results for a backward; float32 ``[B]`` each."""

    rows: Tensor
    positive: Tensor  # of lists: their scores; else as given, or empty
    masses: Tensor  # negatives that take part; of nssa the sums of weights relative to the peak
    peaks: Tensor  # highest scores; of a margin the number of negatives over it
    raw: Tensor  # [B, K], [B, 1 + K] of lists: scores before the bias; empty if not kept
    ids: Tensor  # int64 [B, 1 + K] of lists: rows of the table; else empty
