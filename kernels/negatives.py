"""Losses of sampled negatives: as data, their results, and both over scores for any backend.

Cost model of :class:`NegativeLosses`: scores are stored for the backward, ``[B, K]``, and a few
operators of torch walk over them each way. The CPU has one walk each way for ``nssa``.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .checks import inside_of
from .operands import Gradients, NamedRows, Need, Operands
from .sampled import NegativeGradients, NegativeLoss, NegativeRows, Sampled


class NegativeLosses:
    """Losses of a backend that does not fuse them with the scores; others override both methods."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def value(
        self,
        operands: Operands,
        sampled: Sampled,
        loss: NegativeLoss,
        *,
        keeps: bool,
        check: Callable[[], None] | None,
    ) -> NegativeRows:
        """Return the loss of every row, or the sum or mean of rows.

        Operands are neither empty nor cropped; for a pool, the rows are the negatives. Ids may be
        out of range: reads are clamped to the table. With ``keeps``, gradients will follow.
        ``check`` is called if an id was clamped, or if a score or a bias is not finite (a bias may
        be -inf). Without ``check`` the host waits for nothing.
        """
        if sampled.negatives is None:
            assert sampled.positive is not None
            ids = torch.empty(0, dtype=torch.int64, device=operands.queries.device)
            raw = negative = self._backend.scores(operands)
            positive = sampled.positive
        else:
            assert sampled.targets is not None
            index = torch.cat([sampled.targets[:, None], sampled.negatives], 1)
            ids = inside_of(index, operands.candidates.num_rows)
            if check is not None and not torch.equal(ids, index):
                check()
            raw = self._backend.scores(operands, ids)
            positive, negative = raw[:, 0].clone(), raw[:, 1:]
        if check is not None and not bool(raw.sum().isfinite()):
            check()
        rows, peaks, masses = self._rows(positive, negative, loss)
        scale = rows.new_empty(0)
        if loss.weights is not None:
            rows = rows * loss.weights
        if loss.reduction != "none":
            divisor = _divisor(loss, negative)
            scale = (1.0 / divisor).to(rows.dtype).reshape(1)
            rows = (rows.sum() / divisor).to(rows.dtype)
        return NegativeRows(rows, positive, masses, peaks, scale, raw if keeps else raw[:0], ids)

    def gradients(
        self,
        operands: Operands,
        loss: NegativeLoss,
        made: NegativeRows,
        grad: Tensor,
        need: Need,
        *,
        bias: bool = False,
        rows: NamedRows | None = None,
    ) -> NegativeGradients:
        """Return the gradients of :meth:`value`, given that of the loss.

        With ``bias``, the gradient of a pool's biases is needed. ``rows`` are those of
        :meth:`kgfast.kernels.backend.Backend.backward`.
        """
        is_listed, count = bool(made.ids.numel()), len(made.raw)
        grad = (grad * made.scale if len(made.scale) else grad).expand(count)
        if loss.weights is not None:
            grad = grad * loss.weights
        negative = made.raw[:, 1:] if is_listed else made.raw
        of_positive, slopes = self._slopes(made, negative, grad, loss)
        if is_listed:
            slopes, index = torch.cat([of_positive[:, None], slopes], 1), made.ids
            of_positive = of_positive[:0]
        else:
            slopes, index = slopes.contiguous(), None
        of_bias = slopes.sum(0) if bias else None
        pulled = Gradients()
        if any(need):
            pulled = self._backend.backward(operands, slopes, index, need=need, rows=rows)
        return NegativeGradients(pulled, of_bias, of_positive)

    def _rows(
        self, positive: Tensor, negative: Tensor, loss: NegativeLoss
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return row losses and, for ``nssa`` in one walk, peaks and masses of the rows."""
        unused = torch.zeros_like(positive), torch.zeros_like(positive)
        if loss.formula == "margin":
            over = (loss.parameter - positive[:, None] + negative).relu_()
            return (masked(over, loss.mask).sum(1), *unused)
        if loss.formula == "logistic":
            rows = -masked(logsigmoid(-negative), loss.mask).sum(1)
            return (rows - logsigmoid(positive), *unused)
        kernel = getattr(self._backend, "adversarial", None)
        if kernel is not None and loss.mask is None:
            rows, peaks, masses = kernel.rows(negative, loss.parameter)
            return (rows - logsigmoid(positive)) / 2, peaks, masses
        rows = -(chances(negative, loss.parameter, loss.mask) * logsigmoid(-negative)).sum(1)
        return ((rows - logsigmoid(positive)) / 2, *unused)

    def _slopes(
        self, made: NegativeRows, negative: Tensor, grad: Tensor, loss: NegativeLoss
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of positives ``[B]`` and of negatives ``[B, K]``."""
        if loss.formula == "margin":
            over = loss.parameter - made.positive[:, None] + negative > 0
            if loss.mask is not None:
                over &= loss.mask
            slopes = torch.where(over, grad[:, None], 0.0)
            return -slopes.sum(1), slopes
        half = grad / 2 if loss.formula == "nssa" else grad
        of_positive = -(-made.positive).sigmoid_() * half
        kernel = getattr(self._backend, "adversarial", None)
        if loss.formula == "logistic":
            slopes = masked(negative.sigmoid().mul_(half[:, None]), loss.mask)
        elif kernel is not None and loss.mask is None:
            slopes = kernel.backward(half, negative, made.peaks, made.masses, loss.parameter)
        else:
            slopes = chances(negative, loss.parameter, loss.mask)
            slopes.mul_(negative.sigmoid()).mul_(half[:, None])
        return of_positive, slopes


def chances(negative: Tensor, alpha: float, mask: Tensor | None) -> Tensor:
    """Return the weights of negatives of ``nssa``; all 0 in a row without negatives."""
    logits = alpha * negative
    if mask is not None:
        logits.masked_fill_(~mask, -torch.inf)
    return masked(logits.softmax(-1), mask)


def masked(terms: Tensor, mask: Tensor | None) -> Tensor:
    """Return terms ``[..., B, K]`` that are 0 where a negative takes no part."""
    return terms if mask is None else terms.masked_fill(~mask, 0.0)


def _divisor(loss: NegativeLoss, negative: Tensor) -> Tensor:
    """Return the divisor of the sum of rows, float64 and never 0."""
    count = torch.ones((), dtype=torch.float64, device=negative.device)
    if loss.reduction == "sum":
        return count
    if loss.formula == "nssa":
        divisor = count * len(negative) if loss.weights is None else loss.weights.double().sum()
    else:
        pairs = count * negative.numel() if loss.mask is None else loss.mask.sum().double()
        divisor = pairs + (len(negative) if loss.formula == "logistic" else 0)
    return divisor + (divisor == 0)
